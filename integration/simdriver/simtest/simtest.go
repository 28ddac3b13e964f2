package simtest

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

// New makes a simulated driver of the test's own, in a temporary directory where
// o.Dir names none.
func New(t testing.TB, o sim.Options) *sim.Driver {
	t.Helper()
	if o.Dir == "" {
		// Short, and below a directory that only root can write.
		dir, err := os.MkdirTemp("", "nvsim")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		o.Dir = filepath.Join(dir, "d")
	}
	d, err := sim.Create(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Remove(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// DriverContainer is a driver in a container: its root file system is mounted at a
// directory that is there before it, and is another mount after each restart.
type DriverContainer struct {
	// At is what host.driver-root names.
	At string
}

// NewDriverContainer makes the directory, with no container behind it yet.
func NewDriverContainer(t testing.TB, at string) *DriverContainer {
	t.Helper()
	if err := os.MkdirAll(at, 0o755); err != nil {
		t.Fatal(err)
	}
	return &DriverContainer{At: at}
}

// Start mounts root, the driver root of a simulated driver.
func (c *DriverContainer) Start(t testing.TB, root string) {
	t.Helper()
	if err := unix.Mount(root, c.At, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
}

// Stop unmounts it; containers may still use its files.
func (c *DriverContainer) Stop(t testing.TB) {
	t.Helper()
	if err := unix.Unmount(c.At, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
}

// Restart starts the container again from a copy of root at again, as its image would
// be, and stops it when the test ends.
func (c *DriverContainer) Restart(t testing.TB, root, again string) {
	t.Helper()
	if err := os.CopyFS(again, os.DirFS(root)); err != nil {
		t.Fatal(err)
	}
	c.Start(t, again)
	t.Cleanup(func() { c.Stop(t) })
}
