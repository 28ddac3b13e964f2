package view

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/mountns"
)

// The test binary runs itself in a mount namespace of its own, so that nothing it
// mounts is ever the host's, and for a second process that wants the same view.
const (
	envInside = "VIEW_TEST_INSIDE"
	envEnsure = "VIEW_TEST_ENSURE"
)

// helper is what a second process is told to do.
type helper struct {
	Dir   string
	Spec  Spec
	Times int
	// Store is the size of a value to keep again and again, until the process is killed.
	Store int
}

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		os.Stderr.WriteString("view: the tests mount file systems: run them as root\n")
		os.Exit(1)
	}
	if task := os.Getenv(envEnsure); task != "" {
		os.Exit(ensureHelper(task))
	}
	if os.Getenv(envInside) != "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), envInside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// The os package makes the mounts of the new namespace private.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		os.Exit(max(1, exit.ExitCode()))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func ensureHelper(task string) int {
	var h helper
	err := json.Unmarshal([]byte(task), &h)
	for h.Store > 0 && err == nil {
		if err = (&State{dir: h.Dir}).Store("v", strings.Repeat("x", h.Store)); err == nil && h.Times == 0 {
			fmt.Println("stored")
			h.Times++
		}
	}
	for n := 0; n < h.Times && err == nil && h.Store == 0; n++ {
		var s *State
		if s, err = OpenState(h.Dir); err == nil {
			var dir string
			if dir, err = s.Ensure(h.Spec); err == nil {
				fmt.Println(dir)
			}
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// command is a second process of the shim.
func (h helper) command(t *testing.T) *exec.Cmd {
	t.Helper()
	task, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envEnsure+"="+string(task))
	return cmd
}

// fixture is a state directory and a directory of driver files.
type fixture struct {
	t     testing.TB
	state *State
	dir   string
	files string
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	base := t.TempDir()
	check(t, os.Chmod(filepath.Dir(base), 0o755))
	check(t, os.Chmod(base, 0o755))
	f := &fixture{t: t, dir: filepath.Join(base, "state"), files: filepath.Join(base, "driver")}
	check(t, os.Mkdir(f.files, 0o755))
	var err error
	f.state, err = OpenState(f.dir)
	check(t, err)
	t.Cleanup(func() { check(t, f.state.Remove()) })
	return f
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// file makes a file of the driver and returns its path.
func (f *fixture) file(name string, mode fs.FileMode) string {
	f.t.Helper()
	full := filepath.Join(f.files, name)
	check(f.t, os.WriteFile(full, []byte("content of "+name), 0o600))
	check(f.t, os.Chmod(full, mode))
	return full
}

// spec is a view of n libraries and a program.
func (f *fixture) spec(driver string, n int) Spec {
	f.t.Helper()
	spec := Spec{Driver: driver, Files: []File{{Source: f.file("nvidia-smi", 0o755), Name: "bin/nvidia-smi"}}}
	for i := range n {
		name := fmt.Sprintf("libtest%d.so.%s", i, driver)
		spec.Files = append(spec.Files, File{
			Source: f.file(name, 0o644), Name: "lib64/" + name,
			Links: []string{fmt.Sprintf("libtest%d.so.1", i), fmt.Sprintf("libtest%d.so", i)},
		})
	}
	return spec
}

func (f *fixture) ensure(spec Spec) string {
	f.t.Helper()
	dir, err := f.state.Ensure(spec)
	check(f.t, err)
	return dir
}

// mountLines are the lines of the mount table at or below dir.
func mountLines(t testing.TB, dir string) []string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	check(t, err)
	var lines []string
	for line := range strings.Lines(string(data)) {
		if at := strings.Fields(line)[4]; at == dir || strings.HasPrefix(at, dir+"/") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// whole fails the test if dir is not the complete view of spec, mounted once.
func whole(t testing.TB, dir string, spec Spec) {
	t.Helper()
	if lines := mountLines(t, dir); len(lines) != len(spec.Files)+1 {
		t.Errorf("%d mounts, want one for the view and one for each of %d files:\n%s", len(lines), len(spec.Files), strings.Join(lines, "\n"))
	}
	for _, f := range spec.Files {
		want, err := os.ReadFile(f.Source)
		check(t, err)
		for _, name := range append([]string{filepath.Base(f.Name)}, f.Links...) {
			got, err := os.ReadFile(filepath.Join(dir, filepath.Dir(f.Name), name))
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
	}
}

func TestAViewHoldsTheFilesUnderTheirNamesAndLinks(t *testing.T) {
	f := newFixture(t)
	spec := f.spec("580.1", 3)
	spec.Files = append(spec.Files, File{
		Source: f.file("dri", 0o644), Name: "lib64/gbm/nvidia-drm_gbm.so",
		// None of these may be made: itself, one with a slash.
		Links: []string{"nvidia-drm_gbm.so", "../escape", "/absolute"},
	})
	dir := f.ensure(spec)
	if dir != filepath.Join(f.dir, "view", spec.key(), "root") {
		t.Errorf("it is at %s", dir)
	}
	made := Spec{Files: slices.Clone(spec.Files)}
	made.Files[len(made.Files)-1].Links = nil
	whole(t, dir, made)
	if target, err := os.Readlink(filepath.Join(dir, "lib64/libtest0.so.1")); err != nil || target != "libtest0.so.580.1" {
		t.Errorf("%q, %v", target, err)
	}
	for name, want := range map[string]int{"": 2, "bin": 1, "lib64": 10, "lib64/gbm": 1} {
		entries, err := os.ReadDir(filepath.Join(dir, name))
		if err != nil || len(entries) != want {
			t.Errorf("%q: %v, %v, want %d entries", name, entries, err, want)
		}
	}
	// The same file, not a copy: it is in the page cache once.
	var a, b unix.Stat_t
	check(t, unix.Stat(spec.Files[1].Source, &a))
	check(t, unix.Stat(filepath.Join(dir, spec.Files[1].Name), &b))
	if a.Ino != b.Ino || a.Dev != b.Dev {
		t.Error("the file is a copy")
	}
	if again := f.ensure(spec); again != dir {
		t.Errorf("the second time at %s", again)
	}
	if info, err := os.Stat(f.dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the state directory has mode %v, %v", info.Mode(), err)
	}
}

func TestAViewCannotBeChangedByRoot(t *testing.T) {
	f := newFixture(t)
	spec := f.spec("580.1", 2)
	dir := f.ensure(spec)
	lib := filepath.Join(dir, "lib64/libtest0.so.580.1")
	for name, do := range map[string]func() error{
		"writing a file":    func() error { return os.WriteFile(lib, []byte("x"), 0o644) },
		"through a link":    func() error { return os.WriteFile(filepath.Join(dir, "lib64/libtest0.so.1"), []byte("x"), 0o644) },
		"truncating":        func() error { return os.Truncate(lib, 0) },
		"changing the mode": func() error { return os.Chmod(lib, 0o4777) },
		"changing the owner": func() error {
			return os.Chown(lib, 1000, 1000)
		},
		"making a file":      func() error { return os.WriteFile(filepath.Join(dir, "lib64/new"), nil, 0o644) },
		"making a directory": func() error { return os.Mkdir(filepath.Join(dir, "new"), 0o755) },
		"making a link":      func() error { return os.Symlink("/etc/shadow", filepath.Join(dir, "lib64/new")) },
		"removing a link":    func() error { return os.Remove(filepath.Join(dir, "lib64/libtest0.so.1")) },
		"making a device": func() error {
			return unix.Mknod(filepath.Join(dir, "new"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))
		},
	} {
		if err := do(); !errors.Is(err, unix.EROFS) {
			t.Errorf("%s: %v, want EROFS", name, err)
		}
	}
	for _, line := range mountLines(t, dir) {
		fields := strings.Fields(line)
		for _, option := range []string{"ro", "nosuid", "nodev"} {
			if !strings.Contains(","+fields[5]+",", ","+option+",") {
				t.Errorf("not %s: %s", option, line)
			}
		}
		if fields[6] != "-" {
			t.Errorf("not private: %s", line)
		}
	}
	whole(t, dir, spec)
}

func TestAFileThatIsNoDriverFileIsRefused(t *testing.T) {
	for _, test := range []struct {
		name, says string
		make       func(f *fixture) string
	}{
		{"a setuid program", "setuid", func(f *fixture) string { return f.file("x", 0o755|fs.ModeSetuid) }},
		{"a setgid program", "setgid", func(f *fixture) string { return f.file("x", 0o755|fs.ModeSetgid) }},
		{"a file that anyone can write", "anyone", func(f *fixture) string { return f.file("x", 0o666) }},
		{"a link to a file of the host", "regular", func(f *fixture) string {
			check(f.t, os.Symlink("/etc/shadow", filepath.Join(f.files, "x")))
			return filepath.Join(f.files, "x")
		}},
		{"a directory", "regular", func(f *fixture) string { return f.files }},
		{"the host's root", "regular", func(*fixture) string { return "/" }},
		{"a FIFO", "regular", func(f *fixture) string {
			check(f.t, unix.Mkfifo(filepath.Join(f.files, "x"), 0o600))
			return filepath.Join(f.files, "x")
		}},
		{"a device", "regular", func(*fixture) string { return "/dev/null" }},
		{"a file that is gone", "no such file", func(f *fixture) string { return filepath.Join(f.files, "gone") }},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFixture(t)
			before := len(mountLines(t, "/"))
			spec := f.spec("580.1", 2)
			source := test.make(f)
			spec.Files = append(spec.Files, File{Source: source, Name: "lib64/x"})
			_, err := f.state.Ensure(spec)
			if err == nil || !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), source) {
				t.Errorf("%v, want one line about %s that says %q", err, source, test.says)
			}
			if after := len(mountLines(t, "/")); after != before {
				t.Errorf("%d mounts before, %d after", before, after)
			}
			// What was wrong with one view does not stop the next.
			spec.Files = spec.Files[:3]
			whole(t, f.ensure(spec), spec)
		})
	}
}

