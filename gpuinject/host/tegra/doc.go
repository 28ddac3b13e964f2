// Package tegra holds everything about hosts that are an NVIDIA system-on-chip (Jetson): lists of
// files on disk name the device nodes and files that its GPU needs. NVIDIA's Jetson packages
// install the lists for NVIDIA's container toolkit.
//
// A Thor with a discrete GPU is not supported: it is treated as an ordinary host, whose nodes and
// driver files come from the discrete GPU's driver.
//
// It is written from NVIDIA's sources and tested with directories laid out like such a host, not on
// one.
package tegra
