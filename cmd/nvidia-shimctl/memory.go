package main

import (
	"os"
	"runtime/debug"
)

// Soft limits of the memory that Go manages, in bytes, of the commands that run as long as the host:
// near them it collects garbage more often. A keeper of a node holds the programs whole, old and new.
const (
	serveMemory = 64 << 20
	nodeMemory  = 128 << 20
)

// limitMemory sets a soft limit, unless GOMEMLIMIT does.
func limitMemory(limit int64) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit) // guard: serve: memory
	}
}
