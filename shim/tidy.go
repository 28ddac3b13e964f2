package shim

import (
	"runtime/debug"
	"sync"
	"time"
)

const (
	// codeDelay is long enough for a pod's containers to be created and started.
	codeDelay = 2 * time.Second
	// collectorDelay is when the shim library, which collects garbage and gives the
	// memory back every 30 seconds, has done so.
	collectorDelay = 31 * time.Second
)

// tidy keeps the work of the memory off a create's way, and gives the code back that
// only a create runs.
//
// It does not collect garbage itself. A collection touches more memory of the runtime's
// own, 0.5 MB of lists of spans, than the garbage of a create is that it frees.
type tidy struct {
	mu sync.Mutex
	// code and collector end what a create needed, after the last one.
	code, collector *time.Timer
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
	if t.code != nil {
		t.code.Stop()
		t.collector.Stop()
	}
	if t.held {
		return
	}
	t.held, t.limit = true, debug.SetMemoryLimit(-1)
	debug.SetMemoryLimit(min(t.limit, holdLimit))
	t.percent = debug.SetGCPercent(-1)
}

// release lets the collector go on as before.
func (t *tidy) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held {
		debug.SetGCPercent(t.percent)
		debug.SetMemoryLimit(t.limit)
		t.held = false
	}
}

// after unmaps the code of a create and the line tables, and lets the collector go on,
// once those times have gone by without another create.
func (t *tidy) after(code, collector time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.code == nil {
		t.code = time.AfterFunc(code, func() {
			unmap(createCode())
			unmap(lineTables())
		})
		t.collector = time.AfterFunc(collector, t.release)
		return
	}
	t.code.Reset(code)
	t.collector.Reset(collector)
}
