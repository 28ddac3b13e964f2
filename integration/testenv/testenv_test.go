package testenv_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// image builds a named image for a test.
func image(t *testing.T, name string) string {
	t.Helper()
	path, err := images.Build(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// stock is a container of the stock runtime from the busybox image.
func stock(args ...string) testenv.RunOptions {
	return testenv.RunOptions{Image: images.Ref("busybox"), Runtime: testenv.StockRuntime, Args: args}
}

// The harness runs containers under both cgroup versions, gives back what they
// print and how they end, and leaves the host as it was.
func TestRun(t *testing.T) {
	busybox := image(t, "busybox")
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		outside := testenv.Snapshot(t)
		// A cleanup that is registered first runs last: after the environment's.
		t.Cleanup(func() { testenv.AssertUnchanged(t, outside) })

		e := testenv.Start(t, testenv.Options{Cgroup: version})
		e.Import(t, busybox)
		before := e.Snapshot(t)

		e.MustRun(t, stock("true"))
		r := e.Run(t, stock("sh", "-c", "echo out; echo err >&2; exit 7"))
		if r.Stdout != "out\n" || r.Stderr != "err\n" || r.ExitCode != 7 {
			t.Errorf("got %q, %q, %d; want out, err and 7", r.Stdout, r.Stderr, r.ExitCode)
		}
		o := stock("sh", "-c", "id -u; id -g; echo $A $B; cat /given; touch /x 2>&1")
		given := filepath.Join(t.TempDir(), "given")
		if err := os.WriteFile(given, []byte("from the host\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		o.User, o.Env, o.ReadOnly = "1000:1000", []string{"A=1", "B=2"}, true
		o.Mounts = []string{"type=bind,src=" + given + ",dst=/given,options=rbind:ro"}
		r = e.Run(t, o)
		if want := "1000\n1000\n1 2\nfrom the host\ntouch: /x: Read-only file system\n"; r.Stdout != want {
			t.Errorf("got %q and %q, want %q", r.Stdout, r.Stderr, want)
		}
		e.AssertUnchanged(t, before)
	})
}

// A node that was not granted gives EPERM when a container makes it itself, under
// both versions: the device cgroup is in force and seen as such.
func TestDeviceCgroup(t *testing.T) {
	busybox := image(t, "busybox")
	node := filepath.Join(t.TempDir(), "nvidia7")
	if err := unix.Mknod(node, unix.S_IFCHR|0o666, int(unix.Mkdev(195, 7))); err != nil {
		t.Fatal(err)
	}
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		e := testenv.Start(t, testenv.Options{Cgroup: version})
		e.Import(t, busybox)
		if got, want := e.MustRun(t, stock("/test/mkdev", "195:0", "1:3")), "195:0 EPERM\n1:3 OK\n"; got != want {
			t.Errorf("mkdev: got %q, want %q", got, want)
		}
		got := e.MustRun(t, stock("sh", "-c", "mknod /tmp/nvidia0 c 195 0; /test/opendev /tmp/nvidia0 /dev/null /dev/nvidia0"))
		if want := "/tmp/nvidia0 EPERM\n/dev/null OK\n/dev/nvidia0 ENOENT\n"; got != want {
			t.Errorf("opendev: got %q, want %q", got, want)
		}
		// What ctr grants is allowed by the cgroup and has no driver (or has one).
		o := stock("/test/opendev", node)
		o.Extra = []string{"--device", node}
		if got := e.MustRun(t, o); strings.Contains(got, "EPERM") || strings.Contains(got, "ENOENT") {
			t.Errorf("granted node: got %q", got)
		}
	})
}

