// Package question has what only the kubelet and NVML can answer about a container. The caller of
// gpuinject asks: package probe, in a process of its own.
package question
