// Package runargs makes the flags that give a container the GPUs of a plan without this shim, for
// Docker, Podman, nerdctl and ctr.
//
//	args, err := runargs.Make(planner, "docker", []string{"NVIDIA_VISIBLE_DEVICES=0"})
//
// Such flags cannot do all that the shim does: Args.Limits says what is missing.
package runargs
