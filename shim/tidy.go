package shim

import (
	"runtime/debug"
	"sync"
	"time"
)

// tidyDelay is long enough for a pod's containers to be created and started.
const tidyDelay = 2 * time.Second

// tidy gives back the memory that only a create needed, once after the last one and
// off every container's way. The shim library does the same every 30 seconds, which
// is late for the hundreds of shims of a node that starts.
type tidy struct {
	mu    sync.Mutex
	timer *time.Timer
	// held says that percent and limit are what the collector goes back to.
	held    bool
	percent int
	limit   int64
}

// holdLimit is how much memory the Go runtime takes before it collects garbage in spite
// of hold, in bytes: several times what a create needs.
const holdLimit = 32 << 20

// hold puts the collection of garbage off until after has come to its end. The shim
// library has it begin at 1.6 MB, which is in the middle of a create: the container
// would wait for what is due anyway when it runs.
func (t *tidy) hold() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held {
		return
	}
	t.held, t.limit = true, debug.SetMemoryLimit(-1)
	debug.SetMemoryLimit(min(t.limit, holdLimit))
	t.percent = debug.SetGCPercent(-1)
}

// now lets the collector go on as before, begins with a collection, and gives the code
// back that only a create runs.
func (t *tidy) now() {
	t.mu.Lock()
	if t.held {
		debug.SetGCPercent(t.percent)
		debug.SetMemoryLimit(t.limit)
		t.held = false
	}
	t.mu.Unlock() // the next create does not wait for the collection
	debug.FreeOSMemory()
	unmap(createCode())
}

// after has now called once d has gone by without another call of after.
func (t *tidy) after(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer == nil {
		t.timer = time.AfterFunc(d, t.now)
		return
	}
	t.timer.Reset(d)
}
