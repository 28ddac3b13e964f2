// Package gpuinject gives a container the NVIDIA GPUs that it asks for and may have, by editing its
// OCI configuration. It consists of three functions over plain values:
//
//	Examine  config.json                → Container: what the container asks for, if anything
//	Resolve  Container, host, image     → Plan: everything that will be done, and why, or a refusal
//	Apply    Plan                       → links and linker files in the image, the edited
//	                                      config.json, the record nvidia.json, and the mask
//
// The mask is attached between `runc create` and `runc start`. The caller is the shim, which
// manages the container's life cycle, or a tool that prints the Plan: a preview runs the same code.
//
// Package request reads what a container asks for, package host what the host has; package grant
// decides who may have what, and package place where it goes. No package below this one imports
// containerd, executes a program or uses NVML. Questions that only the kubelet or NVML can answer
// are collected and asked together, by the function that the caller passes to Resolve.
package gpuinject
