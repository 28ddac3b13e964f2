package testenv_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// The program that asks the kernel for 32-bit programs runs, or the kernel has none.
func TestNeedPrograms32(t *testing.T) { testenv.NeedPrograms32(t) }

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func busybox(t testing.TB) string {
	t.Helper()
	tar, err := images.Build("busybox")
	check(t, err)
	return tar
}

// makeDir makes a directory and returns the function that removes it.
func makeDir(t *testing.T, dir string) func() {
	t.Helper()
	check(t, os.MkdirAll(dir, 0o755))
	return func() { check(t, unix.Rmdir(dir)) }
}

// writeFile makes a file and returns the function that removes it.
func writeFile(t *testing.T, name string) func() {
	t.Helper()
	check(t, os.WriteFile(name, nil, 0o600))
	return func() { check(t, os.Remove(name)) }
}

// run starts a program and returns the function that ends it.
func run(t *testing.T, cmd *exec.Cmd) func() {
	t.Helper()
	check(t, cmd.Start())
	return func() {
		check(t, cmd.Process.Kill())
		_ = cmd.Wait()
	}
}

// cgroupOf is the environment's cgroup, in one of the hierarchies.
func cgroupOf(t *testing.T, e *testenv.Env) string {
	t.Helper()
	for _, pattern := range []string{"*", ""} {
		if found, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup", pattern, e.ID)); len(found) > 0 {
			return found[0]
		}
	}
	t.Fatal("the environment has no cgroup")
	return ""
}

// The snapshot sees each kind of thing that a container may leave behind, and nothing once it is
// gone.
func TestSnapshotSeesWhatIsLeft(t *testing.T) {
	e := testenv.Start(t, testenv.Options{})
	e.Import(t, busybox(t))
	e.Run(t, testenv.RunOptions{ID: "first", Image: images.Ref("busybox"), Runtime: testenv.StockRuntime, Args: []string{"sleep", "600"}, Detach: true})
	state := t.TempDir()
	for _, c := range []struct {
		name string
		// leave leaves something and returns the function that removes it.
		leave func(t *testing.T) func()
		// want begins a line of the difference.
		want string
	}{
		{"a file of the state directory", func(t *testing.T) func() { return writeFile(t, filepath.Join(state, "left")) },
			state + ": + " + filepath.Join(state, "left")},
		{"a record", func(t *testing.T) func() { return writeFile(t, filepath.Join(e.BundleDir("first"), "left.json")) },
			e.State + ": + " + filepath.Join(e.BundleDir("first"), "left.json")},
		{"a mount in the state directory", func(t *testing.T) func() {
			check(t, unix.Mount("none", state, "tmpfs", 0, ""))
			return func() { check(t, unix.Unmount(state, 0)) }
		}, "mounts: + " + state},
		{"a mount of a file of the test elsewhere", func(t *testing.T) func() {
			at := "/run/" + filepath.Base(e.Dir) + ".left"
			remove := makeDir(t, at)
			check(t, unix.Mount(e.Dir, at, "", unix.MS_BIND, ""))
			return func() { check(t, unix.Unmount(at, 0)); remove() }
		}, "mounts: + /run/" + e.ID},
		{"a cgroup of a container", func(t *testing.T) func() { return makeDir(t, filepath.Join(cgroupOf(t, e), "left")) },
			"cgroups: + " + filepath.Join(cgroupOf(t, e), "left")},
		{"a cgroup with the environment's name elsewhere", func(t *testing.T) func() {
			return makeDir(t, filepath.Join(filepath.Dir(cgroupOf(t, e)), e.ID+".left"))
		}, "cgroups: + " + cgroupOf(t, e) + ".left"},
		{"runc's state", func(t *testing.T) func() { return makeDir(t, filepath.Join("/run/containerd/runc", e.ID, "left")) },
			"run: + /run/containerd/runc/" + e.ID + "/left"},
		{"a file of /run", func(t *testing.T) func() { return writeFile(t, "/run/"+e.ID+".lock") }, "run: + /run/" + e.ID + ".lock"},
		{"a shim", func(t *testing.T) func() {
			cmd := exec.Command("sleep", "601")
			cmd.Dir, cmd.Env = e.BundleDir("first"), []string{}
			return run(t, cmd)
		}, "processes: + sleep 601"},
		{"a container's process", func(t *testing.T) func() {
			cmd := exec.Command("sleep", "602")
			cmd.Dir, cmd.Env = "/", []string{}
			end := run(t, cmd)
			check(t, os.WriteFile(filepath.Join(cgroupOf(t, e), "first", "cgroup.procs"), fmt.Append(nil, cmd.Process.Pid), 0))
			return end
		}, "processes: + sleep 602"},
		{"a program of the test", func(t *testing.T) func() {
			cmd := exec.Command("sleep", "603")
			cmd.Dir = "/"
			return run(t, cmd)
		}, "programs: + sleep 603"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := e.Snapshot(t, state, e.State)
			remove := c.leave(t)
			found := testenv.Until(func() bool {
				return strings.Contains("\n"+before.Diff(e.Snapshot(t, state, e.State)), "\n"+c.want)
			})
			diff := before.Diff(e.Snapshot(t, state, e.State))
			remove()
			if !found {
				t.Errorf("the difference lacks %q:\n%s", c.want, diff)
			}
			before.AssertUnchanged(t)
		})
	}
	e.Remove(t, "first")
}

// It sees a container that runs as well, and nothing after the environment's end.
func TestSnapshotSeesContainers(t *testing.T) {
	busybox := busybox(t)
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		outside := testenv.Snapshot(t)
		e := testenv.Start(t, testenv.Options{Cgroup: version})
		e.Import(t, busybox)
		before := e.Snapshot(t)
		e.Run(t, testenv.RunOptions{Image: images.Ref("busybox"), Runtime: testenv.StockRuntime, Args: []string{"sleep", "600"}, Detach: true})
		testenv.Await(t, "a running container is in the snapshot", func() bool {
			diff := before.Diff(e.Snapshot(t))
			return strings.Contains(diff, "sleep 600") && strings.Contains(diff, "containerd's mounts: +") && strings.Contains(diff, "cgroups: +")
		})
		e.Stop(t)
		outside.AssertUnchanged(t)
	})
}

// What another engine of the host has at any moment is in no snapshot.
func TestSnapshotLeavesOtherEnginesOut(t *testing.T) {
	e := testenv.Start(t, testenv.Options{})
	outside, before := testenv.Snapshot(t, e.State), e.Snapshot(t, e.State)
	other := testenv.StartEngine(t, busybox(t), images.Ref("busybox"))
	same := func(when string) {
		t.Helper()
		if diff := before.Diff(e.Snapshot(t, e.State)) + outside.Diff(testenv.Snapshot(t, e.State)); diff != "" {
			t.Errorf("%s, the snapshots differ:\n%s", when, diff)
		}
	}
	same("with another containerd")
	remove := other.Leave(t)
	same("with its container")
	remove()
	same("after its end")
}
