package shim

import (
	"runtime/debug"
	"testing"
	"time"
)

// eventually waits until done says so.
func eventually(done func() bool) {
	for range 500 {
		if time.Sleep(10 * time.Millisecond); done() {
			return
		}
	}
}

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
	d.after(time.Hour, time.Millisecond)
	eventually(func() bool { return debug.SetMemoryLimit(-1) == limit })
	d.mu.Lock()
	defer d.mu.Unlock()
	if got := debug.SetGCPercent(40); got != 40 || debug.SetMemoryLimit(-1) != limit {
		t.Errorf("afterwards: %d percent, limit %d, want 40 and %d", got, debug.SetMemoryLimit(-1), limit)
	}
	d.code.Stop()
}

func TestTidyingGivesTheCodeOfACreateBack(t *testing.T) {
	start, end := createCode()
	readCode(start, end)
	before := present(t, start, end)
	var d tidy
	d.after(time.Millisecond, time.Hour)
	// At both ends are pages that others come to by what they need themselves.
	left := before
	eventually(func() bool { left = present(t, start, end); return left <= before/4 })
	if before < 100 || left > before/4 {
		t.Errorf("%d of %d pages are left", left, before)
	}
	d.collector.Stop()
}

func TestNothingIsTidiedDuringTheNextCreate(t *testing.T) {
	percent := debug.SetGCPercent(40)
	defer debug.SetGCPercent(percent)
	var d tidy
	d.hold()
	d.after(20*time.Millisecond, 20*time.Millisecond)
	d.hold()
	start, end := createCode()
	readCode(start, end)
	before := present(t, start, end)
	time.Sleep(200 * time.Millisecond)
	d.mu.Lock()
	held := d.held
	d.mu.Unlock()
	if got := present(t, start, end); got < before || !held {
		t.Errorf("%d of %d pages are left, collector held: %v", got, before, held)
	}
	d.release()
}
