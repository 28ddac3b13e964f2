package serve

import (
	"fmt"
	"sync"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/question"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/status"
)

// statusLimit is how long a request waits for the status of this host. It is shorter than Prometheus
// waits. A variable for the tests.
var statusLimit = 8 * time.Second

// present is the latest status of this host.
type present struct {
	mu      sync.Mutex
	reading chan struct{} // closed when the reading in progress ends; nil if there is none
	read    time.Time
	status  *status.Status
	err     error
}

func (p *present) update(read func() (*status.Status, error)) {
	latest, err := protected(read)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status, p.err, p.read = latest, err, time.Now()
	close(p.reading)
	p.reading = nil
}

// Limited returns a function that asks NVML at most once a second: requests need no password, and
// each question starts a process. The answer is kept in the state directory, so only requests for
// devices that NVML does not know repeat the question.
func Limited(ask question.Ask) question.Ask { return limited(ask, time.Second) }

func limited(ask question.Ask, every time.Duration) question.Ask {
	var mu sync.Mutex
	var last time.Time
	return func(q question.Questions) question.Answers {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(last) < every { // guard: serve: questions to NVML
			return question.Answers{FactsError: fmt.Sprintf("NVML was asked less than %s ago: try again", every)}
		}
		defer func() { last = time.Now() }()
		return ask(q)
	}
}

// protected turns a panic into an error: outside a request it would end the process.
func protected(read func() (*status.Status, error)) (latest *status.Status, err error) {
	defer func() {
		if p := recover(); p != nil {
			latest, err = nil, fmt.Errorf("panic: %v", p)
		}
	}()
	return read()
}
