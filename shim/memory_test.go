package shim

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/memlimit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// limitedTasks is an embedded service with a container in a cgroup of its own.
type limitedTasks struct {
	fakeTasks
	status  task.Status
	onStart func() // called by Start
}

func (f *limitedTasks) Start(ctx context.Context, r *taskapi.StartRequest) (*taskapi.StartResponse, error) {
	if f.onStart != nil {
		f.onStart()
	}
	return f.fakeTasks.Start(ctx, r)
}

func (f *limitedTasks) State(context.Context, *taskapi.StateRequest) (*taskapi.StateResponse, error) {
	return &taskapi.StateResponse{Status: f.status, Pid: uint32(f.pid)}, nil
}

// limitedHost is a host with driver 615 and cgroup v2 alone, and a service.
type limitedHost struct {
	*sim.Driver
	tasks limitedTasks
	*Service
	cgroup string
	bundle string
}

// newLimitedHost must be called in a mount namespace of the test's own. script answers what the
// shim asks the probe, which is recorded.
func newLimitedHost(t *testing.T, variable, script string) *limitedHost {
	t.Helper()
	_ = unix.Unmount(cgroupRoot, unix.MNT_DETACH)
	check(t, unix.Mount("cgroup2", cgroupRoot, "cgroup2", 0, ""))
	h := &limitedHost{Driver: sim.New(t, sim.Options{GPUs: 1, Version: "615.78.08"})}
	reap(t) // the simulated driver waits for ldconfig
	h.cgroup = filepath.Join(cgroupRoot, "nvidia-shim-"+filepath.Base(h.Root)+fmt.Sprint(os.Getpid()))
	check(t, os.Mkdir(h.cgroup, 0o755))
	dir, err := os.Open(h.cgroup)
	check(t, err)
	init := exec.Command("/bin/sleep", "600")
	init.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd()), Pdeathsig: unix.SIGKILL}
	check(t, init.Start())
	t.Cleanup(func() {
		dir.Close()
		check(t, init.Process.Kill())
		h.removeCgroup(t)
	})
	t.Setenv(config.EnvFile, h.ConfigPath)
	t.Cleanup(func() { _ = unix.Unmount(filepath.Join(h.StateDir, "view"), unix.MNT_DETACH) })
	h.bundle = limitedBundle(t, variable)
	putUnprepared(t, `echo "$questions" >>`+h.asked()+"\n"+script)
	h.tasks.pid, h.tasks.status = init.Process.Pid, task.Status_CREATED
	h.Service, _ = serviceAround(&h.tasks.fakeTasks)
	h.TTRPCTaskService = &h.tasks
	return h
}

// limitedBundle returns the bundle of a container with GPU 0 and a variable.
func limitedBundle(t *testing.T, variable string) string {
	t.Helper()
	bundle := gpuBundle(t, admin)
	raw, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	check(t, err)
	raw = []byte(strings.Replace(string(raw), `"NVIDIA_VISIBLE_DEVICES=0"`, `"NVIDIA_VISIBLE_DEVICES=0","`+variable+`"`, 1))
	check(t, os.WriteFile(filepath.Join(bundle, "config.json"), raw, 0o600))
	return bundle
}

// removeCgroup removes the container's cgroup when its processes have ended.
func (h *limitedHost) removeCgroup(t *testing.T) {
	t.Helper()
	removeCgroup(t.Context(), strings.TrimPrefix(h.cgroup, cgroupRoot))
}

func (h *limitedHost) asked() string { return filepath.Join(h.Dir, "asked") }

