//go:build cgo

package nvml

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// backends are those of the driver, by the names that the simulated one gives them.
var backends = []string{"dmem", "internal"}

// limitHost is a host whose driver has memory limits.
type limitHost struct {
	testtree.Cgroups
	*sim.Driver
	leaf string
}

func newLimitHost(t *testing.T, backend string, o sim.Options) limitHost {
	t.Helper()
	h := limitHost{testtree.NewCgroups(t), nil, ""}
	o.Version = sim.NewestVersion
	h.Driver = sim.New(t, o)
	h.leaf = h.Make("pod/leaf", true)
	h.use(backend, 0)
	return h
}

// use makes the driver use a backend.
func (h limitHost) use(backend string, round int) {
	h.Helper()
	check(h, h.LimitMemory(sim.MemoryLimits{Backend: backend, File: h.File, Round: round}))
}

// ask answers the questions about a cgroup in a process that is confined.
func (h limitHost) ask(cgroup string, q probe.Questions) ([]probe.MemoryUse, error) {
	h.Helper()
	return h.askTask("confine-memory", cgroup, cgroup, q)
}

// askTask has a task answer the questions about a cgroup that was opened and is now said to be at
// path.
func (h limitHost) askTask(task, cgroup, path string, q probe.Questions) ([]probe.MemoryUse, error) {
	h.Helper()
	dir, err := os.Open(cgroup)
	check(h, err)
	defer dir.Close()
	return h.askOpen(task, dir, path, q)
}

func (h limitHost) askOpen(task string, dir *os.File, path string, q probe.Questions) ([]probe.MemoryUse, error) {
	h.Helper()
	q.CgroupPath = path
	stdin, err := probe.QuestionsFile(q)
	check(h, err)
	defer stdin.Close()
	var errs bytes.Buffer
	cmd := exec.Command("/proc/self/exe")
	cmd.Env, cmd.Stdin, cmd.Stderr = []string{envTask + "=" + task + ":" + h.ConfigPath}, stdin, &errs
	cmd.ExtraFiles = []*os.File{stdin, dir} // the second is probe.CgroupFD
	out, err := cmd.Output()
	var a probe.Answers
	if err == nil {
		err = json.Unmarshal(out, &a)
	}
	if err != nil {
		h.Fatalf("%v: %s%s", err, out, errs.String())
	}
	if a.MemoryError != "" {
		return nil, wrap(a)
	}
	return *a.MemoryUse, nil
}

// wrap is the error that a caller gets.
func wrap(a probe.Answers) error {
	_, err := probe.ReadMemoryLimits(func(probe.Questions) probe.Answers { return a }, nil, []string{""})
	return err
}

// answerMemory answers the questions in the standard input.
func answerMemory(name string) error {
	cfg, err := config.Load(name)
	if err != nil {
		return err
	}
	q, err := probe.ReadQuestions(os.Stdin)
	if err != nil {
		return err
	}
	var use []probe.MemoryUse
	switch {
	case q.SetMemory != nil:
		use, err = SetMemory(cfg.Host, q)
	case q.ReleaseMemory != nil:
		use, err = []probe.MemoryUse{}, ReleaseMemory(cfg.Host, q)
	default:
		use, err = ReadMemory(cfg.Host, q)
	}
	a := probe.Answers{MemoryUse: &use}
	if err != nil {
		a = probe.Answers{MemoryError: err.Error(), MemoryCause: probe.MemoryCause(err)}
	}
	return json.NewEncoder(os.Stdout).Encode(a)
}

// set sets limits, and read reads those of the first GPUs.
func (h limitHost) set(limits ...probe.MemoryLimit) ([]probe.MemoryUse, error) {
	h.Helper()
	return h.ask(h.leaf, probe.Questions{SetMemory: limits})
}

func (h limitHost) read() ([]probe.MemoryUse, error) {
	h.Helper()
	return h.ask(h.leaf, probe.Questions{ReadMemory: h.uuids()})
}

