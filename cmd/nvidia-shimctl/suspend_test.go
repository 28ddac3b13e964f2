package main

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
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
	other, err := net.Listen("unix", "other")
	testtree.Check(t, err)
	defer other.Close()
	testtree.Check(t, errors.Join(os.Symlink("s", "link"), os.Chown("other", 65534, 0)))
	for _, test := range []struct{ name, file, text, err string }{
		{"the first container of a pod", "address", "unix:///run/s", ""},
		{"the others", "bootstrap.json", `{"version":3,"address":"unix:///run/s","protocol":"ttrpc"}`, ""},
		{"not a socket of this host", "bootstrap.json", `{"address":"vsock://3:1024"}`, `"vsock://3:1024" is not the address of a socket`},
		{"not JSON", "bootstrap.json", `unix:///run/s`, "invalid character"},
		{"a shim that has ended", "address", "unix:///run/ended", "no such file"},
		{"a link", "address", "unix:///run/link", "is not a socket of root"},
		{"a file", "address", "unix:///a file/address", "is not a socket of root"},
		{"another user's", "address", "unix:///run/other", "is not a socket of root"},
		{"nothing", "other", "", "no such file"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := filepath.Join(root, test.name)
			testtree.Check(t, errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, test.file), []byte(test.text), 0o644)))
			conn, err := dialShim(status.Bundle{Dir: "/" + test.name, Tree: hosttree.Tree{Root: root}})
			if err == nil {
				conn.Close()
			}
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("got %v, want %q", err, test.err)
			}
		})
	}
}