// questions returns what the probe was asked since the last call: "set SOFT HARD" or "read", in MiB.
func (h *limitedHost) questions(t *testing.T) string {
	t.Helper()
	text, _ := os.ReadFile(h.asked())
	_ = os.Remove(h.asked())
	var list []string
	for line := range strings.Lines(string(text)) {
		var q probe.Questions
		check(t, json.Unmarshal([]byte(line), &q))
		for _, l := range q.SetMemory {
			hard := fmt.Sprint(l.Hard / memlimit.MiB)
			if l.Hard == probe.NoMemoryLimit {
				hard = "none"
			}
			list = append(list, fmt.Sprintf("set %d %s", l.Soft/memlimit.MiB, hard))
		}
		if q.ReadMemory != nil {
			list = append(list, "read")
		}
	}
	return strings.Join(list, ", ")
}

// records returns how many cgroups the state directory says are limited.
func (h *limitedHost) records() int {
	names, _ := filepath.Glob(filepath.Join(h.StateDir, "gpu-memory-*.json"))
	return len(names)
}

func (h *limitedHost) create(t *testing.T) error {
	t.Helper()
	_, err := h.Create(t.Context(), &taskapi.CreateTaskRequest{ID: "c", Bundle: h.bundle})
	return err
}

func (h *limitedHost) change(t *testing.T, limit string) error {
	t.Helper()
	_, err := h.Update(t.Context(), &taskapi.UpdateTaskRequest{ID: "c", Annotations: map[string]string{memlimit.AnnotationLimit: limit}})
	return err
}

func wantText(t *testing.T, err error, words string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), words) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v, want %q", err, words)
	}
}

const kept = `echo '{"memory_use":[]}'`

func TestALimitIsSetChangedAndTakenBack(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	h := newLimitedHost(t, "NVIDIA_GPU_MEMORY_LIMIT=8192", `case "$questions" in
*'"read_memory"'*) echo '{"memory_use":[{"uuid":"`+"'$(echo \"$questions\" | sed 's/.*\\(GPU-[0-9a-f-]*\\).*/\\1/')'"+`","used":2147483648}]}';;
*) `+kept+`;; esac`)
	check(t, h.create(t))
	if got := h.questions(t); got != "set 8192 8192" || h.records() != 1 {
		t.Errorf("create: %q, %d records", got, h.records())
	}
	h.tasks.status = task.Status_RUNNING
	check(t, h.change(t, "6Gi"))
	if got := h.questions(t); got != "read, set 6144 6144" || h.records() != 1 {
		t.Errorf("update: %q, %d records", got, h.records())
	}
	var record gpuinject.Plan
	raw, err := os.ReadFile(filepath.Join(h.bundle, gpuinject.RecordName))
	check(t, err)
	check(t, json.Unmarshal(raw, &record))
	if len(record.Memory) != 1 || record.Memory[0].Limit != 6<<30 || len(record.Links)+len(record.Mounts) == 0 {
		t.Errorf("the record has %+v", record.Memory)
	}
	wantText(t, h.change(t, "1Gi"), "GPU memory: GPU "+h.GPUs[0].UUID+": 2048 MiB: more memory is in use: ask for more")
	wantText(t, h.change(t, "8"), "not an amount of memory")
	h.tasks.deleteErr = fmt.Errorf("it runs")
	if _, err := h.Delete(t.Context(), &taskapi.DeleteRequest{ID: "c"}); err == nil || h.questions(t) != "read" {
		t.Errorf("the limit of a running container was taken back: %v", err)
	}
	h.tasks.deleteErr, h.tasks.status = nil, task.Status_STOPPED
	wantText(t, h.change(t, "4Gi"), "it has ended")
	_, err = h.Delete(t.Context(), &taskapi.DeleteRequest{ID: "c"})
	check(t, err)
	if got := h.questions(t); got != "set 0 none" || h.records() != 0 {
		t.Errorf("delete: %q, %d records", got, h.records())
	}
}