func (h limitHost) uuids() (list []string) {
	for _, g := range h.GPUs {
		list = append(list, g.UUID)
	}
	return list
}

// limit is one of GPU i.
func (h limitHost) limit(i int, soft, hard uint64) probe.MemoryLimit {
	return probe.MemoryLimit{UUID: h.GPUs[i].UUID, Soft: soft, Hard: hard}
}

// inLeaf starts a process in the leaf that uses memory of GPU i.
func (h limitHost) inLeaf(i int, bytes uint64) {
	h.Helper()
	cmd := exec.Command("sleep", "600")
	check(h, cmd.Start())
	h.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	check(h, os.WriteFile(filepath.Join(h.leaf, "cgroup.procs"), []byte(fmt.Sprint(cmd.Process.Pid)), 0))
	check(h, h.Place(sim.Process{UUID: h.GPUs[i].UUID, PID: cmd.Process.Pid, Memory: bytes}))
}

// has checks the limits that the driver has, given as "<cgroup below Top> <GPU> <soft> <hard>".
func (h limitHost) has(when string, want ...string) {
	h.Helper()
	list, err := h.CgroupLimits()
	check(h, err)
	var got []string
	for _, l := range list {
		hard := fmt.Sprint(l.Hard / gib)
		if l.Hard == probe.NoMemoryLimit {
			hard = "max"
		}
		i := slices.Index(h.uuids(), l.UUID)
		got = append(got, fmt.Sprintf("%s %d %d %s", strings.TrimPrefix(strings.TrimPrefix(l.Cgroup, h.Top), "/"), i, l.Soft/gib, hard))
	}
	got = slices.DeleteFunc(got, func(line string) bool { return strings.HasPrefix(line, "/") }) // above Top
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		h.Errorf("%s: the driver has %q, want %q", when, got, want)
	}
}

func TestMemoryLimits(t *testing.T) {
	for _, backend := range backends {
		t.Run(backend, func(t *testing.T) {
			h := newLimitHost(t, backend, sim.Options{GPUs: 2})
			none, err := h.read()
			want := []probe.MemoryUse{{MemoryLimit: h.limit(0, 0, probe.NoMemoryLimit)}, {MemoryLimit: h.limit(1, 0, probe.NoMemoryLimit)}}
			if backend == "internal" { // it counts nothing before the first limit
				want = nil
			}
			if err != nil || !slices.Equal(none, want) {
				t.Errorf("at first %+v, %v", none, err)
			}
			limits := []probe.MemoryLimit{h.limit(0, 2*gib, 6*gib), h.limit(1, 0, 3*gib)}
			set, err := h.set(limits...)
			if err != nil || len(set) != 2 || set[0].MemoryLimit != limits[0] || set[1].MemoryLimit != limits[1] {
				t.Errorf("set %+v, %v", set, err)
			}
			sums := []string{"pod/leaf 0 2 6", "pod/leaf 1 0 3"}
			if backend == "dmem" {
				sums = append(sums, "pod 0 2 max", " 0 2 max")
			}
			h.has("with limits", sums...)
			h.inLeaf(0, gib)
			use, err := h.read()
			if err != nil || len(use) != 2 || use[0] != (probe.MemoryUse{MemoryLimit: limits[0], Used: gib}) || use[1].Used != 0 {
				t.Errorf("in use %+v, %v", use, err)
			}
			if _, err = h.set(h.limit(0, 0, gib-mib)); !errors.Is(err, probe.ErrBelowUse) || !strings.Contains(err.Error(), "GPU 0: more memory is in use than the new limit of 1023 MiB: 1024 MiB") {
				t.Errorf("below the use: %v", err)
			}
			if _, err = h.set(h.limit(0, 0, gib)); err != nil {
				t.Errorf("a smaller one: %v", err)
			}
			if _, err = h.set(h.limit(0, 0, probe.NoMemoryLimit), h.limit(1, 0, probe.NoMemoryLimit)); err != nil {
				t.Errorf("taken back: %v", err)
			}
			h.has("without limits")
		})
	}
}

