package testenv

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// HostState is what the tests of this process have on the host: sections ("mounts", "dev",
// "processes", "programs", "cgroups", "run", "default places", the directories that the caller named) with one
// line for each thing. What other programs of the host do meanwhile is not in it.
type HostState struct {
	sections map[string][]string
	retake   func() HostState
}

// Snapshot records the mounts, processes, cgroups and files of /run that bear a name of this test
// process (see owned), the host's /dev, the product's default places and the content of dirs.
func Snapshot(t testing.TB, dirs ...string) HostState {
	t.Helper()
	places := absent(defaultPlaces)
	take := func() HostState { return takeSnapshot(liveEnvs(), places, dirs) }
	s := take()
	s.retake = take
	return s
}

// Snapshot is the package's Snapshot for a test that has the environment running
// before and after: the mount table is that of containerd's namespace.
func (e *Env) Snapshot(t testing.TB, dirs ...string) HostState {
	t.Helper()
	places := absent(defaultPlaces)
	take := func() HostState {
		s := takeSnapshot([]*Env{e}, places, dirs)
		s.sections["containerd's mounts"] = mountLines(fmt.Sprintf("/proc/%d/mountinfo", e.PID()), []*Env{e})
		return s
	}
	s := take()
	s.retake = take
	return s
}

func liveEnvs() []*Env {
	var envs []*Env
	live.Range(func(_, value any) bool {
		envs = append(envs, value.(*Env))
		return true
	})
	return envs
}

func takeSnapshot(envs []*Env, places, dirs []string) HostState {
	s := HostState{sections: map[string][]string{
		"mounts":         mountLines("/proc/self/mountinfo", envs),
		"dev":            listing("/dev", isDevice),
		"cgroups":        cgroups(envs),
		"run":            listing("/run", func(path string, _ fs.FileMode) bool { return isOwnRun(path, envs) }),
		"default places": present(places),
		"programs":       commands(),
		"processes":      {},
	}}
	for _, e := range envs {
		for _, p := range e.processes() {
			s.sections["processes"] = append(s.sections["processes"], p.command)
		}
	}
	for _, dir := range dirs {
		s.sections[dir] = listing(dir, func(string, fs.FileMode) bool { return true })
	}
	for _, lines := range s.sections {
		slices.Sort(lines)
	}
	return s
}

// Diff says what is in other and not in s ("+") and the reverse ("-"), one line
// each with its section; it is empty when the host is the same.
func (s HostState) Diff(other HostState) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(s.sections)) { // other has the same
		count := map[string]int{}
		for _, line := range other.sections[name] {
			count[line]++
		}
		for _, line := range s.sections[name] {
			count[line]--
		}
		for _, line := range slices.Sorted(maps.Keys(count)) {
			for n := count[line]; n > 0; n-- {
				fmt.Fprintf(&b, "%s: + %s\n", name, line)
			}
			// A program of the tests that was about to end is not missing.
			for n := count[line]; n < 0 && name != "programs"; n++ {
				fmt.Fprintf(&b, "%s: - %s\n", name, line)
			}
		}
	}
	return b.String()
}

// Section is one section's lines, for tests that look for something certain.
func (s HostState) Section(name string) []string { return s.sections[name] }

// AssertUnchanged fails the test if the host is not as it was. Shims end a moment after
// containerd has answered, so it waits until the host is. Lines of the difference that contain one
// of ignored do not count.
func (s HostState) AssertUnchanged(t testing.TB, ignored ...string) {
	t.Helper()
	var left []string
	Until(func() bool {
		left = nil
		for line := range strings.Lines(s.Diff(s.retake())) {
			if !slices.ContainsFunc(ignored, func(word string) bool { return strings.Contains(line, word) }) {
				left = append(left, line)
			}
		}
		return len(left) == 0
	})
	if len(left) > 0 {
		t.Errorf("the host is not as it was:\n%s", strings.Join(left, ""))
	}
}

// MountTable is the mount table of containerd's namespace, as the kernel prints
// it in mountinfo.
func (e *Env) MountTable(t testing.TB) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", e.PID()))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// mountLines lists a mount table without the identifiers, which differ every time.
func mountLines(table string, envs []*Env) []string {
	f, err := os.Open(table)
	if err != nil {
		return []string{err.Error()}
	}
	defer f.Close()
	mounts, err := mountinfo.GetMountsFromReader(f, func(m *mountinfo.Info) (skip, stop bool) {
		return !isOwnMount(m, envs), false
	})
	if err != nil {
		return []string{err.Error()}
	}
	var lines []string
	for _, m := range mounts {
		lines = append(lines, strings.Join([]string{m.Mountpoint, m.Root, m.Options, m.FSType, m.Source, m.VFSOptions}, " "))
	}
	return lines
}

// listing is one line for each entry below dir for which isOwn is true: type, mode, owner, device
// numbers or link target. Symbolic links and other file systems are not entered, except the top.
func listing(dir string, isOwn func(path string, mode fs.FileMode) bool) []string {
	var lines []string
	device := deviceOf(dir)
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if path == dir {
			return nil
		}
		// An entry may go between two calls.
		if d != nil && isOwn(path, d.Type()) {
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				lines = append(lines, err.Error())
			} else if line := describe(path); line != "" && err == nil {
				lines = append(lines, line)
			}
		}
		if err != nil || d.IsDir() && deviceOf(path) != device {
			return fs.SkipDir
		}
		return nil
	})
	return lines
}

// deviceOf is the number of the file system that a path is on, 0 if there is no such path.
func deviceOf(path string) uint64 {
	var st unix.Stat_t
	_ = unix.Stat(path, &st)
	return st.Dev
}

func describe(path string) string {
	info, err := os.Lstat(path)
	if err != nil {
		return ""
	}
	line := fmt.Sprintf("%s %s", path, info.Mode())
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return line
	}
	line += fmt.Sprintf(" %d:%d", st.Uid, st.Gid)
	switch {
	case info.Mode()&fs.ModeDevice != 0:
		line += fmt.Sprintf(" %d,%d", unix.Major(uint64(st.Rdev)), unix.Minor(uint64(st.Rdev)))
	case info.Mode()&fs.ModeSymlink != 0:
		target, _ := os.Readlink(path)
		line += " -> " + target
	}
	return line
}

// cgroups lists the cgroups of all hierarchies that bear a name of ours. That of a running
// environment is not a line, those below it are.
func cgroups(envs []*Env) []string {
	var lines []string
	_ = filepath.WalkDir(cgroupRoot, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil
		}
		if _, running := live.Load(d.Name()); !running && owned(path, envs) {
			lines = append(lines, path)
		}
		return nil
	})
	return lines
}
