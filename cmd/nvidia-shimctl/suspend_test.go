package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/status"
)

// The socket is in the daemon's mount namespace, behind a path of any length.
func TestTheSocketOfAShim(t *testing.T) {
	root := filepath.Join(t.TempDir(), strings.Repeat("long/", 20))
	if err := os.MkdirAll(filepath.Join(root, "run"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Join(root, "run"))
	listener, err := net.Listen("unix", "s")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for _, test := range []struct{ name, file, text, err string }{
		{"the first container of a pod", "address", "unix:///run/s", ""},
		{"the others", "bootstrap.json", `{"version":3,"address":"unix:///run/s","protocol":"ttrpc"}`, ""},
		{"not a socket of this host", "bootstrap.json", `{"address":"vsock://3:1024"}`, `"vsock://3:1024" is not the address of a socket`},
		{"not JSON", "bootstrap.json", `unix:///run/s`, "invalid character"},
		{"a shim that has ended", "address", "unix:///run/ended", "no such file"},
		{"nothing", "other", "", "no such file"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, test.file), []byte(test.text), 0o644); err != nil {
				t.Fatal(err)
			}
			conn, err := dialShim(status.Bundle{Dir: dir, Root: root})
			if err == nil {
				conn.Close()
			}
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("got %v, want %q", err, test.err)
			}
		})
	}
}