// What the containers of status use: with the internal backend, of those that are limited.
func TestTheUseOfCgroups(t *testing.T) {
	for _, backend := range backends {
		h := newLimitHost(t, backend, sim.Options{GPUs: 2})
		other := h.Make("pod/other", true)
		_, err := h.set(h.limit(0, 0, 4*gib))
		check(t, err)
		h.inLeaf(0, gib)
		s, err := askFor[Snapshot](t, h.Driver, "live", h.leaf, other, h.leaf+"/gone")
		check(t, err)
		want := []map[string]uint64{{h.leaf: gib, other: 0}, {h.leaf: 0, other: 0}}
		if backend == "internal" {
			want = []map[string]uint64{{h.leaf: gib}, {}}
		}
		for i, g := range s.GPUs {
			if !maps.Equal(g.Cgroups, want[i]) {
				t.Errorf("%s, GPU %d: %v, want %v", backend, i, g.Cgroups, want[i])
			}
		}
	}
}

// What NVIDIA's hook leaves behind, and so what the simulated driver has to show of a careless
// caller: the ancestors keep the soft limit of a cgroup that was removed.
func TestALimitThatIsNotTakenBackStays(t *testing.T) {
	for backend, want := range map[string][]string{
		"dmem":     {"pod 0 2 max", " 0 2 max"},
		"internal": {"pod/leaf 0 2 2"},
	} {
		h := newLimitHost(t, backend, sim.Options{GPUs: 1})
		if _, err := h.set(h.limit(0, 2*gib, 2*gib)); err != nil {
			t.Fatal(err)
		}
		h.RemoveCgroup(h.leaf)
		h.Make("pod/leaf", true)
		_, err := h.read() // the next call finds that the kernel has forgotten the cgroup
		check(t, err)
		h.has("a removed cgroup with "+backend, want...)
		check(t, h.Reset(h.GPUs[0].UUID))
		h.has("after a reset of the GPU")
	}
}

