// Package probe asks "nvidia-shimctl probe" for what the shim does not ask in its own process:
// NVML, which may hang in the kernel, and the kubelet, whose API needs a gRPC client.
//
//	a := probe.Ask(program, start, probe.Questions{Facts: true, Pod: &probe.Pod{…}})
//
// All questions of a caller go into one process, and each has its own answer or error text: a GPU
// that hangs does not hide the kubelet's answer. The process has an empty environment, a time limit
// and a limit of its output. Package server, which only nvidia-shimctl may link, answers.
package probe
