// Package facts keeps the answer of NVML for the containers of one boot.
//
// NVML is asked by the probe, in a process of its own, and rarely: an answer is good until the host
// boots, loads another driver, or its GPUs or MIG layout change. Only one process of the host asks
// at a time; the others take its answer.
package facts