func TestMemoryLimitsThatAreRefused(t *testing.T) {
	for _, backend := range backends {
		h := newLimitHost(t, backend, sim.Options{GPUs: 3, MIG: []sim.MIGDevice{{GPU: 2, GI: 1, CI: 0}}})
		total := uint64(143771 * mib)
		fault := func(function string, gpu, code int) func() error {
			return func() error { return h.Faults(sim.Fault{Function: function, UUID: h.GPUs[gpu].UUID, Code: code}) }
		}
		const set, get = "nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"
		second := h.limit(1, 0, gib)
		for _, tc := range []struct {
			name    string
			prepare func() error
			limit   probe.MemoryLimit
			cause   error // nil: none of those of package probe
			text    string
		}{
			{"uninitialized", fault(set, 1, 1), second, nil, "GPU 1: set the memory limit: NVML: NVML was not first initialized"},
			{"invalid", fault(set, 1, 2), second, probe.ErrInvalidLimit, "GPU 1: set the memory limit: invalid memory limit (NVML: A supplied argument is invalid)"},
			{"not supported", fault(set, 1, 3), second, probe.ErrNotLimitable, "GPU 1: set the memory limit: the GPU cannot be limited"},
			{"no permission", fault(set, 1, 4), second, probe.ErrNotPermitted, "GPU 1: set the memory limit: not permitted"},
			{"not found", fault(set, 1, 6), second, probe.ErrNoController, "no controller dmem (NVML: A query"},
			{"operating system", fault(set, 1, 17), second, probe.ErrNoController, "no controller dmem (NVML: The GPU"},
			{"a lost GPU", fault(set, 1, 15), second, nil, "GPU 1: set the memory limit: NVML: GPU is lost"},
			{"an unknown error", fault(set, 1, 999), second, nil, "Unknown Error"},
			{"a lost GPU that is read", fault(get, 1, 15), second, nil, "GPU 1: read the memory limit: NVML: GPU is lost"},
			{"a limit that is not read back", fault(get, 1, 3), second, probe.ErrNotKept, "soft 0 and hard 1073741824 bytes were set"},
			{"another limit than the one that was set", func() error { h.use(backend, gib); return nil }, h.limit(1, 0, gib+gib/2), probe.ErrNotKept, "1610612736 bytes were set, 0 and 2147483648 are reported"},
			{"rounded to pages", func() error { h.use(backend, 64<<10); return nil }, h.limit(1, 0, gib+1), errNone, ""},
			{"memory limits are off", func() error { h.use("off", 0); return nil }, second, probe.ErrNotLimitable, "GPU 0"},
			{"more than the GPU has", nil, h.limit(1, 0, total+1), probe.ErrInvalidLimit, "GPU 1: invalid memory limit: it has 143771 MiB"},
			{"soft more than the GPU has", nil, h.limit(1, total+1, probe.NoMemoryLimit), probe.ErrInvalidLimit, "it has 143771 MiB"},
			{"as much as the GPU has", nil, h.limit(1, total, total), errNone, ""},
			{"soft more than hard", nil, h.limit(1, 2*gib, gib), probe.ErrInvalidLimit, "2147483648 bytes are wanted, and at most 1073741824"},
			{"a GPU with MIG", nil, h.limit(2, 0, gib), probe.ErrNotLimitable, "GPU 2 has MIG mode enabled"},
			{"a MIG device", nil, probe.MemoryLimit{UUID: h.MIG[0].UUID, Hard: gib}, probe.ErrNotLimitable, "is a MIG device"},
			{"no such GPU", nil, probe.MemoryLimit{UUID: "GPU-none", Hard: gib}, nil, "handle of GPU GPU-none"},
			{"persistence mode is off", func() error { return h.Persistence(false) }, second, probe.ErrNotPersistent, "persistence mode is off, and the driver would forget the limit: start nvidia-persistenced"},
		} {
			if tc.prepare != nil {
				check(t, tc.prepare())
			}
			_, err := h.set(h.limit(0, gib, 2*gib), tc.limit)
			if ok := errors.Is(tc.cause, errNone); ok != (err == nil) || !ok && (probe.MemoryCause(err) != probe.MemoryCause(tc.cause) || !strings.Contains(err.Error(), tc.text)) {
				t.Errorf("%s, %s: %v", backend, tc.name, err)
			}
			check(t, errors.Join(h.Faults(), h.Persistence(true)))
			h.use(backend, 0)
			if err != nil {
				h.has(backend + " after: " + tc.name)
			}
			_, err = h.set(h.limit(0, 0, probe.NoMemoryLimit), h.limit(1, 0, probe.NoMemoryLimit))
			check(t, err)
		}
	}
}

// errNone stands for no error in a table.
var errNone = errors.New("none")

// After a failure, a running container has what it had before.
func TestAFailureRestoresTheLimits(t *testing.T) {
	for _, backend := range backends {
		h := newLimitHost(t, backend, sim.Options{GPUs: 2})
		_, err := h.set(h.limit(0, gib, 2*gib))
		check(t, err)
		h.use(backend, gib)
		if _, err := h.set(h.limit(0, 4*gib, 4*gib), h.limit(1, 0, 4*gib+gib/2)); !errors.Is(err, probe.ErrNotKept) {
			t.Errorf("%s: %v", backend, err)
		}
		want := []string{"pod/leaf 0 1 2"}
		if backend == "dmem" {
			want = append(want, "pod 0 1 max", " 0 1 max")
		}
		h.has(backend, want...)
	}
}

