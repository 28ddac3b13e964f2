package testtree

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Cgroups are cgroups of version 2 that a test makes below one of its own, which is removed with
// them when the test ends.
type Cgroups struct {
	testing.TB
	Top string
	// Controller is enabled for Top, and File one of its files. Where the kernel has no dmem, it is
	// another controller.
	Controller, File string
}

// files are the controllers that a test may use, with the file that a cgroup has of each.
var files = [][2]string{{"dmem", "dmem.max"}, {"rdma", "rdma.max"}, {"misc", "misc.max"}, {"hugetlb", "hugetlb.2MB.max"}, {"pids", "pids.max"}}

// NewCgroups makes the cgroup.
func NewCgroups(t testing.TB) Cgroups {
	t.Helper()
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
		root = "/sys/fs/cgroup/unified"
	}
	has, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		t.Skipf("NOT TESTED: this host has no cgroups of version 2: %v", err)
	}
	i := slices.IndexFunc(files, func(f [2]string) bool { return slices.Contains(strings.Fields(string(has)), f[0]) })
	if i < 0 {
		t.Skipf("NOT TESTED: cgroups of version 2 have the controllers %q only", has)
	}
	c := Cgroups{t, "", files[i][0], files[i][1]}
	c.Enable(root)
	c.Top, err = os.MkdirTemp(root, "nt-")
	Check(t, err)
	t.Cleanup(func() { c.RemoveCgroup(c.Top) })
	return c
}

// Enable enables the controller for the cgroups below dir.
func (c Cgroups) Enable(dir string) {
	c.Helper()
	Check(c, os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c.Controller), 0))
}

// Make makes a cgroup, by its name below Top. Its ancestors have the controller's files; it has them
// if enabled is true.
func (c Cgroups) Make(name string, enabled bool) string {
	c.Helper()
	dir := filepath.Join(c.Top, name)
	for parent := c.Top; ; {
		next := filepath.Join(parent, strings.Split(strings.TrimPrefix(dir, parent+"/"), "/")[0])
		if next != dir || enabled {
			c.Enable(parent)
		}
		if err := os.Mkdir(next, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			c.Fatal(err)
		}
		if parent = next; next == dir {
			return dir
		}
	}
}

// RemoveCgroup removes a cgroup, and those below it, when its processes have ended.
func (c Cgroups) RemoveCgroup(dir string) {
	c.Helper()
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	Check(c, err)
	for _, e := range entries {
		if e.IsDir() {
			c.RemoveCgroup(filepath.Join(dir, e.Name()))
		}
	}
	for start := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		err := os.Remove(dir)
		if errors.Is(err, unix.EBUSY) && time.Since(start) < time.Minute {
			continue
		}
		if err != nil {
			c.Error(err)
		}
		return
	}
}
