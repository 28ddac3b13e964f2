package view

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
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

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/mountns"
)

// The test binary runs itself: in a private mount namespace, so that its mounts never reach the
// host, and as a second process that makes the view described by envState and envFiles.
const (
	envState = "VIEW_TEST_STATE"
	envFiles = "VIEW_TEST_FILES"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(envState); dir != "" {
		s, err := state.Open(dir, false)
		if err == nil {
			err = Ensure(s, manyFiles(os.Getenv(envFiles)))
		}
		fmt.Print(err)
		os.Exit(0)
	}
	testtree.InOwnMounts()
	os.Exit(m.Run())
}

var check = testtree.Check

// fixture is a state directory and a directory of driver files.
type fixture struct {
	t     *testing.T
	state *state.State
	files string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	base := t.TempDir()
	s, err := state.Open(filepath.Join(base, "state"), false)
	check(t, err)
	t.Cleanup(func() { _ = unix.Unmount(viewDir(s.Dir()), unix.MNT_DETACH) }) // with all views in it
	f := &fixture{t, s, filepath.Join(base, "driver")}
	check(t, os.Mkdir(f.files, 0o755))
	// The directory of all views is a mount from now on.
	f.ensure(Spec{Driver: "first", Files: []File{{Source: f.file("nvidia-smi", 0o755), Name: "bin/nvidia-smi"}}})
	return f
}

// file makes a file of the driver and returns its path.
func (f *fixture) file(name string, mode fs.FileMode) string {
	f.t.Helper()
	full := filepath.Join(f.files, name)
	check(f.t, errors.Join(os.WriteFile(full, []byte("content of "+name), 0o600), os.Chmod(full, mode)))
	return full
}

// spec is a view of a program and n libraries.
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

// manyFiles is a view of 200 times the same file.
func manyFiles(source string) Spec {
	spec := Spec{Driver: "580.1"}
	for i := range 200 {
		spec.Files = append(spec.Files, File{Source: source, Name: fmt.Sprintf("lib64/lib%d.so", i)})
	}
	return spec
}

// process is a second process that makes the view of manyFiles(source).
func (f *fixture) process(source string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envState+"="+f.state.Dir(), envFiles+"="+source)
	return cmd
}

func (f *fixture) ensure(spec Spec) string {
	f.t.Helper()
	check(f.t, Ensure(f.state, spec))
	return Path(f.state.Dir(), spec)
}

