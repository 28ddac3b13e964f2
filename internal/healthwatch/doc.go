// Package healthwatch keeps the file in the state directory that says which GPUs of this host are
// sick: see package gpuinject/health.
//
//	w := healthwatch.Watcher{Config: load, Observe: observe, Log: os.Stderr}
//	w.Run(ctx)
//
// Observe has NVML watched in a process of its own, which waits for NVML's events and reads a few
// counters every half minute. Where root allows it, the same observations say which containers are
// idle: see package idle. This package decides what an observation means, and remembers Xids,
// which NVML reports once.
package healthwatch
