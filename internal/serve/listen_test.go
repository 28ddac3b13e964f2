package serve

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// runServer runs a server until the end of the test, and returns its address.
func runServer(t *testing.T, handler http.Handler) string {
	t.Helper()
	listener, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, listener, handler) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// send opens a connection and sends a text.
func send(t *testing.T, address, text string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err == nil {
		t.Cleanup(func() { c.Close() })
		// Longer than any limit of the server.
		err = c.SetDeadline(time.Now().Add(30 * time.Second))
	}
	if err == nil {
		_, err = io.WriteString(c, text)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const request = "GET / HTTP/1.1\r\nHost: localhost\r\n"

func TestConnectionsAreBounded(t *testing.T) {
	var now, most atomic.Int64
	arrived, release := make(chan bool, 200), make(chan bool)
	address := runServer(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		for n := now.Add(1); ; {
			if m := most.Load(); n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		arrived <- true
		<-release
		now.Add(-1)
	}))
	var all []net.Conn
	for range maxConnections + 36 {
		all = append(all, send(t, address, request+"Connection: close\r\n\r\n"))
	}
	for range maxConnections {
		<-arrived
	}
	select { // those that wait would come now
	case <-arrived:
	case <-time.After(200 * time.Millisecond):
	}
	close(release)
	for _, c := range all {
		if r, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || r.StatusCode != http.StatusOK {
			t.Errorf("%v, %v", r, err)
		}
	}
	if n := most.Load(); n != maxConnections {
		t.Errorf("%d requests at once", n)
	}
}

// A connection that sends a request too slowly, or none, is closed.
func TestSlowAndIdleConnectionsAreClosed(t *testing.T) {
	address := runServer(t, http.NotFoundHandler())
	for name, text := range map[string]string{
		"nothing": "", "a part of a request": request, "idle after a request": request + "\r\n", "a header without an end": request + "X: " + strings.Repeat("x", 2*maxHeader),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := send(t, address, text)
			start := time.Now()
			_, err := io.Copy(io.Discard, c)
			if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
				t.Errorf("it is open after %s", time.Since(start))
			}
		})
	}
}

func TestABodyIsRefused(t *testing.T) {
	address := runServer(t, http.NotFoundHandler())
	for name, header := range map[string]string{"of a length": "Content-Length: 1000000\r\n", "chunked": "Transfer-Encoding: chunked\r\n"} {
		c := send(t, address, request+header+"\r\n")
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || r.StatusCode != http.StatusRequestEntityTooLarge || !r.Close {
			t.Errorf("%s: %v, %v", name, r, err)
		}
	}
}
