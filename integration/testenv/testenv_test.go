package testenv_test

import (
	"os"
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

// It sees a container that runs as well, and nothing after the environment's end.
func TestSnapshotSeesContainers(t *testing.T) {
	busybox, err := images.Build("busybox")
	if err != nil {
		t.Fatal(err)
	}
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
