// Package memlimit determines how much memory of each GPU a container may use, and how much is
// reserved for it.
//
//	asked := memlimit.Read(env, annotations, "main")           // what the container asks for
//	limits, log, err := memlimit.Decide(asked, rules, uuids)    // what it gets on each of its GPUs
//
// The variables are NVIDIA's (nvidia-container-toolkit 1.20.1): whole MiB, and a limit alone is a
// request too. Beyond that, every source may give quantities and one value for each GPU. The
// package only computes: it reads nothing of the host, and the shim sets the limits.
package memlimit
