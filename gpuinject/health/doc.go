// Package health reads and writes the file in which a watcher on this host says which GPUs are
// sick.
//
//	f, err := health.Read(stateDir, driverVersion, time.Now())
//	sick, ok := f.GPU(busID)
//
// The watcher is "nvidia-shimctl serve" or "node", which has NVML watched in a process of its own.
// The shim only reads the file. A file that is absent, old, of another boot or another driver, or
// that cannot be read says nothing about a GPU: whatever is unknown is allowed.
package health