// The directory of a container's root file system is used as it is.
func TestRootfsDir(t *testing.T) {
	dir := t.TempDir()
	if err := images.Unpack(image(t, "busybox"), dir); err != nil {
		t.Fatal(err)
	}
	e := testenv.Start(t, testenv.Options{})
	o := stock("sh", "-c", "echo written >/mark")
	o.Image, o.RootfsDir = "", dir
	e.MustRun(t, o)
	if got, err := os.ReadFile(filepath.Join(dir, "mark")); err != nil || string(got) != "written\n" {
		t.Errorf("mark: %q, %v", got, err)
	}
}

// A container can be left running, entered, and its task deleted and made again.
func TestLifecycle(t *testing.T) {
	busybox := image(t, "busybox")
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		e := testenv.Start(t, testenv.Options{Cgroup: version})
		e.Import(t, busybox)
		before := e.Snapshot(t)

		o := stock("sleep", "600")
		o.Detach = true
		r := e.Run(t, o)
		if got := e.Exec(t, r.ID, "sh", "-c", "echo inside; exit 3"); got.Stdout != "inside\n" || got.ExitCode != 3 {
			t.Errorf("exec: %+v", got)
		}
		if _, err := os.Stat(filepath.Join(e.BundleDir(r.ID), "config.json")); err != nil {
			t.Errorf("bundle: %v", err)
		}
		if pids := e.ShimPIDs(r.ID); len(pids) != 1 {
			t.Errorf("shims of %s: %v, want one", r.ID, pids)
		}
		if diff := before.Diff(e.Snapshot(t)); !strings.Contains(diff, "sleep 600") || !strings.Contains(diff, "containerd's mounts: +") || !strings.Contains(diff, "cgroups: +") {
			t.Errorf("a running container is not in the snapshot:\n%s", diff)
		}
		e.Restart(t)
		e.Remove(t, r.ID)
		e.AssertUnchanged(t, before)

		id := e.Create(t, stock("sh", "-c", "echo again >>/log; wc -l </log"))
		for _, want := range []string{"1\n", "2\n"} {
			if got := e.StartTask(t, id); got.Stdout != want {
				t.Errorf("task: got %q (%s), want %q", got.Stdout, got.Stderr, want)
			}
		}
		e.Remove(t, id)
		e.AssertUnchanged(t, before)
	})
}

// A command that takes too long is ended, and nothing of it stays.
func TestTimeout(t *testing.T) {
	e := testenv.Start(t, testenv.Options{})
	e.Import(t, image(t, "busybox"))
	before := e.Snapshot(t)
	o := stock("sleep", "600")
	o.Timeout = 3 * time.Second
	if _, err := e.TryRun(t, o); err == nil {
		t.Error("no error")
	}
	e.AssertUnchanged(t, before)
}

// Stop ends what a test has left running, without the daemon's help, and leaves
// nothing.
func TestStopCleansUp(t *testing.T) {
	busybox := image(t, "busybox")
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		before := testenv.Snapshot(t)
		e := testenv.Start(t, testenv.Options{Cgroup: version})
		e.Import(t, busybox)
		o := stock("sleep", "600")
		o.Detach = true
		e.Run(t, o)
		e.Run(t, o)
		e.Stop(t)
		if _, err := os.Stat(e.Dir); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", e.Dir, err)
		}
		testenv.AssertUnchanged(t, before)
	})
}

// The snapshot sees each kind of thing that may be left behind.
func TestSnapshotSees(t *testing.T) {
	state := t.TempDir()
	before := testenv.Snapshot(t, state)
	if diff := before.Diff(testenv.Snapshot(t, state)); diff != "" {
		t.Errorf("two snapshots of the same host differ:\n%s", diff)
	}
	if err := os.WriteFile(filepath.Join(state, "left"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	target := t.TempDir()
	if err := unix.Mount("none", target, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	diff := before.Diff(testenv.Snapshot(t, state))
	if err := unix.Unmount(target, 0); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"mounts: + " + target, state + ": + " + filepath.Join(state, "left")} {
		if !strings.Contains(diff, want) {
			t.Errorf("the difference lacks %q:\n%s", want, diff)
		}
	}
}