// A lost GPU keeps no other from being free of its limit.
func TestLimitsAreTakenBackWhereThatWorks(t *testing.T) {
	for _, function := range []string{"nvmlDeviceGetMemoryLimits_v1", "nvmlDeviceSetMemoryLimits_v1"} {
		h := newLimitHost(t, "dmem", sim.Options{GPUs: 3})
		_, err := h.set(h.limit(0, gib, gib), h.limit(1, gib, gib), h.limit(2, gib, gib))
		check(t, err)
		check(t, h.Faults(sim.Fault{Function: function, UUID: h.GPUs[1].UUID, Code: 15}))
		_, err = h.set(probe.MemoryLimit{UUID: "GPU-gone", Hard: probe.NoMemoryLimit},
			h.limit(0, 0, probe.NoMemoryLimit), h.limit(1, 0, probe.NoMemoryLimit), h.limit(2, 0, probe.NoMemoryLimit))
		if err == nil || !strings.Contains(err.Error(), "GPU 1: ") || !strings.Contains(err.Error(), "handle of GPU GPU-gone") {
			t.Errorf("%s: %v", function, err)
		}
		want := []string{"pod/leaf 1 1 1", "pod 1 1 max", " 1 1 max"}
		if function == "nvmlDeviceGetMemoryLimits_v1" { // it cannot be read, but set
			want = nil
		}
		h.has(function, want...)
	}
}

func TestOlderDriversHaveNoMemoryLimits(t *testing.T) {
	h := limitHost{testtree.NewCgroups(t), sim.New(t, sim.Options{GPUs: 1}), ""}
	h.leaf = h.Make("leaf", true)
	_, err := h.set(h.limit(0, 0, gib))
	_, readErr := h.read()
	for _, err := range []error{err, readErr} {
		if !errors.Is(err, probe.ErrNoMemoryLimits) || err.Error() != "driver 580.159.04: the driver has no memory limits, which need 615 or later" {
			t.Error(err)
		}
	}
}

// A runtime such as crun makes a cgroup without the controller's files.
func TestACgroupWithoutTheController(t *testing.T) {
	h := newLimitHost(t, "dmem", sim.Options{GPUs: 1})
	h.leaf = h.Make("other/leaf", false)
	if _, err := h.set(h.limit(0, 0, gib)); !errors.Is(err, probe.ErrNoController) {
		t.Error(err)
	}
	h.has("without files")
	if use, err := h.read(); err != nil || len(use) != 1 { // that of the nearest ancestor with files
		t.Errorf("%+v, %v", use, err)
	}
	h.use("internal", 0)
	if _, err := h.set(h.limit(0, 0, gib)); err != nil {
		t.Errorf("the internal backend needs none: %v", err)
	}
}

