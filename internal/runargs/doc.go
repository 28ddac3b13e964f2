// Package runargs generates the flags that give a container the GPUs of a plan without this shim,
// for Docker, Podman, nerdctl and ctr.
//
//	args, err := runargs.Make(planner, "docker", []string{"NVIDIA_VISIBLE_DEVICES=0"})
//
// Such flags cannot do everything that the shim does: Args.Limits lists what is missing.
package runargs
