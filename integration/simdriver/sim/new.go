package sim

import (
	"os"
	"path/filepath"
	"testing"
)

// New makes a simulated driver that is gone when the test ends, in a temporary directory where
// o.Dir names none.
func New(t testing.TB, o Options) *Driver {
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
	d, err := Create(t.Context(), o)
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
