package robustness

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

func TestMain(m *testing.M) { simhost.Main(m) }

// steps are the steps of a creation at which internal/fault can end or fail the shim, in their
// order: those of gpuinject.Apply, "create" just before runc is called, and "mask" just before the
// mask is attached.
var steps = []string{"view", "links", "linker", "edit", "record", "mask-build", "create", "mask"}

// imageName has a loader's cache, so that every step of an injection has work.
const imageName = "usrlib64"

// faultyShim is the shim with fault points, built once for the test binary.
var faultyShim = sync.OnceValues(func() ([]byte, error) {
	root, err := testenv.ModuleRoot()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "faultshim")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "shim")
	cmd := exec.Command("go", "build", "-trimpath", "-tags", "no_grpc,shimfault", "-ldflags", "-s -w", "-o", out, "./cmd/containerd-shim-nvidia-v2")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the shim with fault points: %w\n%s", err, msg)
	}
	return os.ReadFile(out)
})

// host is a host on which a shim can be made to fail, with a directory that containers leave their
// marks in.
type host struct {
	*simhost.Host
	// marks is mounted on /marks in the containers that run describes.
	marks string
	// faultFile holds NVIDIA_SHIM_FAULT for the next shim that is started.
	faultFile string
}

// newHost starts a host. With faults, the shim that containerd finds is a script that puts the
// fault of the moment into the environment and becomes the shim with fault points: containerd need
// not be restarted for each.
func newHost(t *testing.T, o simhost.Options, faults bool) *host {
	t.Helper()
	h := &host{marks: t.TempDir()}
	if faults {
		shim, err := faultyShim()
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		h.faultFile = filepath.Join(dir, "fault")
		real := filepath.Join(dir, "real", "containerd-shim-nvidia-v2")
		writeFile(t, real, shim, 0o755)
		script := fmt.Sprintf("#!/bin/sh\nNVIDIA_SHIM_FAULT=$(cat %s 2>/dev/null)\nexport NVIDIA_SHIM_FAULT\nexec %s \"$@\"\n", h.faultFile, real)
		writeFile(t, filepath.Join(dir, "containerd-shim-nvidia-v2"), []byte(script), 0o755)
		o.Env.ShimDir = dir
	}
	o.Image = imageName
	h.Host = simhost.New(t, o)
	return h
}

func writeFile(t *testing.T, path string, data []byte, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, mode); err != nil {
		t.Fatal(err)
	}
}

// fault sets what happens to the next shim; "" is nothing.
func (h *host) fault(t *testing.T, spec string) {
	t.Helper()
	writeFile(t, h.faultFile, []byte(spec), 0o644)
}

// run is a container that leaves a mark with what it sees of the masked directory, complete or not
// at all, and then does the rest.
func (h *host) run(t *testing.T, id string, gpu int, rest string) testenv.RunOptions {
	t.Helper()
	return testenv.RunOptions{
		ID:     id,
		Env:    []string{"NVIDIA_VISIBLE_DEVICES=" + strconv.Itoa(gpu)},
		Mounts: []string{"type=bind,src=" + h.marks + ",dst=/marks,options=rbind:rw"},
		Args:   []string{"sh", "-c", "ls /proc/driver/nvidia >/marks/." + id + "; mv /marks/." + id + " /marks/" + id + "; " + rest},
	}
}

