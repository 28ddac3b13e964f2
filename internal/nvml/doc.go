// Package nvml asks NVIDIA's management library, libnvidia-ml, in the process that
// nvidia-shimctl starts for it ("nvidia-shimctl probe nvml"). It is the only package
// that loads the library, and no other binary of this project may link it: NVML
// keeps the driver open, may hang in the kernel for ever, and may start other
// programs.
//
// In goes [host] of the configuration: the library is the one that package driver
// found for the loaded kernel module, by its path, not what LD_LIBRARY_PATH or the
// linker's cache offer. With a dev-root, <dev-root>/dev is what NVML sees as /dev, in
// a mount namespace of its own. Out come plain data.
//
// NVML is asked on a thread that can neither execute a program nor make, rename or
// change the owner or mode of a file. By itself libnvidia-ml would run
// nvidia-modprobe where a device node is missing; making nodes is the operator's
// decision and never a side effect of a question.
//
// A property that a GPU does not have is absent from the answer, never zero.
//
// Without cgo the package builds and every question ends with ErrNoCgo.
package nvml