func TestTheCgroupThatWasMeant(t *testing.T) {
	h := newLimitHost(t, "dmem", sim.Options{GPUs: 1})
	other := h.Make("pod/other", true)
	set := probe.Questions{SetMemory: []probe.MemoryLimit{h.limit(0, 0, gib)}}
	root := filepath.Dir(h.Top)
	for _, tc := range []struct {
		name, open, path string
		cause            error
	}{
		{"another one has its path", h.leaf, other, probe.ErrCgroupGone},
		{"a link leads to it", h.leaf, filepath.Join("/proc/self/root", h.leaf), errNone},
		{"the root", root, root, probe.ErrNotCgroup2},
		{"a directory", h.StateDir, h.StateDir, probe.ErrNotCgroup2},
	} {
		check(t, os.MkdirAll(h.StateDir, 0o700))
		if _, err := h.askTask("confine-memory", tc.open, tc.path, set); errors.Is(tc.cause, errNone) != (err == nil) || probe.MemoryCause(err) != probe.MemoryCause(tc.cause) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	dir, err := os.Open(other)
	check(t, err)
	defer dir.Close()
	h.RemoveCgroup(other)
	h.Make("pod/other", true) // with the same name
	if _, err := h.askOpen("confine-memory", dir, other, set); !errors.Is(err, probe.ErrCgroupGone) {
		t.Errorf("removed and made again: %v", err)
	}
}

// Without persistence mode the driver forgets: why it is refused.
func TestADriverThatIsNotPersistentForgets(t *testing.T) {
	h := newLimitHost(t, "internal", sim.Options{GPUs: 1})
	_, err := h.set(h.limit(0, 0, gib))
	check(t, err)
	h.has("persistent", "pod/leaf 0 0 1")
	check(t, h.Persistence(false))
	h.has("the last process has closed the driver")
	check(t, h.Persistence(true))
	h.has("and again")
	_, err = h.set(h.limit(0, 0, gib))
	check(t, err)
	check(t, h.LoadModule(h.KernelVersion))
	h.has("the module was loaded again")
}

func TestMemoryIsLimitedByAConfinedProgram(t *testing.T) {
	h := newLimitHost(t, "dmem", sim.Options{GPUs: 1})
	q := probe.Questions{SetMemory: []probe.MemoryLimit{h.limit(0, 0, gib)}}
	if _, err := h.askTask("memory", h.leaf, h.leaf, q); err == nil || err.Error() != "this program is not confined: only nvidia-shimctl probe may start it" {
		t.Error(err)
	}
	if _, err := h.askTask("confine-memory-try", h.leaf, h.leaf, q); err != nil {
		for line := range strings.Lines(err.Error()) {
			t.Error(line)
		}
	}
}

// tryMemory prints what a program that limits memory could do.
func tryMemory() error {
	q, err := probe.ReadQuestions(os.Stdin)
	if err != nil {
		return err
	}
	if err := limitCalls(); err != nil {
		return err
	}
	var found []string
	add := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	status, _ := os.ReadFile("/proc/self/status")
	caps := fmt.Sprintf("%016x\n", 1<<unix.CAP_SYS_ADMIN)
	for _, want := range []string{"CapPrm:\t" + caps, "CapEff:\t" + caps, "CapBnd:\t" + caps, "CapInh:\t0000000000000000\n", "NoNewPrivs:\t1\n"} {
		if !strings.Contains(string(status), want) {
			add("no %q in %s", want, status)
		}
	}
	for _, path := range []string{"/", "/etc", "/dev", "/proc/self", "/sys"} {
		if f, err := os.Create(filepath.Join(path, "made")); !errors.Is(err, unix.EROFS) && !errors.Is(err, unix.ENOENT) {
			add("%s: a file can be made: %v, %v", path, f, err)
		}
	}
	for name, call := range map[string]uintptr{"mount": unix.SYS_MOUNT, "setns": unix.SYS_SETNS, "bpf": unix.SYS_BPF, "execve": unix.SYS_EXECVE} {
		if _, _, errno := unix.RawSyscall(call, 0, 0, 0); errno != unix.ENOSYS {
			add("%s: %v", name, errno)
		}
	}
	if entries, err := os.ReadDir("/proc/1"); err == nil {
		add("it sees process 1: %v", entries)
	}
	if f, err := os.OpenFile(filepath.Join(q.CgroupPath, "cgroup.max.depth"), os.O_WRONLY, 0); err != nil { // as dmem.max
		add("%v, %v", f, err)
	}
	return json.NewEncoder(os.Stdout).Encode(probe.Answers{MemoryUse: &[]probe.MemoryUse{}, MemoryError: strings.Join(found, "\n")})
}

// The codes of the simulated driver that a caller as careful as ours does not see.
func TestNVMLOfTheSimulatedDriver(t *testing.T) {
	h := newLimitHost(t, "internal", sim.Options{GPUs: 2, MIG: []sim.MIGDevice{{GPU: 1, GI: 1, CI: 0}}})
	t.Setenv("NVIDIA_SIM_DEV", filepath.Join(h.DevRoot, "dev"))
	h.inLeaf(0, 2*gib)
	lib := nvml.New(nvml.WithLibraryPath(filepath.Join(h.Root, h.Layout.LibDir(), "libnvidia-ml.so.1")))
	if ret := lib.Init(); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	defer lib.Shutdown()
	d, ret := lib.DeviceGetHandleByUUID(h.GPUs[0].UUID)
	m, ret2 := lib.DeviceGetHandleByUUID(h.MIG[0].UUID)
	if ret != nvml.SUCCESS || ret2 != nvml.SUCCESS {
		t.Fatal(ret, ret2)
	}
	for _, tc := range []struct {
		name, backend, path string
		device              nvml.Device
		soft, hard          uint64
		want                nvml.Return
	}{
		{"uncounted use before the first limit", "internal", h.leaf, d, 0, gib, nvml.SUCCESS},
		{"soft more than hard", "internal", h.leaf, d, 2 * gib, gib, nvml.ERROR_INVALID_ARGUMENT},
		{"more than the GPU has", "internal", h.leaf, d, 0, 1 << 50, nvml.ERROR_INVALID_ARGUMENT},
		{"no such cgroup", "internal", h.leaf + "x", d, 0, gib, nvml.ERROR_OPERATING_SYSTEM},
		{"no cgroup", "internal", "/etc", d, 0, gib, nvml.ERROR_INVALID_ARGUMENT},
		{"the root", "internal", filepath.Dir(h.Top), d, 0, gib, nvml.ERROR_NOT_SUPPORTED},
		{"a MIG device", "internal", h.leaf, m, 0, gib, nvml.ERROR_NOT_SUPPORTED},
		{"off", "off", h.leaf, d, 0, gib, nvml.ERROR_NOT_SUPPORTED},
		{"below the use, which dmem accepts", "dmem", h.leaf, d, 0, gib, nvml.SUCCESS},
		{"no limit", "dmem", h.leaf, d, 0, probe.NoMemoryLimit, nvml.SUCCESS},
	} {
		h.use(tc.backend, 0)
		if ret := tc.device.SetMemoryLimits_v1(tc.path, tc.soft, tc.hard); ret != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, ret, tc.want)
		}
	}
	var threads sync.WaitGroup
	for i := range 8 {
		dir := h.Make(fmt.Sprintf("threads/%d", i), true)
		threads.Go(func() {
			for range 20 {
				set := d.SetMemoryLimits_v1(dir, gib, gib)
				if l, ret := d.GetMemoryLimits_v1(dir); set != nvml.SUCCESS || ret != nvml.SUCCESS || l.HardLimit != gib {
					t.Errorf("of many threads: %v, %v, %+v", set, ret, l)
				}
			}
		})
	}
	threads.Wait()
	h.use("internal", 0)
	if ret := d.SetMemoryLimits_v1(h.Make("below", true), 0, 4*gib); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	h.leaf = filepath.Join(h.Top, "below")
	h.inLeaf(0, 2*gib)
	if ret := d.SetMemoryLimits_v1(h.leaf, 0, gib); ret != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("below the use: %v", ret)
	}
}

