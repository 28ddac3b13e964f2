// Command containerd-shim-nvidia-v2 is the containerd shim io.containerd.nvidia.v2.
// containerd finds it by name in its PATH and starts it; it is not run by hand.
package main
