package serve

import (
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
)

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
