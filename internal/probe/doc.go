// Package probe asks "nvidia-shimctl probe" what the shim cannot ask in its own process: NVML may
// hang in the kernel, and the kubelet's API needs a gRPC client.
//
//	a := probe.Ask(program, start, probe.Questions{Facts: true, Pod: &probe.Pod{…}})
//
// All questions of a caller go into one process, and each has its own answer or error text: a GPU
// that hangs does not hide the kubelet's answer. The process has the questions in its standard
// input, an empty environment, a time limit and an output limit. Package server, which only
// nvidia-shimctl may link, answers.
package probe
