package serve

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

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

// New returns a server. Its page has a history if Sample runs.
func New(o Options) *Server {
	s := &Server{Options: o, events: state.Events{Dir: o.StateDir()}, counters: newCounters()}
	registry := prometheus.NewRegistry()
	registry.MustRegister(s.counters.all()...)
	registry.MustRegister(collector{s})
	mux := http.NewServeMux()
	metrics := promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		s.follow()
		metrics.ServeHTTP(w, r)
	})
	mux.HandleFunc("GET /{$}", s.servePage)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	for _, prefix := range []string{"", "/v1.0"} {
		s.handleNVIDIADocker(mux, prefix)
	}
	s.Handler = s.guard(mux)
	return s
}

// guard refuses host names that another site may have pointed at this host (DNS rebinding), and
// sets the headers of every answer.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = strings.Trim(r.Host, "[]")
		}
		if s.Loopback && host != "localhost" && net.ParseIP(host) == nil { // guard: serve: host name
			http.Error(w, "use the address of this host, or localhost", http.StatusForbidden)
			return
		}
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		next.ServeHTTP(w, r)
	})
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
