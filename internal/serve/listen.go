package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cmdline"
)

// Listen listens on HOST:PORT or unix:PATH. Only root can connect to a socket: for that the umask
// of the whole process changes for a moment.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, cmdline.Errorf("--listen: %v", err)
		}
		return new(net.ListenConfig).Listen(ctx, "tcp", address)
	}
	// A process that was killed leaves its socket.
	if conn, err := net.Dial("unix", path); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("--listen: another process listens on %s", path)
	} else if info, failed := os.Lstat(path); errors.Is(err, unix.ECONNREFUSED) && failed == nil {
		if info.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf("--listen: %s is no socket", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	defer unix.Umask(unix.Umask(0o177))
	return new(net.ListenConfig).Listen(ctx, "unix", path)
}

// Limits of a server. A client that is slow, idle or one of many holds little, and not for long.
const (
	maxConnections = 64
	maxHeader      = 8 << 10
	readTimeout    = 2 * time.Second // for the whole request: it has no body
	writeTimeout   = 15 * time.Second
	idleTimeout    = 5 * time.Second
)

// Run serves until SIGTERM or SIGINT, and ends cleanly. Connections beyond the limit wait in the
// kernel's queue until others end.
func Run(ctx context.Context, listener net.Listener, handler http.Handler) error {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT)
	defer stop()
	server := &http.Server{
		Handler: withoutBody(handler), MaxHeaderBytes: maxHeader,
		ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, // guard: serve: slow and idle clients
	}
	ended := make(chan error, 1)
	// guard: serve: 64 connections
	go func() { ended <- server.Serve(netutil.LimitListener(listener, maxConnections)) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	limit, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if server.Shutdown(limit) != nil {
		return server.Close() // an answer still waits for NVML
	}
	return nil
}

// withoutBody refuses a request with a body and closes its connection: otherwise net/http reads
// what a client sends after the answer.
func withoutBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 { // guard: serve: bodies
			w.Header().Set("Connection", "close")
			http.Error(w, "send no body", http.StatusRequestEntityTooLarge)
			return
		}
		next.ServeHTTP(w, r)
	})
}