// mountLines are the lines of the mount table at or below dir, "" being the root.
func mountLines(t *testing.T, dir string) (lines []string) {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	check(t, err)
	for line := range strings.Lines(string(data)) {
		if at := strings.Fields(line)[4]; at == dir || strings.HasPrefix(at, dir+"/") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// whole fails the test if dir is not the complete view of spec, mounted once.
func whole(t *testing.T, dir string, spec Spec) {
	t.Helper()
	if lines := mountLines(t, dir); len(lines) != len(spec.Files)+1 {
		t.Errorf("%d mounts for %d files:\n%s", len(lines), len(spec.Files), strings.Join(lines, "\n"))
	}
	for _, f := range spec.Files {
		want, err := os.ReadFile(f.Source)
		check(t, err)
		for _, name := range append([]string{filepath.Base(f.Name)}, f.Links...) {
			got, err := os.ReadFile(filepath.Join(dir, filepath.Dir(f.Name), name))
			if err != nil || string(got) != string(want) {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
	}
}

func TestAViewHoldsTheFilesUnderTheirNamesAndLinks(t *testing.T) {
	f := newFixture(t)
	spec := f.spec("580.1", 3)
	dir := f.ensure(spec)
	whole(t, dir, spec)
	if target, err := os.Readlink(filepath.Join(dir, "lib64/libtest0.so.1")); err != nil || target != "libtest0.so.580.1" {
		t.Errorf("%q, %v", target, err)
	}
	// The same file, not a copy: it is in the page cache once.
	a, err := os.Stat(spec.Files[1].Source)
	check(t, err)
	b, err := os.Stat(filepath.Join(dir, spec.Files[1].Name))
	check(t, err)
	if !os.SameFile(a, b) {
		t.Error("the file is a copy")
	}
	// Names and links stay in their directories.
	spec.Files = append(spec.Files, File{
		Source: f.file("x", 0o644), Name: "../../../../lib64/x.so", Links: []string{"x.so", "../escape", "/absolute"},
	})
	dir = f.ensure(spec)
	for name, want := range map[string]int{"..": 1, "": 2, "bin": 1, "lib64": 10} {
		if entries, err := os.ReadDir(filepath.Join(dir, name)); err != nil || len(entries) != want {
			t.Errorf("%q: %v, %v, want %d entries", name, entries, err, want)
		}
	}
}

func TestAViewCannotBeChangedByRoot(t *testing.T) {
	f := newFixture(t)
	spec := f.spec("580.1", 2)
	dir := f.ensure(spec)
	lib, fresh := filepath.Join(dir, "lib64/libtest0.so.580.1"), filepath.Join(dir, "lib64/new")
	for name, err := range map[string]error{
		"writing a file":     os.WriteFile(lib, []byte("x"), 0o644),
		"through a link":     os.WriteFile(filepath.Join(dir, "lib64/libtest0.so.1"), []byte("x"), 0o644),
		"truncating":         os.Truncate(lib, 0),
		"changing the mode":  os.Chmod(lib, 0o4777),
		"changing the owner": os.Chown(lib, 1000, 1000),
		"making a file":      os.WriteFile(fresh, nil, 0o644),
		"making a directory": os.Mkdir(fresh, 0o755),
		"making a link":      os.Symlink("/etc/shadow", fresh),
		"removing a link":    os.Remove(filepath.Join(dir, "lib64/libtest0.so.1")),
		"making a device":    unix.Mknod(fresh, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))),
	} {
		if !errors.Is(err, unix.EROFS) {
			t.Errorf("%s: %v, want EROFS", name, err)
		}
	}
	for _, line := range mountLines(t, dir) {
		fields := strings.Fields(line)
		if !strings.HasPrefix(fields[5], "ro,nosuid,nodev") || fields[6] != "-" {
			t.Errorf("not private, read-only, nosuid and nodev: %s", line)
		}
	}
	whole(t, dir, spec)
}

func TestAFileThatIsNoDriverFileIsRefused(t *testing.T) {
	f := newFixture(t)
	link, fifo, stranger := filepath.Join(f.files, "link"), filepath.Join(f.files, "fifo"), f.file("stranger", 0o644)
	check(t, errors.Join(os.Symlink("/etc/shadow", link), unix.Mkfifo(fifo, 0o600), os.Chown(stranger, 1000, 0)))
	before := len(mountLines(t, f.state.Dir()))
	for source, says := range map[string]string{
		f.file("setuid", 0o755|fs.ModeSetuid): "set-user-id",
		f.file("setgid", 0o755|fs.ModeSetgid): "set-group-id",
		f.file("all", 0o666):                  "writable by users other than root",
		f.file("group", 0o664):                "writable by users other than root",
		stranger:                              "uid 1000",
		link:                                  "regular",
		f.files:                               "regular",
		fifo:                                  "regular",
		"/dev/null":                           "regular",
		filepath.Join(f.files, "gone"):        "no such file",
	} {
		spec := f.spec("580.1", 2)
		spec.Files = append(spec.Files, File{Source: source, Name: "lib64/x"})
		err := Ensure(f.state, spec)
		if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), source) {
			t.Errorf("%v, want one line about %s that says %q", err, source, says)
		}
		if after := len(mountLines(t, f.state.Dir())); after != before {
			t.Errorf("%d mounts before, %d after", before, after)
		}
	}
	spec := f.spec("580.1", 2)
	whole(t, f.ensure(spec), spec)
}

func TestAViewHoldsFilesThatNoHostHas(t *testing.T) {
	f := newFixture(t)
	// As in a daemon with UMask=0077, on the thread that builds the view.
	umask := func(mask int) { check(t, mountns.Do(func() error { syscall.Umask(mask); return nil })) }
	umask(0o077)
	defer umask(0o022)
	spec := f.spec("580.1", 1)
	spec.Files = append(spec.Files, File{Data: []byte("one"), Name: "share/vulkan/icd.d/nvidia_icd.json"})
	dir := f.ensure(spec)
	name := filepath.Join(dir, "share/vulkan/icd.d/nvidia_icd.json")
	if data, err := os.ReadFile(name); err != nil || string(data) != "one" {
		t.Errorf("%q, %v", data, err)
	}
	for name, want := range map[string]fs.FileMode{"": 0o755, "share": 0o755, "share/vulkan/icd.d": 0o755, "share/vulkan/icd.d/nvidia_icd.json": 0o444} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%q: %v, %v, want %v", name, info.Mode(), err, want)
		}
	}
	if err := os.WriteFile(name, []byte("x"), 0); !errors.Is(err, syscall.EROFS) {
		t.Errorf("root can write to it: %v", err)
	}
}

