package serve

import (
	"bufio"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/runargs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/status"
)

// FuzzRequest takes what a browser sends: for a page of this host, and for one whose name leads
// here.
func FuzzRequest(f *testing.F) {
	f.Add("/docker/cli?dev=0+1", "")
	f.Add("/v1.0/docker/cli/json?dev=%2b%0a&dev=;", "[::1")
	f.Add("//gpu/../metrics?%zz", "127.0.0.1@")
	dir := f.TempDir()
	handler := New(Options{
		StateDir: func() string { return dir }, Loopback: true,
		Status: func() (*status.Status, error) { return example(), nil },
		DockerArgs: func(devices string) (*runargs.Args, error) {
			return &runargs.Args{Args: []string{"--device=" + devices}}, nil
		},
	})
	answer := func(target, host string) int {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("GET " + target + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n")))
		if err != nil {
			return http.StatusBadRequest
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code
	}
	f.Fuzz(func(t *testing.T, target, host string) {
		if code := answer(target, "localhost:3476"); code >= http.StatusInternalServerError {
			t.Errorf("%q is answered with %d", target, code)
		}
		if strings.Contains(host, "\n") { // the name would end there
			return
		}
		if code := answer("/", host+".example:3476"); code < http.StatusBadRequest {
			t.Errorf("%q is answered with %d", host, code)
		}
	})
}