// The container does not start without what it asks for, and nothing is left.
func TestALimitThatCannotBeSet(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	const limit, request = "NVIDIA_GPU_MEMORY_LIMIT=8192", "NVIDIA_GPU_MEMORY_REQUEST=8192"
	for _, test := range []struct {
		name, variable string
		cause          error
		words          string // of the refusal, "" if it starts
	}{
		{"no controller", limit, probe.ErrNoController, "why: use runc"},
		{"MIG", limit, probe.ErrNotLimitable, "why: turn MIG off"},
		{"persistence", limit, probe.ErrNotPersistent, "why, or remove it"},
		{"too much", limit, probe.ErrInvalidLimit, "why: ask for at most the GPU's memory"},
		{"a lost GPU", limit, nil, "why: see the driver's messages"},
		{"a request that is only wished for", request, probe.ErrNoController, ""},
		{"a request that is too much", request, probe.ErrInvalidLimit, "why: ask for at most"},
	} {
		t.Run(test.name, func(t *testing.T) {
			cause := ""
			if test.cause != nil {
				cause = probe.MemoryCause(test.cause)
			}
			h := newLimitedHost(t, test.variable, `case "$questions" in *'"soft":0,'*) `+kept+`;; *) echo '{"memory_error":"why","memory_cause":"`+cause+`"}';; esac`)
			h.tasks.status = task.Status_STOPPED // killed
			err := h.create(t)
			if test.words == "" {
				check(t, err)
				_, err = h.Delete(t.Context(), &taskapi.DeleteRequest{ID: "c"})
				check(t, err)
			} else {
				wantText(t, err, test.words)
			}
			want := "set 8192 8192, set 0 none"
			if test.variable == request {
				want = "set 8192 none, set 0 none"
			}
			if got := h.questions(t); got != want || h.records() != 0 || h.get("c").state != unknown {
				t.Errorf("%q, %d records, want %q", got, h.records(), want)
			}
			if calls := strings.Join(h.tasks.calls, " "); test.words != "" && calls != "create kill delete" {
				t.Errorf("calls %q", calls)
			}
		})
	}
}

// The probe is killed, as when the host runs out of memory, between setting a limit and reading it
// back. The limit may be set.
func TestTheProbeIsKilledWhenItHasSetALimit(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	h := newLimitedHost(t, "NVIDIA_GPU_MEMORY_LIMIT=8192", `case "$questions" in *'"soft":0,'*) `+kept+`;; *) kill -9 $$;; esac`)
	h.tasks.status = task.Status_STOPPED
	wantText(t, h.create(t), "nvidia-shimctl ended with status 137")
	if got := h.questions(t); got != "set 8192 8192, set 0 none" || h.records() != 0 {
		t.Errorf("%q, %d records", got, h.records())
	}
}

// It is killed during an update: the container has the limits that it had.
func TestTheProbeIsKilledWhenItHasChangedALimit(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	h := newLimitedHost(t, "NVIDIA_GPU_MEMORY_LIMIT=8192", `case "$questions" in *'"hard":6442450944'*) kill -9 $$;; *) `+kept+`;; esac`)
	check(t, h.create(t))
	h.tasks.status = task.Status_RUNNING
	h.questions(t)
	wantText(t, h.change(t, "6Gi"), "nvidia-shimctl ended with status 137")
	if got := h.questions(t); got != "read, set 6144 6144, set 8192 8192" {
		t.Errorf("%q", got)
	}
	h.tasks.status = task.Status_STOPPED
	_, err := h.Delete(t.Context(), &taskapi.DeleteRequest{ID: "c"})
	check(t, err)
}

// A driver that does not answer keeps no container; the record of its limits stays.
func TestADriverThatHangsKeepsNoContainer(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	h := newLimitedHost(t, "NVIDIA_GPU_MEMORY_LIMIT=8192", `case "$questions" in *'"soft":0,'*) echo '{"memory_error":"NVML has not answered"}';; *) `+kept+`;; esac`)
	check(t, h.create(t))
	h.questions(t)
	h.tasks.status = task.Status_STOPPED
	_, err := h.Delete(t.Context(), &taskapi.DeleteRequest{ID: "c"})
	check(t, err)
	if got := h.questions(t); got != "set 0 none" || h.records() != 1 {
		t.Errorf("%q, %d records", got, h.records())
	}
}