func TestNamesOfAViewStayInIt(t *testing.T) {
	f := newFixture(t)
	spec := Spec{Driver: "580.1", Files: []File{{Source: f.file("a", 0o644), Name: "../../../../escape"}}}
	dir := f.ensure(spec)
	if _, err := os.Stat(filepath.Join(dir, "escape")); err != nil {
		t.Error(err)
	}
	if names, _ := os.ReadDir(filepath.Join(f.dir, "view", spec.key())); len(names) != 1 {
		t.Errorf("beside the view: %v", names)
	}
}

func TestAViewHoldsFilesThatNoHostHas(t *testing.T) {
	f := newFixture(t)
	// As in a daemon with UMask=0077, on the thread that will build the view.
	umask := func(mask int) {
		check(t, mountns.Do(func() error { syscall.Umask(mask); return nil }))
	}
	umask(0o077)
	defer umask(0o022)
	spec := f.spec("580.1", 1)
	with := func(text string) (Spec, string) {
		s := Spec{Driver: spec.Driver, Files: append(slices.Clone(spec.Files), File{Data: []byte(text), Name: "share/vulkan/icd.d/nvidia_icd.json"})}
		return s, f.ensure(s)
	}
	one, dir := with("one")
	name := filepath.Join(dir, "share/vulkan/icd.d/nvidia_icd.json")
	data, err := os.ReadFile(name)
	check(t, err)
	info, err := os.Stat(name)
	check(t, err)
	if string(data) != "one" || info.Mode() != 0o444 {
		t.Errorf("%q, %v", data, info.Mode())
	}
	for _, d := range []string{"", "share", "share/vulkan/icd.d", "lib64"} {
		info, err := os.Stat(filepath.Join(dir, d))
		check(t, err)
		if info.Mode().Perm() != 0o755 {
			t.Errorf("/%s is %v: who is not root cannot enter it", d, info.Mode())
		}
	}
	if err := os.WriteFile(name, []byte("x"), 0); !errors.Is(err, syscall.EROFS) {
		t.Errorf("root can write to it: %v", err)
	}
	if _, other := with("two"); other == dir || f.state.Path(one) != dir {
		t.Error("views with other content are one view")
	}
}

