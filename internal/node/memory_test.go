package node

import (
	"runtime/debug"
	"testing"
)

// The heap would grow to twice the programs of each round otherwise, beyond a pod's limit.
func TestMemoryHasALimit(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	LimitMemory()
	if limit := debug.SetMemoryLimit(-1); limit != memoryLimit {
		t.Errorf("%d bytes", limit)
	}
	t.Setenv("GOMEMLIMIT", "off")
	debug.SetMemoryLimit(1 << 40)
	LimitMemory()
	if limit := debug.SetMemoryLimit(-1); limit != 1<<40 {
		t.Errorf("GOMEMLIMIT is overridden: %d bytes", limit)
	}
}