// The program of the trial on a real driver, which has no cgo.
func TestTheProgramThatTriesLimits(t *testing.T) {
	h := newLimitHost(t, "dmem", sim.Options{GPUs: 1})
	program := filepath.Join(t.TempDir(), "limits")
	if out, err := exec.Command("gcc", "-O2", "-o", program, "../../integration/gpu/programs/limits.c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v: %s", err, out)
	}
	for _, tc := range []struct {
		arguments []string
		want      string
	}{
		{[]string{h.leaf}, "0 soft 0 hard 18446744073709551615 used 0\n"},
		{[]string{h.leaf, "1073741824", "2147483648"}, "0\n"},
		{[]string{h.leaf}, "0 soft 1073741824 hard 2147483648 used 0\n"},
		{[]string{h.leaf, "2", "1"}, "2\n"},
		{[]string{h.leaf + "x"}, "17\n"},
		{nil, fmt.Sprintf("0 %d\n", 143771*mib)},
	} {
		cmd := exec.Command(program, append([]string{h.GPUs[0].UUID}, tc.arguments...)...)
		cmd.Env = []string{"LD_LIBRARY_PATH=" + filepath.Join(h.Root, h.Layout.LibDir()), "NVIDIA_SIM_DEV=" + filepath.Join(h.DevRoot, "dev")}
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != tc.want {
			t.Errorf("%q: %s%v, want %s", tc.arguments, out, err, tc.want)
		}
	}
}

