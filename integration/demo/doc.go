// Command demo shows the shim at work: `make demo`. It starts a private containerd
// in a temporary directory, imports an image that it assembles from this host's own
// programs, and runs ctr commands, which it prints with their real output. On a
// host with an NVIDIA driver that driver is used, elsewhere a simulated one. At the
// end nothing is left.
package main
