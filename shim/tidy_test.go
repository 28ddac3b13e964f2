package shim

import (
	"runtime/debug"
	"testing"
	"time"
)

func TestTheCollectorIsHeldOnlyUntilTheMemoryIsTidied(t *testing.T) {
	percent, limit := debug.SetGCPercent(40), debug.SetMemoryLimit(-1)
	defer debug.SetGCPercent(percent)
	var d tidy
	for range 2 { // a second container of the pod meanwhile
		d.hold()
	}
	held := debug.SetGCPercent(-1)
	if got := debug.SetMemoryLimit(-1); held != -1 || got != holdLimit {
		t.Errorf("while held: %d percent, limit %d", held, got)
	}
	d.after(time.Millisecond)
	for range 500 {
		if time.Sleep(10 * time.Millisecond); debug.SetMemoryLimit(-1) == limit {
			break
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if got := debug.SetGCPercent(40); got != 40 || debug.SetMemoryLimit(-1) != limit {
		t.Errorf("afterwards: %d percent, limit %d, want 40 and %d", got, debug.SetMemoryLimit(-1), limit)
	}
}