// mark is what the container left, nil where it never ran.
func (h *host) mark(t *testing.T, id string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(h.marks, id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// settle waits until running containers have left their marks and run their last command: before,
// they have other processes.
func (h *host) settle(t *testing.T) {
	t.Helper()
	testenv.Await(t, "the containers have left their marks", func() bool {
		return !slices.ContainsFunc(h.snapshot(t).Section("processes"), func(s string) bool { return strings.Contains(s, "/marks/") || s == "runc init" })
	})
}

// masked is what a container sees of the masked directory.
const masked = "gpus\nparams\nversion\n"

// look prints what a container has of the driver: expect says what that is.
const look = `ls /dev | grep nvidia; ls /proc/driver/nvidia/gpus; /test/cucount | grep -v "^libcuda "`

// expect is what look prints in a container that has the GPU alone.
func (h *host) expect(gpu int) string {
	g := h.Driver.GPUs[gpu]
	nodes := []string{fmt.Sprintf("nvidia%d", g.Minor), "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}
	slices.Sort(nodes)
	return strings.Join(nodes, "\n") + "\n" + g.BusID + "\n" + "driver 13000\ncount 1\n0 " + g.UUID + "\n"
}

// snapshot is the host with the directories that a container may leave something in: bundles,
// containerd's and the shim's own state.
func (h *host) snapshot(t *testing.T) testenv.HostState {
	t.Helper()
	return h.Snapshot(t, h.State, filepath.Join(h.Root, "io.containerd.runtime.v2.task"), h.Driver.StateDir)
}

// remove deletes task and container of a shim that was killed a moment ago: containerd needs a
// moment to notice.
func (h *host) remove(t *testing.T, id string) {
	t.Helper()
	testenv.Await(t, "container "+id+" can be deleted", func() bool {
		_, _, _ = h.CtrErr("tasks", "rm", "--force", id)
		_, _, err := h.CtrErr("containers", "rm", id)
		return err == nil || strings.Contains(err.Error(), "not found")
	})
}

// checkState asserts that the state directory holds nothing but the cache of what was learned about
// the driver, the lock, and whole views. A view's directory on which nothing is mounted yet may be
// there too: the next create mounts on it.
func (h *host) checkState(t *testing.T) (views []string) {
	t.Helper()
	entries, err := os.ReadDir(h.Driver.StateDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	// A shim that is killed while it stores a value leaves a temporary file until the next one
	// stores that value.
	left := slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return !strings.HasPrefix(e.Name(), ".") })
	if len(left) > 1 {
		t.Errorf("%v were left in the state directory", left)
	}
	roots, err := filepath.Glob(filepath.Join(h.Driver.StateDir, "view", "*", "root"))
	if err != nil {
		t.Fatal(err)
	}
	table := h.MountTable(t)
	for _, root := range roots {
		switch n := strings.Count(table, " "+root+" "); {
		case n > 1:
			t.Errorf("%d mounts lie on each other at %s", n, root)
		case n == 1:
			// Read where containerd is: it may have a mount namespace of its own.
			seen := fmt.Sprintf("/proc/%d/root%s", h.PID(), root)
			if _, err := os.Stat(filepath.Join(seen, "lib64", "libcuda.so.1")); err != nil {
				t.Errorf("the view is not whole: %v", err)
			}
			views = append(views, root)
		default:
			if rest, err := os.ReadDir(root); err != nil || len(rest) > 0 {
				t.Errorf("%s is no mount and holds %v (%v)", root, rest, err)
			}
		}
	}
	return views
}

// Whatever goes wrong, the container has not run, nothing of it is left, and it can be created
// again.
func TestT30T31ACreateThatFailsOrDiesAtAnyStepLeavesNothing(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := newHost(t, simhost.Options{Env: testenv.Options{Cgroup: version}}, true)
		// The view is there before and after.
		h.fault(t, "")
		if got := h.MustRun(t, h.run(t, "warm", 0, look)); got != h.expect(0) {
			t.Fatalf("without a fault the container sees %q, want %q", got, h.expect(0))
		}
		for _, step := range steps {
			for _, action := range []string{"error", "kill"} {
				t.Run(step+" "+action, func(t *testing.T) {
					id := h.NewID()
					h.Create(t, h.run(t, id, 1, look))
					t.Cleanup(func() { h.remove(t, id) })
					before := h.snapshot(t)

					h.fault(t, step+"="+action)
					r := h.StartTask(t, id)
					h.fault(t, "")
					if r.ExitCode == 0 {
						t.Errorf("the container started; it printed %q", r.Output)
					}
					if want := "fault injected at step " + step; action == "error" && !strings.Contains(r.Error, want) {
						t.Errorf("the error is %q, want %q in it", r.Error, want)
					}
					if strings.Count(strings.TrimSpace(r.Error), "\n") > 0 {
						t.Errorf("the error has several lines:\n%s", r.Error)
					}
					if mark := h.mark(t, id); mark != nil {
						t.Errorf("the container ran and saw %q", mark)
					}
					before.AssertUnchanged(t)
					if tasks := h.Ctr(t, "tasks", "ls", "-q"); tasks != "" {
						t.Errorf("containerd still has the tasks %q", tasks)
					}
					h.checkState(t)

					if r := h.StartTask(t, id); r.Output != h.expect(1) || r.ExitCode != 0 {
						t.Errorf("created again it sees %q (%s), want %q", r.Output, r.Error, h.expect(1))
					}
					if mark := h.mark(t, id); string(mark) != masked {
						t.Errorf("created again it sees %q in the masked directory, want %q", mark, masked)
					}
					before.AssertUnchanged(t)
				})
			}
		}
	})
}

