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
		t.Cleanup(func() { outside.AssertUnchanged(t) })

		e := testenv.Start(t, testenv.Options{Cgroup: version})
		e.Import(t, busybox)
		before := e.Snapshot(t)

		e.MustRun(t, stock("true"))
		r := e.Run(t, stock("sh", "-c", "exec 2>&1; echo out; echo err >&2; exit 7"))
		if r.Output != "out\nerr\n" || r.Error != "" || r.ExitCode != 7 {
			t.Errorf("got %q, %q, %d; want out and err, nothing and 7", r.Output, r.Error, r.ExitCode)
		}
		o := stock("sh", "-c", "id -u; id -g; echo $A $B; cat /given; touch /x 2>&1")
		given := filepath.Join(t.TempDir(), "given")
		if err := os.WriteFile(given, []byte("from the host\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		o.User, o.Env, o.ReadOnly = "1000:1000", []string{"A=1", "B=2"}, true
		o.Mounts = []string{"type=bind,src=" + given + ",dst=/given,options=rbind:ro"}
		r = e.Run(t, o)
		if want := "1000\n1000\n1 2\nfrom the host\ntouch: /x: Read-only file system\n"; r.Output != want {
			t.Errorf("got %q and %q, want %q", r.Output, r.Error, want)
		}
		before.AssertUnchanged(t)
	})
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
		if got := e.Exec(t, r.ID, "sh", "-c", "echo inside; exit 3"); got.Output != "inside\n" || got.ExitCode != 3 {
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
		before.AssertUnchanged(t)

		id := e.Create(t, stock("sh", "-c", "echo again >>/log; wc -l </log"))
		for _, want := range []string{"1\n", "2\n"} {
			if got := e.StartTask(t, id); got.Output != want {
				t.Errorf("task: got %q (%s), want %q", got.Output, got.Error, want)
			}
		}
		e.Remove(t, id)
		before.AssertUnchanged(t)
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
	before.AssertUnchanged(t)
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
		before.AssertUnchanged(t)
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
