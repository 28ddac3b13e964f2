package testenv

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// CgroupVersions returns the values of Options.Cgroup that are possible on this host: {1, 2} if it
// has v1 hierarchies, {2} if it has pure cgroup v2, none if it has neither.
func CgroupVersions() []int {
	var st unix.Statfs_t
	if err := unix.Statfs(cgroupRoot, &st); err != nil {
		return nil
	}
	if st.Type == unix.CGROUP2_SUPER_MAGIC {
		return []int{2}
	}
	filesystems, err := os.ReadFile("/proc/filesystems")
	if err == nil && strings.Contains(string(filesystems), "\tcgroup2\n") {
		return []int{1, 2}
	}
	return []int{1}
}

// EachCgroup runs test once for each cgroup version that this host can offer, as
// a subtest named after it, and logs the versions that it cannot.
func EachCgroup(t *testing.T, test func(t *testing.T, version int)) {
	t.Helper()
	for _, v := range []int{1, 2} {
		if !slices.Contains(CgroupVersions(), v) {
			t.Logf("NOT TESTED with cgroup v%d: this host's %s does not offer it", v, cgroupRoot)
			continue
		}
		t.Run(fmt.Sprintf("cgroup v%d", v), func(t *testing.T) { test(t, v) })
	}
}

// ownCgroups lists the directories named after this environment, in every
// hierarchy that the host shows: the parents of its containers' cgroups.
func (e *Env) ownCgroups() []string {
	own, _ := filepath.Glob(filepath.Join(cgroupRoot, "*", e.ID)) // hybrid: one directory per hierarchy
	if _, err := os.Lstat(filepath.Join(cgroupRoot, e.ID)); err == nil {
		own = append(own, filepath.Join(cgroupRoot, e.ID)) // pure v2
	}
	return own
}

// removeCgroups removes this environment's cgroups.
func (e *Env) removeCgroups() error {
	for _, top := range e.ownCgroups() {
		if err := RemoveCgroup(top); err != nil {
			return fmt.Errorf("remove cgroups of %s: %w", e.ID, err)
		}
	}
	return nil
}

// RemoveCgroup removes a cgroup and those below it, deepest first. The kernel releases a killed
// process only after a moment, so EBUSY is retried.
func RemoveCgroup(top string) (err error) {
	Until(func() bool {
		err = removeCgroup(top)
		return err == nil || errors.Is(err, fs.ErrNotExist)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func removeCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeCgroup(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	return unix.Rmdir(dir)
}