// The user reads what is wrong with the state directory, and nothing is left.
func TestT65AStateDirectoryThatCannotBeWrittenIsAClearErrorAndLeavesNothing(t *testing.T) {
	for _, c := range []struct{ name, options, want string }{
		{"full", "mode=0700,size=4k", "no space left on device"},
		{"out of inodes", "mode=0700,nr_inodes=2", "no space left on device"},
		{"read-only", "mode=0700,ro", "read-only file system"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t, simhost.Options{}, false)
			if err := os.Mkdir(h.Driver.StateDir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("state", h.Driver.StateDir, "tmpfs", 0, c.options); err != nil {
				t.Fatal(err)
			}
			// Containers without a GPU do not need it.
			plain := testenv.RunOptions{Args: []string{"true"}}
			h.MustRun(t, plain)
			before := h.snapshot(t)
			r := h.Run(t, h.run(t, h.NewID(), 0, "true"))
			t.Log(strings.TrimSpace(r.Error))
			if r.ExitCode == 0 {
				t.Error("the container started")
			}
			if mark := h.mark(t, r.ID); mark != nil {
				t.Errorf("the container ran and saw %q", mark)
			}
			line := strings.TrimSpace(r.Error)
			if !strings.Contains(line, c.want) || !strings.Contains(line, h.Driver.StateDir) || strings.Contains(line, "\n") {
				t.Errorf("the error is %q, want one line with %q and the directory %s", line, c.want, h.Driver.StateDir)
			}
			// What fitted stays, and is complete.
			before.AssertUnchanged(t, filepath.Join(h.Driver.StateDir, "driver.json"), filepath.Join(h.Driver.StateDir, "events.jsonl"))
			h.MustRun(t, plain)

			if err := unix.Unmount(h.Driver.StateDir, unix.MNT_DETACH); err != nil {
				t.Fatal(err)
			}
			if got := h.MustRun(t, h.run(t, h.NewID(), 0, look)); got != h.expect(0) {
				t.Errorf("with a good state directory the container sees %q, want %q", got, h.expect(0))
			}
		})
	}
}

// Containers continue, others start with the existing view, and one that needs another view gets it
// or is refused.
func TestT65AStateDirectoryThatBecomesReadOnlyOrFull(t *testing.T) {
	const size = 1 << 20
	for name, change := range map[string]func(dir string) (undo func() error, err error){
		"read-only": func(dir string) (func() error, error) {
			remount := func(flags uintptr) error { return unix.Mount("", dir, "", unix.MS_REMOUNT|flags, "") }
			return func() error { return remount(0) }, remount(unix.MS_RDONLY)
		},
		"full": func(dir string) (func() error, error) {
			filler := filepath.Join(dir, "filler")
			err := os.WriteFile(filler, make([]byte, size), 0o600)
			if errors.Is(err, unix.ENOSPC) {
				err = nil
			}
			return func() error { return os.Remove(filler) }, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, simhost.Options{}, false)
			dir := h.Driver.StateDir
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("state", dir, "tmpfs", 0, fmt.Sprintf("mode=0700,size=%d", size)); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
			h.MustRun(t, testenv.RunOptions{Args: []string{"true"}})
			before := h.snapshot(t)
			holder := h.run(t, "holder", 0, "sleep 600")
			holder.Detach = true
			h.Run(t, holder)
			undo, err := change(dir)
			if err != nil {
				t.Fatal(err)
			}
			if got := h.Exec(t, "holder", "sh", "-c", look).Output; got != h.expect(0) {
				t.Errorf("the running container sees %q, want %q", got, h.expect(0))
			}
			if got := h.MustRun(t, h.run(t, h.NewID(), 1, look)); got != h.expect(1) {
				t.Errorf("another sees %q, want %q", got, h.expect(1))
			}
			other := h.run(t, h.NewID(), 2, look)
			other.Env = append(other.Env, "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video")
			r := h.Run(t, other)
			line := strings.TrimSpace(r.Error)
			t.Logf("with another view: exit status %d, %s", r.ExitCode, line)
			if r.ExitCode == 0 && r.Output != h.expect(2) || r.ExitCode != 0 && (!strings.Contains(line, dir) || strings.Contains(line, "\n") || h.mark(t, r.ID) != nil) {
				t.Errorf("with another view it sees %q, error %q", r.Output, line)
			}
			h.Remove(t, "holder")
			if err := undo(); err != nil {
				t.Fatal(err)
			}
			if got := h.MustRun(t, other); got != h.expect(2) {
				t.Errorf("when it can be written again a container sees %q, want %q", got, h.expect(2))
			}
			before.AssertUnchanged(t, dir)
		})
	}
}