func TestManyProcessesAtOnceGetOneView(t *testing.T) {
	f := newFixture(t)
	source := f.file("lib.so", 0o644)
	want := Path(f.state.Dir(), manyFiles(source))
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if out, err := f.process(source).CombinedOutput(); err != nil || string(out) != "<nil>" {
				t.Errorf("%v: %s", err, out)
			}
		})
		group.Go(func() {
			err := Ensure(f.state, manyFiles(source))
			if err == nil {
				_, err = os.Stat(filepath.Join(want, "lib64/lib199.so"))
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	whole(t, want, manyFiles(source))
}

// flock(2) needs no write access: root in a container that sees the host's /run can hold the lock.
func TestALockThatIsHeldDoesNotKeepAViewFromBeingBuilt(t *testing.T) {
	f := newFixture(t)
	held, err := os.Open(filepath.Join(viewDir(f.state.Dir()), "lock"))
	check(t, err)
	defer held.Close()
	check(t, unix.Flock(int(held.Fd()), unix.LOCK_EX))
	spec := f.spec("580.1", 2)
	dir := f.ensure(spec)
	whole(t, dir, spec)
	// A second process that builds the same view discards its own.
	check(t, build(dir, spec.Files))
	whole(t, dir, spec)
}

// Two processes without the lock can both make the directory of views a mount, one over the view of
// the other. Here the second one comes while the event of the first is written.
func TestAViewThatIsCoveredIsAnError(t *testing.T) {
	f := newFixture(t)
	spec := f.spec("580.1", 2)
	events := filepath.Join(f.state.Dir(), "events.jsonl")
	check(t, os.Remove(events))
	check(t, unix.Mkfifo(events, 0o600))
	pipe, err := os.OpenFile(events, os.O_RDWR|unix.O_NONBLOCK, 0)
	check(t, err)
	defer pipe.Close()
	for n := 1; n > 0; { // full, so that the event has to wait
		n, _ = unix.Write(int(pipe.Fd()), make([]byte, 4096))
	}
	done := make(chan error, 1)
	go func() { done <- Ensure(f.state, spec) }()
	root := Path(f.state.Dir(), spec)
	for !mounted(root) {
		time.Sleep(time.Millisecond)
	}
	check(t, unix.Mount(viewDir(f.state.Dir()), viewDir(f.state.Dir()), "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(viewDir(f.state.Dir()), unix.MNT_DETACH) })
	go func() { _, _ = io.Copy(io.Discard, pipe) }()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "start the container again") {
		t.Errorf("error %v", err)
	}
}

func TestABuilderThatIsKilledLeavesNothingHalfMade(t *testing.T) {
	f := newFixture(t)
	source := f.file("lib.so", 0o644)
	spec := manyFiles(source)
	root := Path(f.state.Dir(), spec)
	before, killed := len(mountLines(t, f.state.Dir())), 0
	// From before it begins to after it has ended, and again if none was killed in time.
	for i := 0; i < 40 || killed == 0 && i < 400; i++ {
		cmd := f.process(source)
		check(t, cmd.Start())
		time.Sleep(time.Duration(i%40) * 1500 * time.Microsecond)
		check(t, cmd.Process.Kill())
		_ = cmd.Wait()
		if mounted(root) {
			whole(t, root, spec)
			check(t, unmount(root))
		} else {
			killed++
		}
		if after := len(mountLines(t, f.state.Dir())); after != before {
			t.Fatalf("%d mounts before, %d after", before, after)
		}
		if entries, err := os.ReadDir(root); err == nil && len(entries) > 0 {
			t.Fatalf("below the mount point: %v", entries)
		}
	}
	if killed == 0 {
		t.Error("no builder was killed in time")
	}
	whole(t, f.ensure(spec), spec)
}

func TestUnusedViewsOfAnOlderDriverGo(t *testing.T) {
	f := newFixture(t)
	unused, recent, used, same := f.spec("580.1", 2), f.spec("580.1", 3), f.spec("575.1", 2), f.spec("590.1", 3)
	for _, spec := range []Spec{unused, recent, used, same} {
		f.ensure(spec)
	}
	for spec, age := range map[*Spec]time.Duration{&unused: 2 * grace, &recent: grace / 2, &used: 2 * grace, &same: 100 * grace} {
		when := time.Now().Add(-age)
		check(t, os.Chtimes(filepath.Dir(Path(f.state.Dir(), *spec)), when, when))
	}
	f.ensure(used) // is a use

	unusedDir := Path(f.state.Dir(), unused)
	newer := f.spec("590.1", 2)
	whole(t, f.ensure(newer), newer)
	if _, err := os.Stat(filepath.Dir(unusedDir)); !errors.Is(err, fs.ErrNotExist) || len(mountLines(t, unusedDir)) > 0 {
		t.Errorf("an unused view of the old driver is still there: %v", err)
	}
	for _, kept := range []Spec{recent, used, same} {
		whole(t, Path(f.state.Dir(), kept), kept)
	}
}

func TestRemoveLeavesNothingOfTheShims(t *testing.T) {
	f := newFixture(t)
	first, second := f.spec("580.1", 2), f.spec("590.1", 3)
	for _, spec := range []Spec{first, second} {
		f.ensure(spec)
	}
	// Another builder's private mount covers a view.
	check(t, unix.Mount(viewDir(f.state.Dir()), viewDir(f.state.Dir()), "", unix.MS_BIND, ""))
	f.ensure(first)
	check(t, f.state.Store("driver.json", 1))
	f.state.AddEvent(state.Event{Kind: state.ViewBuilt})
	stranger := filepath.Join(f.state.Dir(), "notes")
	check(t, os.WriteFile(stranger, nil, 0o600))
	for _, want := range []int{1, 0} {
		check(t, Remove(f.state))
		check(t, f.state.Remove())
		if left, _ := os.ReadDir(f.state.Dir()); len(left) != want {
			t.Errorf("left: %v, want %d", left, want)
		}
		if left := mountLines(t, f.state.Dir()); len(left) > 0 {
			t.Errorf("still mounted: %q", left)
		}
		_ = os.Remove(stranger)
	}
	if _, err := os.Lstat(f.state.Dir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the state directory: %v", err)
	}
	for _, file := range slices.Concat(first.Files, second.Files) {
		if _, err := os.Lstat(file.Source); file.Source != "" && err != nil {
			t.Error(err)
		}
	}
}

// 128 bits each: no image can find another view of the same name.
func TestTheNameOfAViewIsLong(t *testing.T) {
	driver, files, _ := strings.Cut(Spec{}.key(), "-")
	if len(driver) < 32 || len(files) < 32 {
		t.Errorf("%s-%s", driver, files)
	}
}

// views returns a function that makes a view of its own for each number.
func (f *fixture) views() func(i int) Spec {
	source := f.file("lib.so", 0o644)
	return func(i int) Spec {
		return Spec{Driver: "580.1", Files: []File{{Source: source, Name: fmt.Sprintf("lib64/lib%d.so", i)}}}
	}
}

func TestTheLeastRecentlyUsedOfManyViewsGo(t *testing.T) {
	f := newFixture(t)
	view := f.views()
	for i := range 2 * maxViews {
		f.ensure(view(i))
		when := time.Now().Add(-time.Duration(1+i) * time.Minute)
		check(t, os.Chtimes(filepath.Dir(Path(f.state.Dir(), view(i))), when, when))
	}
	f.ensure(view(maxViews)) // is a use
	f.ensure(view(-1))
	// The fixture's, the new one and the one that was used are the most recent.
	for i := range 2 * maxViews {
		if kept := i < maxViews-3 || i == maxViews; mounted(Path(f.state.Dir(), view(i))) != kept {
			t.Errorf("view %d is there: %v", i, !kept)
		}
	}
	whole(t, Path(f.state.Dir(), view(0)), view(0))
}

// A creation that has just chosen one of them still finds it.
func TestViewsThatWereJustUsedStay(t *testing.T) {
	f := newFixture(t)
	view := f.views()
	var dirs []string
	for i := range maxViews + 2 {
		dirs = append(dirs, f.ensure(view(i)))
		now := time.Now().Add(time.Hour) // however slow this machine is
		check(t, os.Chtimes(filepath.Dir(dirs[i]), now, now))
	}
	for i, dir := range dirs {
		if !mounted(dir) {
			t.Errorf("view %d is gone", i)
		}
	}
}

// They go with a later use of any view: no other need ever be built.
func TestViewsThatWereJustUsedGoLater(t *testing.T) {
	f := newFixture(t)
	view := f.views()
	for i := range 2 * maxViews {
		f.ensure(view(i))
	}
	for i := range 2 * maxViews {
		when := time.Now().Add(-time.Minute)
		check(t, os.Chtimes(filepath.Dir(Path(f.state.Dir(), view(i))), when, when))
	}
	whole(t, f.ensure(view(0)), view(0))
	left := 0
	for i := range 2 * maxViews {
		if mounted(Path(f.state.Dir(), view(i))) {
			left++
		}
	}
	if left > maxViews {
		t.Errorf("%d views are there", left)
	}
}

// /run is shared under systemd: what is attached there shows up in every mount namespace that
// follows it.
func TestAViewBelowASharedMountStaysInThisMountNamespace(t *testing.T) {
	dir, peer := t.TempDir(), t.TempDir()
	check(t, unix.Mount("test", dir, "tmpfs", 0, "mode=0755"))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	check(t, unix.Mount("", dir, "", unix.MS_SHARED, ""))
	check(t, unix.Mount(dir, peer, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(peer, unix.MNT_DETACH) })
	s, err := state.Open(filepath.Join(dir, "state"), false)
	check(t, err)
	spec := newFixture(t).spec("580.1", 1)
	check(t, Ensure(s, spec))
	whole(t, Path(s.Dir(), spec), spec)
	for _, line := range mountLines(t, peer) {
		if strings.Contains(line, "nvidia-shim") || strings.Contains(line, "nvidia-smi") {
			t.Errorf("the view is in the peer too: %s", line)
		}
	}
}