// `delete` takes back what a killed shim has set, and a later Create what `delete` could not.
func TestLimitsOfAShimThatWasKilled(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	h := newLimitedHost(t, "NVIDIA_GPU_MEMORY_LIMIT=8192", kept)
	ctx := namespaces.WithNamespace(t.Context(), "default")
	_, err := h.Create(ctx, &taskapi.CreateTaskRequest{ID: "c", Bundle: h.bundle})
	check(t, err)
	h.questions(t)
	check(t, takeBackMemoryOf(ctx, "other"))
	if got := h.questions(t); got != "" || h.records() != 1 {
		t.Errorf("another container: %q, %d records", got, h.records())
	}
	check(t, takeBackMemoryOf(ctx, "c"))
	if got := h.questions(t); got != "set 0 none" || h.records() != 0 {
		t.Errorf("%q, %d records", got, h.records())
	}
	check(t, takeBackMemoryOf(ctx, "c"))
	if got := h.questions(t); got != "" {
		t.Errorf("again: %q", got)
	}
}

// Delete has taken the limits back, and failed then.
func TestNothingIsDoneWithAContainerWithoutItsLimits(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	h := newLimitedHost(t, "NVIDIA_GPU_MEMORY_LIMIT=8192", kept)
	check(t, h.create(t))
	h.tasks.deleteErr = fmt.Errorf("runc fails")
	if _, err := h.Delete(t.Context(), &taskapi.DeleteRequest{ID: "c"}); err == nil {
		t.Error("deleted")
	}
	wantText(t, h.change(t, "6Gi"), "container c is being deleted")
	_, err := h.Start(t.Context(), &taskapi.StartRequest{ID: "c"})
	wantText(t, err, "container c is being deleted")
	if got := h.questions(t); got != "set 8192 8192, set 0 none" || h.records() != 0 {
		t.Errorf("%q, %d records", got, h.records())
	}
	h.tasks.deleteErr = nil
	_, err = h.Delete(t.Context(), &taskapi.DeleteRequest{ID: "c"})
	check(t, err)
}

// Start, an update and Delete wait for each other: what is started has its limit, and the last one is
// taken back.
func TestStartUpdateAndDeleteWaitForEachOther(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	step := filepath.Join(t.TempDir(), "step")
	check(t, unix.Mkfifo(step, 0o600))
	h := newLimitedHost(t, "NVIDIA_GPU_MEMORY_LIMIT=8192", `case "$questions" in *'"hard":8589934592'*|*'"read_memory"'*);; *) read x <`+step+`;; esac; `+kept)
	check(t, h.create(t))
	waits := func(call func() error) {
		t.Helper()
		done := make(chan error)
		go func() { done <- call() }()
		w, err := os.OpenFile(step, os.O_WRONLY, 0) // when the probe has been asked
		check(t, err)
		if h.limiting.TryLock() {
			h.limiting.Unlock()
			t.Error("another call would not wait")
		}
		w.Close()
		check(t, <-done)
	}
	h.tasks.onStart = func() {
		if h.limiting.TryLock() {
			h.limiting.Unlock()
			t.Error("Delete would not wait for Start")
		}
	}
	_, err := h.Start(t.Context(), &taskapi.StartRequest{ID: "c"})
	check(t, err)
	h.tasks.status = task.Status_RUNNING
	waits(func() error { return h.change(t, "6Gi") })
	h.tasks.status = task.Status_STOPPED
	waits(func() error {
		_, err := h.Delete(t.Context(), &taskapi.DeleteRequest{ID: "c"})
		return err
	})
	if got := h.questions(t); got != "set 8192 8192, read, set 6144 6144, set 0 none" || h.records() != 0 {
		t.Errorf("%q, %d records", got, h.records())
	}
}

