// Package robustness tests faults: errors and deaths at every step of a creation, many
// creations, full disks, restarts of containerd.
package robustness
