// Package faults breaks one GPU or MIG device of a simulated driver at a time, each file in procfs
// and each call of NVML in each way, and asks nvidia-shimctl plan what containers get: those of
// other devices start, those of the broken one are refused with its name and the reason.
package faults