func TestAContainerIsNotStartedInAnotherCgroup(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	h := newLimitedHost(t, "NVIDIA_GPU_MEMORY_LIMIT=8192", kept)
	check(t, h.create(t))
	other := h.cgroup + "-other"
	check(t, os.Mkdir(other, 0o755))
	t.Cleanup(func() { removeCgroup(t.Context(), strings.TrimPrefix(other, cgroupRoot)) })
	move := func(dir string) {
		check(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(fmt.Sprint(h.tasks.pid)), 0o600))
	}
	move(other)
	_, err := h.Start(t.Context(), &taskapi.StartRequest{ID: "c"})
	wantText(t, err, "whose GPU memory is limited: it was moved to "+strings.TrimPrefix(other, cgroupRoot))
	move(h.cgroup)
	_, err = h.Start(t.Context(), &taskapi.StartRequest{ID: "c"})
	check(t, err)
	if calls := strings.Join(h.tasks.called(), " "); calls != "create start" {
		t.Errorf("calls %q", calls)
	}
}

func TestALimitNeedsACgroupOfItsOwn(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	h := newLimitedHost(t, "NVIDIA_GPU_MEMORY_LIMIT=8192", kept)
	check(t, h.create(t))
	_, err := h.Create(t.Context(), &taskapi.CreateTaskRequest{ID: "d", Bundle: limitedBundle(t, "NVIDIA_GPU_MEMORY_LIMIT=9216")})
	wantText(t, err, `has the limits of container "c": give each container a cgroup of its own`)
	if got := h.questions(t); got != "set 8192 8192" || h.records() != 1 {
		t.Errorf("%q, %d records", got, h.records())
	}
	// In the root cgroup everything would be limited.
	check(t, os.WriteFile(filepath.Join(cgroupRoot, "cgroup.procs"), []byte(fmt.Sprint(h.tasks.pid)), 0o600))
	_, err = h.Create(t.Context(), &taskapi.CreateTaskRequest{ID: "e", Bundle: limitedBundle(t, "NVIDIA_GPU_MEMORY_LIMIT=9216")})
	wantText(t, err, `no cgroup of its own, but "/": give each container a cgroup of its own`)
	if got := h.questions(t); got != "" || h.records() != 1 {
		t.Errorf("%q, %d records", got, h.records())
	}
}

func TestTheLimitOfASuspendedContainer(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	h := newLimitedHost(t, "NVIDIA_GPU_MEMORY_LIMIT=8192", kept)
	check(t, h.create(t))
	c := h.get("c")
	c.state, c.held = suspended, probe.Memory{1: {h.GPUs[0].UUID: 7 << 30}}
	h.update("c", c)
	h.tasks.status = task.Status_PAUSED
	check(t, h.change(t, "6Gi"))
	_, err := h.Resume(t.Context(), &taskapi.ResumeRequest{ID: "c"})
	wantText(t, err, "it needs 7168 MiB on GPU "+h.GPUs[0].UUID+", and its limit is 6144 MiB: raise it")
	check(t, h.change(t, "7Gi"))
	check(t, h.get("c").checkMemory("c"))
}

func TestWhatASuspendedContainerNeedsIsWithinItsLimits(t *testing.T) {
	c := gpuContainer{
		held:   probe.Memory{1: {"GPU-a": 3 << 30}, 2: {"GPU-a": 2 << 30}},
		memory: gpuMemory{limits: []memlimit.Limit{{UUID: "GPU-a", Limit: 4 << 30}}},
	}
	wantText(t, c.checkMemory("c"), "it needs 5120 MiB on GPU GPU-a, and its limit is 4096 MiB: raise it")
	c.placement = map[string]string{"GPU-a": "GPU-b", "GPU-b": "GPU-a"}
	check(t, c.checkMemory("c"))
	c.placement, c.memory.limits[0].Limit = nil, 0
	check(t, c.checkMemory("c"))
}
