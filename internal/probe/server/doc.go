// Package server answers the questions of package probe: in "nvidia-shimctl probe", a process of
// its own, and in nvidia-shim-nvml, which it becomes to ask NVML. No other program may link it,
// because it loads NVML and has a gRPC client.
//
// One process asks NVML at a time. It gives up after a time limit, but a thread that hangs in the
// driver cannot be stopped: its process then holds the lock until the driver is reset, and the next
// process gives up at once.
package server
