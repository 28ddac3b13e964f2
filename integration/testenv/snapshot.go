package testenv

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// HostState is what a container may have left on the host: sections ("mounts",
// "dev", "processes", "cgroups", "run", the directories that the caller named)
// with one line for each thing.
type HostState struct {
	sections map[string][]string
	retake   func() HostState
}

// Snapshot records the host's mount table, /dev (types, modes, numbers), the
// processes and cgroups of this test process's environments, /run, and the
// content of dirs. What belongs to environments of other test processes is left
// out.
func Snapshot(t testing.TB, dirs ...string) HostState {
	t.Helper()
	take := func() HostState { return takeSnapshot(liveEnvs(), dirs) }
	s := take()
	s.retake = take
	return s
}

// Snapshot is the package's Snapshot for a test that has the environment running
// before and after: the mount table is that of containerd's namespace.
func (e *Env) Snapshot(t testing.TB, dirs ...string) HostState {
	t.Helper()
	take := func() HostState {
		s := takeSnapshot([]*Env{e}, dirs)
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

func takeSnapshot(envs []*Env, dirs []string) HostState {
	s := HostState{sections: map[string][]string{
		"mounts":  mountLines("/proc/self/mountinfo", envs),
		"dev":     listing("/dev", skipDev),
		"cgroups": cgroups(envs),
		"run":     listing("/run", skipRun(envs)),
	}}
	var processes []string
	for _, e := range envs {
		for _, p := range e.processes() {
			processes = append(processes, p.command)
		}
	}
	s.sections["processes"] = processes
	for _, dir := range dirs {
		s.sections[dir] = listing(dir, func(string) bool { return false })
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
			for n := count[line]; n < 0; n++ {
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

var anyID = regexp.MustCompile(prefix + `[0-9a-f]{8}`)

// foreign reports whether text names an environment that is none of envs: one of
// another test process, or of a test that runs at the same time. An environment
// of this process that has stopped is never foreign: what still bears its name
// was left behind.
func foreign(text string, envs []*Env) bool {
	id := anyID.FindString(text)
	if id == "" {
		return false
	}
	if _, ours := known.Load(id); !ours {
		return true
	}
	if _, running := live.Load(id); !running {
		return false
	}
	return !slices.ContainsFunc(envs, func(e *Env) bool { return e.ID == id })
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
		return foreign(m.Mountpoint+" "+m.Root+" "+m.Source+" "+m.VFSOptions, envs), false
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

// skipDev leaves out what other processes of the host make and remove all the
// time: terminals, shared memory, message queues.
func skipDev(path string) bool {
	return slices.Contains([]string{"/dev/pts", "/dev/shm", "/dev/mqueue", "/dev/hugepages", "/dev/fd"}, path)
}

// skipRun leaves out other environments, and the directories that every
// containerd of the host shares.
func skipRun(envs []*Env) func(string) bool {
	return func(path string) bool {
		// util-linux makes /run/mount when the first mount or umount of a boot runs.
		others := []string{"/run/user", "/run/systemd", "/run/udev", "/run/docker", "/run/mount"}
		return slices.Contains(others, path) || foreign(path, envs)
	}
}

// listing is one line for each entry below dir: type, mode, owner, device
// numbers or link target. Symbolic links and other file systems are not entered,
// except the top. Directories that are shared by all containerds (below
// /run/containerd) and a live environment's own are not lines, their content is.
func listing(dir string, skip func(path string) bool) []string {
	var lines []string
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) { // gone between the two calls
				lines = append(lines, err.Error())
			}
			return nil
		}
		if skip(path) {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if path == dir || path == "/run/containerd" || path == runcRoot {
			return nil
		}
		if _, ok := live.Load(filepath.Base(path)); ok && filepath.Dir(path) == runcRoot {
			return nil
		}
		if line := describe(path); line != "" {
			lines = append(lines, line)
		}
		return nil
	})
	return lines
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

// cgroups lists the cgroups of envs below their own directory, and the first
// level of every hierarchy. Deeper levels of others are the business of the program that
// manages the host.
func cgroups(envs []*Env) []string {
	tops := []string{cgroupRoot}
	if hierarchies, err := filepath.Glob(filepath.Join(cgroupRoot, "*", "cgroup.procs")); err == nil {
		for _, h := range hierarchies {
			tops = append(tops, filepath.Dir(h))
		}
	}
	var lines []string
	for _, top := range tops {
		entries, err := os.ReadDir(top)
		if err != nil {
			continue
		}
		for _, entry := range entries {
			path := filepath.Join(top, entry.Name())
			if !entry.IsDir() || foreign(path, envs) {
				continue
			}
			if _, ok := live.Load(entry.Name()); !ok {
				lines = append(lines, path)
			}
		}
	}
	for _, e := range envs {
		for _, own := range e.ownCgroups() {
			_ = filepath.WalkDir(own, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() && path != own {
					lines = append(lines, path)
				}
				return nil
			})
		}
	}
	return lines
}