func TestAccountsAndMemoryOfTheSimulatedDriver(t *testing.T) {
	d := sim.New(t, sim.Options{GPUs: 2, Version: sim.NewestVersion})
	t.Setenv("NVIDIA_SIM_DEV", filepath.Join(d.DevRoot, "dev"))
	lib := nvml.New(nvml.WithLibraryPath(filepath.Join(d.Root, d.Layout.LibDir(), "libnvidia-ml.so.1")))
	if ret := lib.Init(); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	defer lib.Shutdown()
	g, ret := lib.DeviceGetHandleByIndex(1)
	if mode, ret2 := g.GetAccountingMode(); ret != nvml.SUCCESS || ret2 != nvml.SUCCESS || mode != nvml.FEATURE_DISABLED {
		t.Errorf("accounting mode %v: %v, %v", mode, ret, ret2)
	}
	if _, ret := g.GetAccountingStats(7); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("without accounting: %v", ret)
	}
	check(t, d.Accounts(
		sim.Account{UUID: d.GPUs[0].UUID, PID: 6},
		sim.Account{UUID: d.GPUs[1].UUID, PID: 7, Percent: 40, MemoryPercent: 5, MaxMemory: gib, Time: 1500 * 1e6},
		sim.Account{UUID: d.GPUs[1].UUID, PID: 8, Running: true},
	))
	pids, ret := g.GetAccountingPids()
	if mode, ret2 := g.GetAccountingMode(); ret != nvml.SUCCESS || ret2 != nvml.SUCCESS || mode != nvml.FEATURE_ENABLED || !slices.Equal(pids, []int{7, 8}) {
		t.Errorf("mode %v, processes %v: %v, %v", mode, pids, ret, ret2)
	}
	if s, ret := g.GetAccountingStats(7); ret != nvml.SUCCESS || s.GpuUtilization != 40 || s.MaxMemoryUsage != gib || s.Time != 1500 || s.IsRunning != 0 {
		t.Errorf("%+v, %v", s, ret)
	}
	if _, ret := g.GetAccountingStats(6); ret != nvml.ERROR_NOT_FOUND {
		t.Errorf("a process of another GPU: %v", ret)
	}
	check(t, errors.Join(d.Xid(d.GPUs[0].UUID, 79), d.Xid(d.GPUs[1].UUID, 48)))
	first, _ := lib.DeviceGetHandleByIndex(0)
	for _, tc := range []struct {
		device nvml.Device
		want   uint32
	}{{first, 2}, {g, 1}} {
		if action, ret := recoveryAction(tc.device); ret != nvml.SUCCESS || action != tc.want {
			t.Errorf("recovery action %d, %v, want %d", action, ret, tc.want)
		}
	}
	check(t, d.Reset(d.GPUs[1].UUID))
	if action, ret := recoveryAction(g); ret != nvml.SUCCESS || action != 0 {
		t.Errorf("recovery action after a reset: %d, %v", action, ret)
	}
	check(t, d.Set(sim.Property{UUID: d.GPUs[1].UUID, Name: "unrepairable", Value: 1}))
	if m, ret := g.GetUnrepairableMemoryFlag_v1(); ret != nvml.SUCCESS || m.BUnrepairableMemory != 1 {
		t.Errorf("unrepairable memory: %+v, %v", m, ret)
	}
}
