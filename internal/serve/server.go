package serve

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/runargs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/status"
)

// Options are what the answers are made of.
type Options struct {
	// StateDir returns the shim's state directory. It may change: in a new node the configuration
	// comes after this program.
	StateDir func() string
	// Status reads the status of this host.
	Status func() (*status.Status, error)
	// DockerArgs returns the arguments that give a Docker container a list of GPUs without the
	// shim.
	DockerArgs func(devices string) (*runargs.Args, error)
	// Loopback is true if the server listens on TCP and only programs on this host can connect.
	Loopback bool
}

// Server answers all requests.
type Server struct {
	Options
	http.Handler

	asking sync.Mutex // held while DockerArgs is called

	mu       sync.Mutex
	events   state.Events
	counters counters
	refusals []state.Event // of the last hour

	present present
	history history
}

// maxRefusals bounds how many refusals are kept.
const maxRefusals = 100

// follow counts the events since the last call and returns the refusals of the last hour, the
// latest first. After a restart, older events are counted again only if none is missing: otherwise
// counters start at zero, which Prometheus treats as a reset.
func (s *Server) follow() []state.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	if dir := s.StateDir(); dir != s.events.Dir {
		s.events = state.Events{Dir: dir}
	}
	events, all := s.events.Next()
	for _, e := range events {
		if all {
			s.counters.add(e)
		}
		if e.Kind == state.Refused {
			s.refusals = append([]state.Event{e}, s.refusals[:min(len(s.refusals), maxRefusals-1)]...)
		}
	}
	for i, e := range s.refusals {
		if time.Since(e.Time) > time.Hour {
			s.refusals = s.refusals[:i]
			break
		}
	}
	return append([]state.Event{}, s.refusals...)
}

// readStatus returns the status of this host, which is read at most once a second, and by one
// goroutine. A request does not wait longer than statusLimit for it.
func (s *Server) readStatus() (*status.Status, error) {
	p := &s.present
	p.mu.Lock()
	if p.reading == nil && time.Since(p.read) > time.Second {
		p.reading = make(chan struct{})
		go p.update(s.Status)
	}
	reading := p.reading
	p.mu.Unlock()
	if reading != nil {
		select {
		case <-reading:
		case <-time.After(statusLimit): // guard: serve: time limit of the status
			return nil, fmt.Errorf("the status of this host was not read within %s", statusLimit)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status, p.err
}

// Sample keeps the last hour of the GPUs until ctx ends.
func (s *Server) Sample(ctx context.Context) {
	for {
		if latest, err := s.readStatus(); err == nil {
			s.history.add(latest)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(sampleEvery):
		}
	}
}