func TestManyCreatesAtOnceGetOneView(t *testing.T) {
	const goroutines, processes, times = 16, 4, 5
	f := newFixture(t)
	spec := f.spec("580.1", 30)
	want := filepath.Join(f.dir, "view", spec.key(), "root")
	var wg sync.WaitGroup
	for range processes {
		wg.Go(func() {
			out, err := helper{Dir: f.dir, Spec: spec, Times: times}.command(t).CombinedOutput()
			if err != nil || strings.TrimSpace(string(out)) != strings.TrimSpace(strings.Repeat(want+"\n", times)) {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	for range goroutines {
		wg.Go(func() {
			s, err := OpenState(f.dir)
			if err != nil {
				t.Error(err)
				return
			}
			if dir, err := s.Ensure(spec); err != nil || dir != want {
				t.Errorf("%q, %v", dir, err)
				return
			}
			// Whoever has an answer can use it at once.
			if _, err := os.Stat(filepath.Join(want, "lib64/libtest29.so.1")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	whole(t, want, spec)
}

func TestDifferentSelectionsAreDifferentViews(t *testing.T) {
	f := newFixture(t)
	one, two := f.spec("580.1", 2), f.spec("580.1", 3)
	other := f.spec("590.1", 2)
	dirs := map[string]bool{f.ensure(one): true, f.ensure(two): true, f.ensure(other): true}
	if len(dirs) != 3 {
		t.Errorf("%v", dirs)
	}
	whole(t, f.ensure(one), one)
	whole(t, f.ensure(two), two)
	whole(t, f.ensure(other), other)
}

func TestNoTwoListsOfFilesHaveOneKey(t *testing.T) {
	keys := map[string]bool{}
	lists := [][]File{
		nil,
		{{Source: "/a", Name: "b"}},
		{{Source: "/ab", Name: ""}},
		{{Source: "/a\"", Name: "b"}},
		{{Name: "b", Data: []byte("/a")}},
		{{Name: "b", Data: []byte{}}},
		{{Name: "b"}},
		{{Source: "/a", Name: "b", Links: []string{"c"}}},
		{{Source: "/a", Name: "b", Links: []string{"c", "d"}}},
		{{Source: "/a", Name: "b", Links: []string{"cd"}}},
		{{Source: "/a", Name: "b", Data: []byte("c")}},
		{{Source: "/a", Name: "b"}, {Source: "c", Name: "d"}},
		{{Source: "/a", Name: "b", Links: []string{"c", "d"}}, {}},
	}
	for _, files := range lists {
		keys[Spec{Driver: "580.1", Files: files}.key()] = true
	}
	if len(keys) != len(lists) {
		t.Errorf("%d lists have %d keys", len(lists), len(keys))
	}
}

func TestAViewThatSomebodyUnmountedIsBuiltAgain(t *testing.T) {
	f := newFixture(t)
	spec := f.spec("580.1", 3)
	dir := f.ensure(spec)
	check(t, unix.Unmount(dir, unix.MNT_DETACH))
	if lines := mountLines(t, dir); len(lines) != 0 {
		t.Fatalf("%q", lines)
	}
	whole(t, f.ensure(spec), spec)
	check(t, unix.Unmount(dir, unix.MNT_DETACH))
	check(t, os.RemoveAll(filepath.Join(f.dir, "view")))
	whole(t, f.ensure(spec), spec)
}

// age makes the last use of a view as long ago as that.
func age(t *testing.T, root string, d time.Duration) {
	t.Helper()
	when := time.Now().Add(-d)
	check(t, os.Chtimes(filepath.Dir(root), when, when))
}

func TestViewsOfAnOlderDriverGoWhenNobodyCanBeUsingThem(t *testing.T) {
	f := newFixture(t)
	unused, recent := f.spec("580.1", 2), f.spec("580.1", 3)
	used := f.spec("575.1", 2)
	unusedDir, recentDir, usedDir := f.ensure(unused), f.ensure(recent), f.ensure(used)
	age(t, unusedDir, 2*grace)
	age(t, recentDir, grace/2)
	age(t, usedDir, 2*grace)
	f.ensure(used) // is a use

	// A container that has the view keeps it.
	container := exec.Command("/bin/sh", "-c", `mount --rbind "$1" "$2" && umount -l "$1" && echo ready && read line && cat "$2"/lib64/libtest1.so`, "sh", unusedDir, t.TempDir())
	container.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	in, err := container.StdinPipe()
	check(t, err)
	out, err := container.StdoutPipe()
	check(t, err)
	container.Stderr = os.Stderr
	check(t, container.Start())
	buf := make([]byte, 6)
	if _, err := out.Read(buf); err != nil || string(buf) != "ready\n" {
		t.Fatalf("%q, %v", buf, err)
	}

	newer := f.spec("590.1", 2)
	newerDir := f.ensure(newer)
	if lines := mountLines(t, unusedDir); len(lines) != 0 {
		t.Errorf("an unused view of the old driver is still mounted: %q", lines)
	}
	if _, err := os.Stat(filepath.Dir(unusedDir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its directory: %v", err)
	}
	whole(t, recentDir, recent)
	whole(t, usedDir, used)
	whole(t, newerDir, newer)

	_, err = in.Write([]byte("\n"))
	check(t, err)
	data := make([]byte, 100)
	n, _ := out.Read(data)
	if want := "content of libtest1.so.580.1"; string(data[:n]) != want {
		t.Errorf("the container reads %q, want %q", data[:n], want)
	}
	check(t, container.Wait())
}

func TestViewsOfTheSameDriverStayHoweverOld(t *testing.T) {
	f := newFixture(t)
	old := f.spec("580.1", 2)
	dir := f.ensure(old)
	age(t, dir, 100*grace)
	f.ensure(f.spec("580.1", 3))
	whole(t, dir, old)
}

func TestABuilderThatIsKilledLeavesNothingHalfMade(t *testing.T) {
	f := newFixture(t)
	spec := f.spec("580.1", 200)
	before := len(mountLines(t, "/"))
	root := filepath.Join(f.dir, "view", spec.key(), "root")
	killed, finished := 0, 0
	longest := 60 * time.Millisecond
	for range 40 {
		cmd := helper{Dir: f.dir, Spec: spec, Times: 1}.command(t)
		check(t, cmd.Start())
		time.Sleep(time.Duration(rand.Int64N(int64(longest))))
		check(t, cmd.Process.Kill())
		_ = cmd.Wait()
		if mounted(root) {
			finished++
			whole(t, root, spec)
			check(t, unix.Unmount(root, unix.MNT_DETACH))
		} else {
			killed++
		}
		if after := len(mountLines(t, "/")); after != before {
			t.Fatalf("%d mounts before, %d after", before, after)
		}
		if entries, err := os.ReadDir(root); err == nil && len(entries) > 0 {
			t.Fatalf("below the mount point: %v", entries)
		}
	}
	if killed == 0 {
		t.Error("no builder was killed in time")
	}
	t.Logf("%d killed before the view was there, %d after", killed, finished)
	whole(t, f.ensure(spec), spec)
}

func TestAStateDirectoryThatOthersCanChangeIsRefused(t *testing.T) {
	for _, test := range []struct {
		name, says string
		make       func(t *testing.T, parent, dir string)
	}{
		{"owned by somebody else", "uid 1000", func(t *testing.T, _, dir string) {
			check(t, os.Mkdir(dir, 0o700))
			check(t, os.Chown(dir, 1000, 1000))
		}},
		{"writable by everybody", "chmod", func(t *testing.T, _, dir string) {
			check(t, os.Mkdir(dir, 0o700))
			check(t, os.Chmod(dir, 0o777))
		}},
		{"writable by a group", "chmod", func(t *testing.T, _, dir string) {
			check(t, os.Mkdir(dir, 0o700))
			check(t, os.Chmod(dir, 0o770))
		}},
		{"sticky and writable by everybody", "chmod", func(t *testing.T, _, dir string) {
			check(t, os.Mkdir(dir, 0o700))
			check(t, os.Chmod(dir, 0o777|fs.ModeSticky))
		}},
		{"a link to another directory", "not a directory", func(t *testing.T, parent, dir string) {
			check(t, os.Mkdir(filepath.Join(parent, "other"), 0o700))
			check(t, os.Symlink("other", dir))
		}},
		{"a file", "directory", func(t *testing.T, _, dir string) { check(t, os.WriteFile(dir, nil, 0o600)) }},
		{"in a directory that everybody can write to", "chmod", func(t *testing.T, parent, _ string) {
			check(t, os.Chmod(parent, 0o777))
		}},
		{"in a directory of somebody else", "uid 1000", func(t *testing.T, parent, _ string) {
			check(t, os.Chown(parent, 1000, 1000))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			base := t.TempDir()
			check(t, os.Chmod(base, 0o755))
			parent := filepath.Join(base, "parent")
			check(t, os.Mkdir(parent, 0o755))
			dir := filepath.Join(parent, "state")
			test.make(t, parent, dir)
			_, err := OpenState(dir)
			if err == nil || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want one line with %q", err, test.says)
			}
		})
	}
}

func TestAStateDirectoryMayBeReachedThroughALinkOfRoots(t *testing.T) {
	base := t.TempDir()
	check(t, os.Mkdir(filepath.Join(base, "run"), 0o755))
	check(t, os.Mkdir(filepath.Join(base, "var"), 0o755))
	check(t, os.Symlink("../run", filepath.Join(base, "var/run")))
	if _, err := OpenState(filepath.Join(base, "var/run/nvidia-shim")); err != nil {
		t.Error(err)
	}
	// But not where somebody else decides where the link leads.
	check(t, os.Lchown(filepath.Join(base, "var/run"), 1000, 1000))
	if _, err := OpenState(filepath.Join(base, "var/run/nvidia-shim")); err == nil {
		t.Error("a link of somebody else was followed")
	}
}

func TestAStateDirectoryIsMadeWithItsParents(t *testing.T) {
	base := t.TempDir()
	check(t, os.Chmod(base, 0o777|fs.ModeSticky)) // as /tmp
	dir := filepath.Join(base, "a/b/state")
	if _, err := OpenState(dir); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestAStoredValueIsReadBackOrNotAtAll(t *testing.T) {
	f := newFixture(t)
	type value struct {
		Version string
		Files   []string
	}
	want := value{"580.1", []string{"a", "b"}}
	check(t, f.state.Store("driver.json", want))
	var got value
	if !f.state.Load("driver.json", &got) || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v", got)
	}
	if f.state.Load("other.json", &got) {
		t.Error("a value that was never stored was found")
	}
	name := filepath.Join(f.dir, "driver.json")
	data, err := os.ReadFile(name)
	check(t, err)
	// T62: truncated, and every bit flipped.
	for n := range data {
		check(t, os.WriteFile(name, data[:n], 0o600))
		if f.state.Load("driver.json", &value{}) {
			t.Errorf("cut to %d of %d bytes it was taken", n, len(data))
		}
		for bit := range 8 {
			flipped := bytes.Clone(data)
			flipped[n] ^= 1 << bit
			check(t, os.WriteFile(name, flipped, 0o600))
			if f.state.Load("driver.json", &value{}) {
				t.Errorf("with bit %d of byte %d flipped it was taken", bit, n)
			}
		}
	}
	check(t, os.WriteFile(name, append(bytes.Clone(data), '\n'), 0o600))
	if f.state.Load("driver.json", &value{}) {
		t.Error("with a byte more it was taken")
	}
	check(t, f.state.Store("driver.json", want))
	if !f.state.Load("driver.json", &got) {
		t.Error("it was not stored again")
	}
	if entries, _ := os.ReadDir(f.dir); len(entries) != 1 {
		t.Errorf("left: %v", entries)
	}
}

func TestStoringAtTheSameTimeNeverTearsAValue(t *testing.T) {
	f := newFixture(t)
	check(t, f.state.Store("v", strings.Repeat("x", 10)))
	load := func() {
		var s string
		if !f.state.Load("v", &s) || s == "" || strings.Trim(s, "x") != "" {
			t.Errorf("%.20q", s)
		}
	}
	var writers, reader sync.WaitGroup
	for n := range 4 {
		writers.Go(func() {
			for range 50 {
				if err := f.state.Store("v", strings.Repeat("x", 1+n*10000)); err != nil {
					t.Error(err)
				}
				load()
			}
		})
	}
	stored := make(chan struct{})
	reader.Go(func() {
		for {
			select {
			case <-stored:
				return
			default:
				load()
			}
		}
	})
	writers.Wait()
	close(stored)
	reader.Wait()
}

// A process that is killed while it stores a value leaves no other file, and nothing
// that the next one could not store over.
func TestAKilledStoreLeavesNothingElse(t *testing.T) {
	f := newFixture(t)
	for n := range 30 {
		cmd := helper{Dir: f.dir, Store: 1 << 20}.command(t)
		out, err := cmd.StdoutPipe()
		check(t, err)
		check(t, cmd.Start())
		_, err = out.Read(make([]byte, 1))
		time.Sleep(time.Duration(n) * 100 * time.Microsecond)
		check(t, cmd.Process.Kill())
		_ = cmd.Wait()
		check(t, err)
		entries, err := os.ReadDir(f.dir)
		check(t, err)
		for _, e := range entries {
			if e.Name() != "v" {
				t.Fatalf("%s was left", e.Name())
			}
		}
		check(t, f.state.Store("v", "whole"))
		var s string
		if !f.state.Load("v", &s) || s != "whole" {
			t.Fatalf("stored again it is %.20q", s)
		}
	}
}

// A shim that was stopped while it stores a value keeps the others for a moment only.
func TestAStoppedStoreStopsNobody(t *testing.T) {
	f := newFixture(t)
	held, err := f.state.exclusive()
	check(t, err)
	began := time.Now()
	check(t, f.state.Store("v", "x"))
	if f.state.Load("v", new(string)) {
		t.Error("stored without the lock")
	}
	if took := time.Since(began); took < storeTimeout || took > 20*storeTimeout {
		t.Errorf("took %v", took)
	}
	held.Close()
	check(t, f.state.Store("v", "x"))
	if !f.state.Load("v", new(string)) {
		t.Error("not stored with the lock")
	}
}

// What is no file of ours is not written to, and gone when a value was stored.
func TestAValueIsStoredInAFileOfItsOwn(t *testing.T) {
	f := newFixture(t)
	other := filepath.Join(t.TempDir(), "other")
	check(t, os.WriteFile(other, []byte("theirs"), 0o666))
	name := filepath.Join(f.dir, "v")
	for what, make := range map[string]func() error{
		"a link":               func() error { return os.Symlink(other, name) },
		"another name":         func() error { return os.Link(other, name) },
		"one of somebody else": func() error { return errors.Join(os.WriteFile(name, nil, 0o600), os.Chown(name, 1234, 1234)) },
		"one that others may write": func() error {
			return errors.Join(os.WriteFile(name, nil, 0o600), os.Chmod(name, 0o666))
		},
	} {
		check(t, make())
		check(t, f.state.Store("v", what))
		var s string
		if !f.state.Load("v", &s) || s != what {
			t.Errorf("%s: stored is %q", what, s)
		}
		if data, err := os.ReadFile(other); err != nil || string(data) != "theirs" {
			t.Errorf("%s: the other file holds %.20q (%v)", what, data, err)
		}
		check(t, os.Remove(name))
	}
}

func TestRemoveTakesEverythingAway(t *testing.T) {
	f := newFixture(t)
	dir := f.ensure(f.spec("580.1", 3))
	f.ensure(f.spec("590.1", 3))
	check(t, f.state.Remove())
	if lines := mountLines(t, dir); len(lines) != 0 {
		t.Errorf("%q", lines)
	}
	if _, err := os.Stat(f.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if entries, _ := os.ReadDir(f.files); len(entries) != 7 {
		t.Errorf("the driver's own files: %v", entries)
	}
}

// /run is shared under systemd: what is attached there shows up in every mount
// namespace that follows it.
func TestAViewBelowASharedMountStaysInThisMountNamespace(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("test", dir, "tmpfs", 0, "mode=0755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	peer := t.TempDir()
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(dir, peer, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(peer, unix.MNT_DETACH) })
	s, err := OpenState(filepath.Join(dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(t.TempDir(), "lib.so")
	if err := os.WriteFile(source, []byte("x"), 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := s.Ensure(Spec{Driver: "1", Files: []File{{Source: source, Name: "lib64/lib.so"}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "lib64/lib.so")); err != nil {
		t.Error(err)
	}
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); strings.HasPrefix(f[4], peer+"/") && strings.Contains(line, "nvidia-shim") || strings.HasPrefix(f[4], peer+"/") && strings.Contains(line, "lib.so") {
			t.Errorf("the view is in the peer too: %s", line)
		}
	}
	if err := s.Remove(); err != nil {
		t.Error(err)
	}
}
