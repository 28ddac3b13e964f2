package main

import (
	"math"
	"runtime/debug"
	"testing"
)

func TestMemoryHasALimit(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	debug.SetMemoryLimit(math.MaxInt64)
	t.Setenv("GOMEMLIMIT", "1GiB")
	limitMemory(nodeMemory)
	if got := debug.SetMemoryLimit(-1); got != math.MaxInt64 {
		t.Errorf("GOMEMLIMIT is overridden: %d", got)
	}
	t.Setenv("GOMEMLIMIT", "")
	limitMemory(nodeMemory)
	if got := debug.SetMemoryLimit(-1); got != nodeMemory {
		t.Errorf("%d", got)
	}
}
