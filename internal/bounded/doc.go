// Package bounded keeps what another program prints, up to a bound: the probe's answer in the shim,
// and NVML's in nvidia-shimctl. It drops the rest and never blocks the program. It imports nothing
// that the shim does not use anyway.
package bounded
