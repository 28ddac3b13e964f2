// Package gpuinject gives a container the NVIDIA GPUs that it asks for and may have, by edits of
// its OCI configuration. It is three functions over plain values:
//
//	Examine  config.json                → Container: what the container asks for, if anything
//	Resolve  Container, host, image     → Plan: everything that will be done, and why, or a refusal
//	Apply    Plan                       → links and linker files in the image, the edited
//	                                      config.json, the record nvidia.json, and the mask
//
// The mask is attached between `runc create` and `runc start`. The caller is the shim, which owns
// the life of the container, or a tool that prints the Plan: there is no second path for a preview.
//
// What a container asks for is package request, what the host has package host, who may have what
// package policy. Nothing below this package imports containerd, executes a program or uses NVML.
// Questions that only the kubelet or NVML can answer are collected and asked once, by the function
// that the caller of Resolve passes.
package gpuinject
