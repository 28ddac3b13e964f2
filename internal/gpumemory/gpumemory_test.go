package gpumemory

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/memlimit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

var check = testtree.Check

func TestMain(m *testing.M) {
	testtree.InOwnMounts()
	os.Exit(m.Run())
}

// mountCgroups makes root a hierarchy of cgroup v2.
func mountCgroups(t *testing.T) {
	t.Helper()
	root = t.TempDir()
	check(t, unix.Mount("cgroup2", root, "cgroup2", 0, ""))
	t.Cleanup(func() { check(t, unix.Unmount(root, unix.MNT_DETACH)) })
}

// newProcess starts a process in a new cgroup, which end ends. The cgroup is removed with the test.
func newProcess(t *testing.T, name string) (pid int, dir string, end func()) {
	t.Helper()
	dir = filepath.Join(root, fmt.Sprintf("nvidia-shim-%d-%s", os.Getpid(), name))
	check(t, os.MkdirAll(dir, 0o755))
	f, err := os.Open(dir)
	check(t, err)
	defer f.Close()
	cmd := exec.Command("/bin/sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(f.Fd()), Pdeathsig: unix.SIGKILL}
	check(t, cmd.Start())
	ended := false
	end = func() {
		if !ended {
			ended = true
			check(t, cmd.Process.Kill())
			_ = cmd.Wait()
		}
	}
	t.Cleanup(func() {
		end()
		_ = os.Remove(dir)
	})
	return cmd.Process.Pid, dir, end
}

// driver answers for the probe.
type driver struct {
	set []probe.MemoryLimit
	// released has a line for each GPU: the cgroup, the UUID and the bytes.
	released []string
	err      error
}

func (d *driver) ask(q probe.Questions) probe.Answers {
	if d.err != nil {
		return probe.Answers{MemoryError: d.err.Error(), MemoryCause: probe.MemoryCause(d.err)}
	}
	d.set = append(d.set, q.SetMemory...)
	for _, r := range q.ReleaseMemory {
		d.released = append(d.released, fmt.Sprintf("%s %s %d", filepath.Base(q.Cgroup.Name()), r.UUID, r.Soft))
	}
	return probe.Answers{MemoryUse: &[]probe.MemoryUse{}}
}

func newTestHost(t *testing.T, d *driver) Host {
	t.Helper()
	mountCgroups(t)
	st, err := state.Open(filepath.Join(t.TempDir(), "state"), false)
	check(t, err)
	return Host{State: st, Ask: d.ask}
}

// ended makes the shim of every record a process that has ended.
func (h Host) ended(t *testing.T) {
	t.Helper()
	for _, r := range h.records() {
		r.Shim = procfs.ID{PID: os.Getpid(), Start: 1}
		check(t, h.State.Store(r.name(), r))
	}
}

func TestTheCgroupOfAProcess(t *testing.T) {
	mountCgroups(t)
	pid, dir, end := newProcess(t, "a")
	c, err := Find(pid)
	check(t, err)
	if c.Path != "/"+filepath.Base(dir) {
		t.Errorf("path %s", c.Path)
	}
	f, err := c.Open()
	check(t, err)
	f.Close()
	end()
	if _, err := Find(pid); err == nil {
		t.Error("the cgroup of a process that has ended was found")
	}
	check(t, os.Remove(dir))
	if _, err := c.Open(); !errors.Is(err, probe.ErrCgroupGone) {
		t.Errorf("removed: %v", err)
	}
	check(t, os.Mkdir(dir, 0o755))
	if _, err := c.Open(); !errors.Is(err, probe.ErrCgroupGone) {
		t.Errorf("another one: %v", err)
	}
}

// In the root of a hierarchy everything would be limited, and a path may lead elsewhere.
func TestACgroupThatIsNotTheProcess(t *testing.T) {
	mountCgroups(t)
	pid, dir, _ := newProcess(t, "a")
	proc = procfs.FS(t.TempDir())
	defer func() { proc = procfs.Host }()
	other := filepath.Base(dir) + "/x"
	check(t, os.Mkdir(filepath.Join(root, other), 0o755))
	defer os.Remove(filepath.Join(root, other))
	check(t, os.MkdirAll(filepath.Dir(proc.Path(pid, "cgroup")), 0o755))
	for text, want := range map[string]string{
		"0::/\n": ErrNotOwn.Error(), "0::/../a\n": ErrNotOwn.Error(), "0::/a/../b\n": ErrNotOwn.Error(), "1:memory:/a\n": probe.ErrNotCgroup2.Error(),
		"0::/" + other + "\n": "is not the cgroup of process", "0::/missing\n": "is gone",
	} {
		check(t, os.WriteFile(proc.Path(pid, "cgroup"), []byte(text), 0o600))
		if _, err := Find(pid); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	v2 := root
	root = t.TempDir() // as with cgroup v1
	defer func() { root = v2 }()
	check(t, os.WriteFile(proc.Path(pid, "cgroup"), []byte("0::/a\n"), 0o600))
	if _, err := Find(pid); !errors.Is(err, probe.ErrNotCgroup2) {
		t.Errorf("no cgroup v2: %v", err)
	}
}

func TestALimitIsRecordedBeforeItIsSet(t *testing.T) {
	d := &driver{err: errors.New("hangs")}
	h := newTestHost(t, d)
	pid, _, _ := newProcess(t, "a")
	c, err := Find(pid)
	check(t, err)
	limit := func(uuid string) []memlimit.Limit { return []memlimit.Limit{{UUID: uuid, Request: 1 << 20}} }
	if err := h.Set(c, "ns", "a", limit("GPU-a")); err == nil || len(h.of("ns", "a")) != 1 || len(h.of("ns", "b")) != 0 {
		t.Errorf("%v, %+v", err, h.records())
	}
	if err := h.TakeBack("ns", "a"); err == nil || len(h.records()) != 1 {
		t.Errorf("not taken back: %v, %+v", err, h.records())
	}
	d.err = nil
	check(t, h.Set(c, "ns", "a", limit("GPU-b")))
	check(t, h.TakeBack("ns", "a"))
	want := []probe.MemoryLimit{{UUID: "GPU-b", Soft: 1 << 20, Hard: probe.NoMemoryLimit}, {UUID: "GPU-a", Hard: probe.NoMemoryLimit}, {UUID: "GPU-b", Hard: probe.NoMemoryLimit}}
	if fmt.Sprint(d.set) != fmt.Sprint(want) || len(h.records()) != 0 {
		t.Errorf("%v, want %v; %d records", d.set, want, len(h.records()))
	}
}

// Two containers in one cgroup would have one limit, and the first one's end would take it away.
func TestACgroupOfTwoContainers(t *testing.T) {
	d := &driver{}
	h := newTestHost(t, d)
	pid, _, _ := newProcess(t, "a")
	c, err := Find(pid)
	check(t, err)
	check(t, h.Set(c, "ns", "a", []memlimit.Limit{{UUID: "GPU-a", Request: 1 << 20}}))
	for _, other := range []struct{ namespace, id string }{{"ns", "b"}, {"other", "a"}} {
		err := h.Set(c, other.namespace, other.id, []memlimit.Limit{{UUID: "GPU-b", Request: 1 << 20}})
		if !errors.Is(err, ErrNotOwn) || !strings.Contains(err.Error(), `has the limits of container "a"`) || len(d.set) != 1 || len(h.of("ns", "a")) != 1 {
			t.Errorf("%v: %v, set %v, %+v", other, err, d.set, h.records())
		}
	}
	// The first one's shim was killed, and its processes were not: the second takes all limits back.
	h.ended(t)
	check(t, h.Set(c, "ns", "b", []memlimit.Limit{{UUID: "GPU-b", Request: 1 << 20}}))
	d.set = nil
	check(t, h.TakeBack("ns", "a"))
	check(t, h.TakeBack("ns", "b"))
	if len(d.set) != 2 || d.set[0].UUID != "GPU-a" || d.set[1].UUID != "GPU-b" || len(h.records()) != 0 {
		t.Errorf("taken back %v, %+v", d.set, h.records())
	}
}

func TestSweep(t *testing.T) {
	d := &driver{}
	h := newTestHost(t, d)
	pid, dir, end := newProcess(t, "a")
	c, err := Find(pid)
	check(t, err)
	set := func() {
		t.Helper()
		check(t, h.Set(c, "ns", "a", []memlimit.Limit{{UUID: "GPU-a", Limit: 1 << 20}}))
		d.set = nil
	}
	sweep := func(what string, sets, records, failed int) {
		t.Helper()
		if errs := h.Sweep(); len(errs) != failed || len(d.set) != sets || len(h.records()) != records {
			t.Errorf("%s: %v, set %v, %d records", what, errs, d.set, len(h.records()))
		}
	}
	set()
	sweep("the shim runs", 0, 1, 0)
	h.ended(t)
	sweep("the container runs", 0, 1, 0)
	end()
	d.err = errors.New("hangs")
	sweep("the driver hangs", 0, 1, 1)
	d.err = nil
	sweep("both have ended", 1, 0, 0)
	d.set = nil
	set()
	h.ended(t)
	check(t, os.Remove(dir))
	sweep("the cgroup is gone", 0, 0, 0)
}

// The cgroup was removed while NVML hung, or by systemd. Its shim may still run.
func TestARequestOfARemovedCgroupIsReleasedAbove(t *testing.T) {
	d := &driver{}
	h := newTestHost(t, d)
	_, top, _ := newProcess(t, "top")
	pid, dir, end := newProcess(t, "top/pod/a")
	c, err := Find(pid)
	check(t, err)
	check(t, h.Set(c, "ns", "a", []memlimit.Limit{{UUID: "GPU-a", Request: 2 << 20, Limit: 3 << 20}, {UUID: "GPU-b", Limit: 1 << 20}}))
	check(t, h.Set(c, "ns", "a", []memlimit.Limit{{UUID: "GPU-a", Request: 1 << 20}})) // perhaps it failed
	d.err = errors.New("hangs")
	end()
	if err := h.TakeBack("ns", "a"); err == nil {
		t.Error("the limits were taken back")
	}
	check(t, os.Remove(dir))
	if errs := h.Sweep(); len(errs) != 1 || len(h.records()) != 1 {
		t.Errorf("while it hangs: %v, %d records", errs, len(h.records()))
	}
	d.err = nil
	record := h.records()[0]
	// A program in another cgroup namespace, or on a host with cgroup v1 by its mounts, sees others.
	other := record
	other.Root++
	check(t, h.State.Store(other.name(), other))
	if errs := h.Sweep(); len(errs) != 0 || len(d.released) != 0 || len(h.records()) != 1 {
		t.Errorf("in another namespace: %v, released %q, %d records", errs, d.released, len(h.records()))
	}
	check(t, h.State.Store(record.name(), record))
	v2 := root
	root = t.TempDir()
	if errs := h.Sweep(); len(errs) != 0 || len(h.records()) != 1 {
		t.Errorf("without cgroup v2: %v, %d records", errs, len(h.records()))
	}
	root = v2
	if errs := h.Sweep(); len(errs) > 0 || fmt.Sprint(d.released) != "[pod GPU-a 2097152]" || len(h.records()) != 0 {
		t.Errorf("released %q, %v, %d records", d.released, errs, len(h.records()))
	}
	// The pod's cgroup is gone as well, or another one has its name; then all are.
	check(t, os.Remove(filepath.Dir(dir)))
	check(t, os.Mkdir(filepath.Dir(dir), 0o755))
	check(t, h.State.Store(record.name(), record))
	check(t, h.TakeBack("ns", "a"))
	if want := filepath.Base(top) + " GPU-a 2097152"; len(d.released) != 2 || d.released[1] != want {
		t.Errorf("released %q, want %s", d.released, want)
	}
	record.Above = record.Above[:1]
	check(t, h.State.Store(record.name(), record))
	check(t, h.TakeBack("ns", "a"))
	if len(d.released) != 2 || len(h.records()) != 0 {
		t.Errorf("released %q, %d records", d.released, len(h.records()))
	}
	check(t, os.Remove(filepath.Dir(dir)))
}
