package suspend

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/console"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

func TestMain(m *testing.M) { simhost.Main(m) }

const imageRef = "test/count:latest"

// asked is the configuration that suspends GPUs.
const asked = "\n[container]\non-pause = \"suspend-gpu\"\n"

const mib = 1 << 20

type host struct {
	*simhost.Host
	// out is where programs write in a container: a tmpfs is in a checkpoint.
	out string
	// quiet has no short processes: CRIU cannot save a process that waits for its vfork.
	quiet bool
	// flags are further flags of ctr run.
	flags []string
	// visible are the GPUs of containers.
	visible    string
	privileged bool
}

func newHost(t *testing.T, o simhost.Options) host {
	t.Helper()
	h := host{Host: simhost.New(t, o), out: "/dev/shm", visible: "0"}
	err := os.MkdirAll(h.Driver.ProcDir(), 0o755)
	if err == nil {
		err = unix.Mount("proc", h.Driver.ProcDir(), "proc", unix.MS_RDONLY, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(h.Driver.ProcDir(), 0); err != nil {
			t.Error(err)
		}
	})
	program, tar := filepath.Join(h.Dir, "count"), filepath.Join(h.Dir, "count.tar")
	testenv.CompileCount(t, program)
	image, err := images.FromHostPrograms(imageRef, []string{"sh", "sleep"}, images.FromHost("usr/bin/count", 0o755, program))
	if err == nil {
		err = image.Write(tar)
	}
	if err != nil {
		t.Fatal(err)
	}
	h.Import(t, tar)
	h.Image = imageRef
	return h
}

// container is a container whose processes count in GPU memory.
type container struct {
	host
	id       string
	init     int
	counters []int // process ids
}

// start starts a container with programs that count in 2 MiB of its first GPU each, and waits until they
// have passed twice. With the file /tmp/late in the container a process that did not use CUDA
// counts too, and /tmp/later starts another; until then short processes without CUDA come and go.
func (h host) start(t *testing.T, programs int, annotations ...string) *container {
	t.Helper()
	script := ""
	for i := range programs {
		script += fmt.Sprintf("count 2 >%s/%d & ", h.out, i)
	}
	o := simhost.Visible(h.visible)
	o.Privileged = h.privileged
	if !h.quiet {
		const late = "(while [ ! -e /tmp/%s ]; do sleep 0.05; done; %s count 2 >%s/%d; :) & "
		script += fmt.Sprintf(late, "late", "exec", h.out, programs) + fmt.Sprintf(late, "later", "", h.out, programs+1)
	}
	script += "wait; sleep 600"
	o.Args, o.Annotations, o.Extra = []string{"/bin/sh", "-c", script}, annotations, h.flags
	c := &container{host: h, id: h.Start(t, o)}
	c.findInit(t)
	c.counts(t, programs)
	for _, pid := range c.PIDs(t, c.id) {
		if comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); string(comm) == "count\n" {
			c.counters = append(c.counters, pid)
		}
	}
	return c
}

// file returns where program i writes.
func (c *container) file(i int) string {
	return fmt.Sprintf("/proc/%d/root%s/%d", c.init, c.out, i)
}

// counts waits until each program has passed twice more.
func (c *container) counts(t *testing.T, programs int) {
	t.Helper()
	for i := range programs {
		testenv.AwaitCount(t, c.file(i))
	}
}

func (c *container) wantMemory(t *testing.T, want int64) {
	t.Helper()
	if got := simhost.GPUMemory(t, c.PIDs(t, c.id)...); got != want {
		t.Errorf("the processes have %d bytes of GPU memory, want %d", got, want)
	}
}

func (c *container) wantStatus(t *testing.T, want string) {
	t.Helper()
	list := c.Ctr(t, "tasks", "ls")
	for line := range strings.Lines(list) {
		if f := strings.Fields(line); len(f) > 2 && f[0] == c.id {
			if f[2] != want {
				t.Errorf("the task is %s, want %s", f[2], want)
			}
			return
		}
	}
	t.Errorf("the task is not there, want %s:\n%s", want, list)
}

func (c *container) pause(t *testing.T) { t.Helper(); c.Ctr(t, "tasks", "pause", c.id) }

func (c *container) resume(t *testing.T) { t.Helper(); c.Ctr(t, "tasks", "resume", c.id) }

// refused is a task command that must fail, for a reason with these words.
func (c *container) refused(t *testing.T, verb string, words ...string) {
	t.Helper()
	_, _, err := c.CtrErr("tasks", verb, c.id)
	if err == nil {
		t.Fatalf("ctr tasks %s succeeded", verb)
	}
	simhost.Want(t, err.Error(), words...)
	if strings.Count(strings.TrimSpace(err.Error()), "\n") > 0 {
		t.Errorf("more than one line:\n%v", err)
	}
}

func steer(t *testing.T, h host, list ...sim.Checkpoint) {
	t.Helper()
	if err := h.Driver.Checkpoints(list...); err != nil {
		t.Fatal(err)
	}
}

// probes are the processes of nvidia-shimctl and nvidia-shim-nvml.
func probes(t *testing.T) (pids []int) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(testenv.ShimDir())
	if err != nil {
		t.Fatal(err)
	}
	exes, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, exe := range exes {
		var pid int
		if to, _ := os.Readlink(exe); strings.HasPrefix(to, dir+"/nvidia-shim") {
			fmt.Sscanf(exe, "/proc/%d/exe", &pid)
			pids = append(pids, pid)
		}
	}
	return pids
}

// whileWaiting runs a task command, and fn while it waits in a function of libcuda. It returns the
// command's error.
func (c *container) whileWaiting(t *testing.T, verb string, at sim.Checkpoint, fn func()) error {
	t.Helper()
	at.Result = sim.Wait
	steer(t, c.host, at)
	done := make(chan error, 1)
	go func() {
		_, _, err := c.CtrErr("tasks", verb, c.id)
		done <- err
	}()
	testenv.Await(t, "the probe waits in libcuda", func() bool {
		return slices.ContainsFunc(probes(t), func(pid int) bool {
			fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
			return slices.ContainsFunc(fds, func(fd string) bool {
				to, _ := os.Readlink(fd)
				return strings.HasPrefix(to, "/memfd:nvidia-sim-cuda")
			})
		})
	})
	fn()
	steer(t, c.host)
	return <-done
}

func TestAPausedContainerGivesItsGPUBack(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := newHost(t, simhost.Options{Config: asked, Env: testenv.Options{Cgroup: version}})
		c := h.start(t, 2)
		for range 3 {
			c.wantMemory(t, 4*mib)
			c.pause(t)
			c.wantStatus(t, "PAUSED")
			c.wantMemory(t, 0)
			c.refused(t, "pause")
			c.wantMemory(t, 0)
			c.resume(t)
			c.wantStatus(t, "RUNNING")
			c.counts(t, 2)
		}
		c.refused(t, "resume")
		c.counts(t, 2)
	})
}

func TestAContainerWithoutCUDAIsPaused(t *testing.T) {
	h := newHost(t, simhost.Options{Config: asked})
	c := h.start(t, 0)
	c.pause(t)
	c.wantStatus(t, "PAUSED")
	c.resume(t)
	c.wantStatus(t, "RUNNING")
}

func TestAContainerAsksByAnnotation(t *testing.T) {
	h := newHost(t, simhost.Options{})
	c := h.start(t, 1)
	c.pause(t)
	c.wantMemory(t, 2*mib)
	c.resume(t)
	c = h.start(t, 1, "io.containerd.nvidia.on-pause=suspend-gpu")
	c.pause(t)
	c.wantMemory(t, 0)
	c.resume(t)
	c.counts(t, 1)
	o := simhost.Visible("0")
	o.Annotations = []string{"io.containerd.nvidia.on-pause=stop"}
	h.Refused(t, o, `annotation io.containerd.nvidia.on-pause: "stop" is not suspend-gpu or freeze`)
}

func TestShimctlSuspendsAndResumes(t *testing.T) {
	h := newHost(t, simhost.Options{Config: asked + "[policy]\nkubernetes = \"trust-env\"\n"})
	begin := time.Now()
	suspended := func(c *container) bool {
		t.Helper()
		var s struct {
			Containers []struct {
				ID    string
				Since *time.Time `json:"suspended_since"`
				Bytes int64      `json:"suspended_bytes"`
			}
		}
		if err := json.Unmarshal([]byte(h.Ctl(t, "--json", "status", "--state", h.State)), &s); err != nil {
			t.Fatal(err)
		}
		for _, of := range s.Containers {
			if of.ID == c.id {
				suspended := of.Since != nil && of.Since.After(begin)
				if (of.Bytes == 2*mib) != suspended {
					t.Errorf("status says that %d bytes are suspended", of.Bytes)
				}
				return suspended
			}
		}
		t.Fatalf("status lacks container %s", c.id)
		return false
	}
	check := func(c *container, paused bool) {
		t.Helper()
		c.wantStatus(t, map[bool]string{false: "RUNNING", true: "PAUSED"}[paused])
		if suspended(c) != paused {
			t.Errorf("status says %v, want %v", !paused, paused)
		}
		if paused {
			c.wantMemory(t, 0)
		} else {
			c.counts(t, 1)
		}
	}
	a := h.start(t, 1, simhost.PodAnnotations("ml", "web", "a")...)
	b := h.start(t, 1, simhost.PodAnnotations("ml", "web", "b")...)
	keeps := h.start(t, 1, append(simhost.PodAnnotations("ml", "web", "keeps"), "io.containerd.nvidia.on-pause=freeze")...)
	out := h.Ctl(t, "suspend", "--state", h.State, a.id)
	if want := regexp.MustCompile(`^` + a.id + `: suspended in \d+\.\d s, 2 MiB of GPU memory moved, \d+ MiB/s\nGPU 0: \d+ of \d+ MiB in use\nhost: \d+ MiB of memory available\n$`); !want.MatchString(out) {
		t.Errorf("suspend prints %q", out)
	}
	check(a, true)
	check(b, false)
	simhost.Want(t, h.Ctl(t, "status", "--state", h.State), "suspended", "SUSPENDED  ON THE HOST  SINCE", "ml/web     2 MiB")
	h.Ctl(t, "suspend", "--state", h.State, "--pod", "ml/web")
	check(a, true)
	check(b, true)
	check(keeps, false)
	out = h.Ctl(t, "resume", "--state", h.State, "--pod", "ml/web")
	for _, c := range []*container{a, b} {
		if want := regexp.MustCompile(`(?m)^` + c.id + `: resumed in \d+\.\d s, 2 MiB of GPU memory moved, \d+ MiB/s$`); !want.MatchString(out) {
			t.Errorf("resume prints %q", out)
		}
	}
	if strings.Count(out, "\nGPU ") != 1 || strings.Count(out, "\nhost: ") != 1 { // both have one GPU
		t.Errorf("resume prints %q", out)
	}
	check(a, false)
	check(b, false)
	h.Ctl(t, "suspend", "--state", h.State, b.id)
	h.Ctl(t, "resume", "--state", h.State, b.id)
	check(b, false)
	for _, refused := range []struct{ argument, words string }{
		{keeps.id, "container " + keeps.id + " keeps its GPUs when it is paused: see container.on-pause, and create it again"},
		{"nobody", `no container "nobody" has a GPU`},
		{"--pod=ml/none", `pod "ml/none" has no container to suspend: see container.on-pause`},
		{"--state=" + h.State, "suspend needs one CONTAINER or --pod"},
	} {
		cmd := exec.Command(filepath.Join(testenv.ShimDir(), "nvidia-shimctl"), "--config", h.Driver.ConfigPath, "suspend", "--state", h.State, refused.argument)
		out, err := cmd.CombinedOutput()
		if err == nil {
			t.Errorf("suspend %s succeeded", refused.argument)
		}
		simhost.Want(t, string(out), refused.words)
	}
	steer(t, h, sim.Checkpoint{Function: "Lock", Result: 600})
	refused, err := exec.Command(filepath.Join(testenv.ShimDir(), "nvidia-shimctl"), "--config", h.Driver.ConfigPath, "suspend", "--state", h.State, a.id).CombinedOutput()
	want := fmt.Sprintf("nvidia-shimctl: container %[1]s: nvidia: cannot suspend the GPUs of container %[1]s: process %[2]d: cuCheckpointProcessLock: CUDA_ERROR_NOT_READY: its GPU work did not end within 10s\n", a.id, a.counters[0])
	if err == nil || string(refused) != want {
		t.Errorf("%v: %s\nwant %s", err, refused, want)
	}
}

// If one container of a pod cannot be suspended, those before it go on.
func TestAPodIsSuspendedWholeOrNotAtAll(t *testing.T) {
	h := newHost(t, simhost.Options{Config: asked + "[policy]\nkubernetes = \"trust-env\"\n"})
	var list []*container
	for _, name := range []string{"a", "b", "c"} {
		list = append(list, h.start(t, 1, simhost.PodAnnotations("ml", "web", name)...))
	}
	a, b, c := list[0], list[1], list[2]
	suspend := func() (string, error) {
		cmd := exec.Command(filepath.Join(testenv.ShimDir(), "nvidia-shimctl"), "--config", h.Driver.ConfigPath, "suspend", "--state", h.State, "--pod", "ml/web")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	fails := sim.Checkpoint{Function: "Lock", PID: c.counters[0], Result: 801}
	reason := fmt.Sprintf("container %[1]s: nvidia: cannot suspend the GPUs of container %[1]s: process %[2]d: cuCheckpointProcessLock", c.id, c.counters[0])
	steer(t, h, fails)
	out, err := suspend()
	if err == nil {
		t.Fatalf("suspend succeeded: %s", out)
	}
	simhost.Want(t, out, reason, fmt.Sprintf("; container %s was resumed; container %s was resumed\n", b.id, a.id))
	for _, c := range list {
		c.wantStatus(t, "RUNNING")
		c.counts(t, 1)
	}
	steer(t, h, fails, sim.Checkpoint{Function: "Restore", PID: a.counters[0], Result: 999})
	if out, err = suspend(); err == nil {
		t.Fatalf("suspend succeeded: %s", out)
	}
	simhost.Want(t, out, reason, fmt.Sprintf("; container %s was resumed; container %s stays suspended: nvidia: cannot resume", b.id, a.id))
	a.wantStatus(t, "PAUSED")
	b.counts(t, 1)
	steer(t, h)
	h.Ctl(t, "resume", "--state", h.State, "--pod", "ml/web")
	a.counts(t, 1)
}

// On a terminal nvidia-shimctl shows that something happens, in one line that goes at the end.
func TestShimctlShowsProgress(t *testing.T) {
	h := newHost(t, simhost.Options{Config: asked})
	c := h.start(t, 1)
	master, slave := terminal(t)
	steer(t, h, sim.Checkpoint{Function: "Checkpoint", Result: sim.Wait})
	cmd := exec.Command(filepath.Join(testenv.ShimDir(), "nvidia-shimctl"), "--config", h.Driver.ConfigPath, "suspend", "--state", h.State, c.id)
	cmd.Env, cmd.Stderr = append(os.Environ(), "TERM=xterm"), slave
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	// If no line comes, make the program end, so that reading ends.
	defer time.AfterFunc(2*time.Minute, func() { _ = h.Driver.Checkpoints() }).Stop()
	screen := bufio.NewReader(master)
	line, err := screen.ReadString('y') // the last letter of the line
	steer(t, h)
	rest, _ := io.ReadAll(screen) // ends with EIO when the program has ended
	if failed := cmd.Wait(); failed != nil || err != nil {
		t.Fatalf("%v, %v: %s%s", failed, err, line, rest)
	}
	if want := regexp.MustCompile(`^\r\x1b\[K` + c.id + `: \d+s, \d+ MiB in host memory$`); !want.MatchString(line) || !strings.HasSuffix(string(rest), "\r\x1b[K") {
		t.Errorf("%q, then %q", line, rest)
	}
	c.wantStatus(t, "PAUSED")
}

// terminal is a pseudoterminal of 80 columns.
func terminal(t *testing.T) (master console.Console, slave *os.File) {
	t.Helper()
	master, name, err := console.NewPty()
	if err == nil {
		t.Cleanup(func() { master.Close() })
		err = master.Resize(console.WinSize{Height: 24, Width: 80})
	}
	if err == nil {
		slave, err = os.OpenFile(name, os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return master, slave
}

func TestAPauseThatFailsLeavesTheContainerRunning(t *testing.T) {
	h := newHost(t, simhost.Options{Config: asked})
	c := h.start(t, 2)
	second := c.counters[1]
	for _, test := range []struct {
		function string
		result   int
		words    string
	}{
		{"Lock", 600, "CUDA_ERROR_NOT_READY: its GPU work did not end within 10s"},
		// As seen of a client of MPS, and of managed memory.
		{"Lock", 801, "CUDA_ERROR_NOT_SUPPORTED: it uses MPS, or memory that the driver cannot move"},
		{"Checkpoint", 801, "CUDA_ERROR_NOT_SUPPORTED: it uses MPS, or memory that the driver cannot move"},
		{"Checkpoint", 2, "CUDA_ERROR_OUT_OF_MEMORY: there is not enough free memory"},
	} {
		steer(t, h, sim.Checkpoint{Function: test.function, PID: second, Result: test.result})
		c.refused(t, "pause", fmt.Sprintf("nvidia: cannot suspend the GPUs of container %s: process %d: cuCheckpointProcess%s: %s", c.id, second, test.function, test.words))
		c.wantStatus(t, "RUNNING")
		c.wantMemory(t, 4*mib)
		c.counts(t, 2)
	}
	steer(t, h)
	c.pause(t)
	c.resume(t)
	c.counts(t, 2)
}

// The kernel would kill a process.
func TestGPUMemoryThatExceedsTheMemoryLimit(t *testing.T) {
	h := newHost(t, simhost.Options{Config: asked})
	h.flags = []string{"--memory-limit", fmt.Sprint(32 * mib)}
	c := h.start(t, 1)
	c.refused(t, "pause", fmt.Sprintf("nvidia: cannot suspend the GPUs of container %s: the memory limit of cgroup ", c.id),
		" of 32 MiB, and 34 MiB are needed for GPU memory: raise the limit")
	c.wantStatus(t, "RUNNING")
	c.counts(t, 1)
}

// libcuda does not suspend graphics. NVML shows that the GPU was not released.
func TestAProcessThatKeepsTheGPU(t *testing.T) {
	h := newHost(t, simhost.Options{Config: asked, Driver: sim.Options{MIG: []sim.MIGDevice{{GPU: 1, GI: 1}}}})
	c := h.start(t, 1)
	for gpu, uuid := range []string{h.Driver.GPUs[0].UUID, h.Driver.MIG[0].UUID} {
		if err := h.Driver.Place(sim.Process{UUID: uuid, PID: c.counters[0], Memory: mib, Graphics: true}); err != nil {
			t.Fatal(err)
		}
		c.refused(t, "pause", fmt.Sprintf("process %d still uses GPU %d (type G): only CUDA gives it back, graphics does not", c.counters[0], gpu))
		c.wantStatus(t, "RUNNING")
		c.counts(t, 1)
	}
	if err := h.Driver.Place(); err != nil {
		t.Fatal(err)
	}
	c.pause(t)
	c.wantMemory(t, 0)
	c.resume(t)
	c.counts(t, 1)
}

// Neither pausing nor undoing it works: the error says what to do, and that works.
func TestAPauseThatCannotBeUndone(t *testing.T) {
	h := newHost(t, simhost.Options{Config: asked})
	c := h.start(t, 2)
	steer(t, h, sim.Checkpoint{Function: "Checkpoint", PID: c.counters[1], Result: 801}, sim.Checkpoint{Function: "Restore", Result: 2})
	c.refused(t, "pause", fmt.Sprintf("process %d: cuCheckpointProcessCheckpoint", c.counters[1]),
		"undoing it failed too, so pause the container again or delete it", fmt.Sprintf("process %d: cuCheckpointProcessRestore", c.counters[0]))
	steer(t, h)
	c.pause(t)
	c.wantMemory(t, 0)
	c.resume(t)
	c.counts(t, 2)
}

// The same for resuming: a process that should stay suspended continues, and another does not.
func TestAResumeThatCannotBeUndone(t *testing.T) {
	h := newHost(t, simhost.Options{Config: asked})
	c := h.start(t, 2)
	c.pause(t)
	steer(t, h, sim.Checkpoint{Function: "Restore", PID: c.counters[1], Result: 999}, sim.Checkpoint{Function: "Checkpoint", PID: c.counters[0], Result: 2})
	c.refused(t, "resume", fmt.Sprintf("process %d: cuCheckpointProcessRestore", c.counters[1]),
		"undoing it failed too, so pause the container again or delete it", fmt.Sprintf("process %d: cuCheckpointProcessCheckpoint", c.counters[0]))
	c.wantStatus(t, "RUNNING")
	steer(t, h)
	c.pause(t)
	c.wantMemory(t, 0)
	c.resume(t)
	c.wantMemory(t, 4*mib)
	c.counts(t, 2)
}

func TestADriverThatCannotSuspend(t *testing.T) {
	h := newHost(t, simhost.Options{Config: asked, Driver: sim.Options{Version: "565.57.01"}})
	c := h.start(t, 1)
	c.refused(t, "pause", "the driver cannot suspend processes: it needs release 570 or later")
	c.wantStatus(t, "RUNNING")
	c.counts(t, 1)
}

func TestResumeOnAFullGPU(t *testing.T) {
	h := newHost(t, simhost.Options{Config: asked})
	if err := h.Driver.Memory(5 * mib); err != nil {
		t.Fatal(err)
	}
	c := h.start(t, 2)
	c.pause(t)
	other := h.start(t, 1)
	for range 2 { // a failure must not prevent a later success
		c.refused(t, "resume", fmt.Sprintf("nvidia: cannot resume the GPUs of container %s: 3 MiB of GPU 0 are free and 4 MiB are needed: free memory, then resume again", c.id))
		c.wantStatus(t, "PAUSED")
		c.wantMemory(t, 0)
	}
	other.counts(t, 1)
	h.Gone(t, other.id)
	c.resume(t)
	c.wantMemory(t, 4*mib)
	c.counts(t, 2)
}

// Another container takes the memory after it was found to be free: the driver can no longer
// restore that process.
func TestAGPUThatBecomesFullMeanwhile(t *testing.T) {
	h := newHost(t, simhost.Options{Config: asked})
	if err := h.Driver.Memory(5 * mib); err != nil {
		t.Fatal(err)
	}
	c := h.start(t, 2)
	c.pause(t)
	var other *container
	err := c.whileWaiting(t, "resume", sim.Checkpoint{Function: "Restore", PID: c.counters[1]}, func() { other = h.start(t, 1) })
	if err == nil {
		t.Fatal("resume succeeded")
	}
	simhost.Want(t, err.Error(), fmt.Sprintf("process %d: cuCheckpointProcessRestore: CUDA_ERROR_OUT_OF_MEMORY: there is not enough free memory", c.counters[1]))
	c.wantStatus(t, "PAUSED")
	c.wantMemory(t, 0)
	h.Gone(t, other.id)
	c.refused(t, "resume", fmt.Sprintf("process %d: cuCheckpointProcessRestore: CUDA_ERROR_OPERATING_SYSTEM: the driver cannot restore a process again for which the GPU was full", c.counters[1]), "delete the container")
	c.wantStatus(t, "PAUSED")
	h.Gone(t, c.id)
}

// As seen of a process that uses memory of another one (CUDA IPC): the driver suspends it, and cannot
// restore it.
func TestAProcessThatUsesMemoryOfAnother(t *testing.T) {
	h := newHost(t, simhost.Options{Config: asked})
	c := h.start(t, 2)
	c.pause(t)
	for _, result := range []int{1, 801} {
		steer(t, h, sim.Checkpoint{Function: "Restore", PID: c.counters[1], Result: result})
		c.refused(t, "resume", fmt.Sprintf("process %d: cuCheckpointProcessRestore: CUDA_ERROR_", c.counters[1]),
			"it uses memory of another process (CUDA IPC) or much of another GPU (peer access), which the driver cannot restore", "delete the container")
		c.wantStatus(t, "PAUSED")
		c.wantMemory(t, 0)
	}
	c.wantGone(t)
}

func TestAProcessThatEndsMeanwhile(t *testing.T) {
	h := newHost(t, simhost.Options{Config: asked})
	for _, function := range []string{"Lock", "Checkpoint"} {
		c := h.start(t, 2)
		err := c.whileWaiting(t, "pause", sim.Checkpoint{Function: function, PID: c.counters[1]}, func() {
			if err := unix.Kill(c.counters[1], unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		})
		if err != nil {
			t.Errorf("a process ended during %s: %v", function, err)
		}
		c.wantMemory(t, 0)
		c.resume(t)
		c.counts(t, 1)
		h.Gone(t, c.id)
	}
}

// The PID of a process that has ended may belong to a process of another container.
func TestAProcessWithTheNumberOfAnotherIsLeftAlone(t *testing.T) {
	h := newHost(t, simhost.Options{Config: asked})
	c := h.start(t, 1)
	p, err := procfs.Host.ID(c.counters[0])
	if err != nil {
		t.Fatal(err)
	}
	ask := func(q probe.Questions) (a probe.Answers) {
		t.Helper()
		q.Config, q.Timeout = h.Driver.ConfigPath, 30*time.Second
		a = probe.Ask(func() (string, error) { return filepath.Join(testenv.ShimDir(), "nvidia-shimctl"), nil }, probe.StartProcess, q)
		if a.MoveError != "" || a.Moved == nil {
			t.Fatalf("%+v", a)
		}
		return a
	}
	if a := ask(probe.Questions{Suspend: []procfs.ID{{PID: p.PID, Start: p.Start - 1}}}); len(*a.Moved) != 0 {
		t.Errorf("suspended %v", *a.Moved)
	}
	c.counts(t, 1)
	if a := ask(probe.Questions{Suspend: []procfs.ID{p}}); !slices.Equal(*a.Moved, []int{p.PID}) {
		t.Errorf("suspended %v", *a.Moved)
	}
	ask(probe.Questions{Resume: []procfs.ID{p}})
	c.counts(t, 1)
}

func TestAContainerThatEndsMeanwhile(t *testing.T) {
	h := newHost(t, simhost.Options{Config: asked})
	for verb, function := range map[string]string{"pause": "Checkpoint", "resume": "Restore"} {
		c := h.start(t, 1)
		if verb == "resume" {
			c.pause(t)
		}
		err := c.whileWaiting(t, verb, sim.Checkpoint{Function: function}, func() {
			c.Ctr(t, "tasks", "kill", "-s", "KILL", "--all", c.id)
		})
		if verb == "pause" && (err == nil || strings.Contains(err.Error(), "undoing")) {
			t.Errorf("%s of a container that ended: %v", verb, err)
		}
		h.Gone(t, c.id)
	}
}

// A process that starts to use the GPU while others are suspended is suspended as well.
func TestAProcessThatStartsMeanwhile(t *testing.T) {
	h := newHost(t, simhost.Options{Config: asked})
	c := h.start(t, 1)
	for i, file := range []string{"late", "later"} {
		err := c.whileWaiting(t, "pause", sim.Checkpoint{Function: "Checkpoint", PID: c.counters[0]}, func() {
			simhost.WriteFile(t, fmt.Sprintf("/proc/%d/root/tmp/%s", c.init, file), "")
			testenv.Await(t, "the late process counts", func() bool { return testenv.Passed(t, c.file(1+i)) > 0 })
		})
		if err != nil {
			t.Fatal(err)
		}
		c.wantMemory(t, 0)
		c.resume(t)
		c.counts(t, 2+i)
	}
}

func TestASuspendedContainerIsKilledAndDeleted(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := newHost(t, simhost.Options{Config: asked, Env: testenv.Options{Cgroup: version}})
		c := h.start(t, 1)
		c.pause(t)
		c.wantGone(t)
	})
}

// The shim's death ends its container, as with the stock shim, whatever it was doing.
func TestAShimThatIsKilledMeanwhile(t *testing.T) {
	h := newHost(t, simhost.Options{Config: asked})
	for _, at := range []struct{ verb, function string }{{"pause", "Lock"}, {"pause", "Checkpoint"}, {"resume", "Restore"}, {"resume", "Unlock"}} {
		c := h.start(t, 2)
		if at.verb == "resume" {
			c.pause(t)
		}
		err := c.whileWaiting(t, at.verb, sim.Checkpoint{Function: at.function, PID: c.counters[1]}, func() {
			c.killShim(t)
			testenv.Await(t, "the probe ends with the shim", func() bool { return len(probes(t)) == 0 })
		})
		if err == nil {
			t.Errorf("%s succeeded without a shim", at.verb)
		}
		c.wantGone(t)
	}
}

func (c *container) killShim(t *testing.T) {
	t.Helper()
	for _, pid := range c.ShimPIDs(c.id) {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
}

// wantGone removes the container and waits until its processes have ended.
func (c *container) wantGone(t *testing.T) {
	t.Helper()
	c.Gone(t, c.id)
	testenv.Await(t, "the container's processes end", func() bool {
		return !slices.ContainsFunc(c.counters, func(pid int) bool { return unix.Kill(pid, 0) == nil })
	})
}

// slowRunc makes a runc that waits in "pause" and "resume" while a file hold exists, and fails
// there while a file fail exists.
func slowRunc(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	tools, err := testenv.ToolsDir()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(testenv.ShimDir(), "containerd-shim-nvidia-v2"), filepath.Join(dir, "containerd-shim-nvidia-v2")); err != nil {
		t.Fatal(err)
	}
	simhost.Script(t, filepath.Join(dir, "runc"), fmt.Sprintf(`case " $* " in
*" pause "* | *" resume "*)
	[ ! -e %[1]s/fail ] || { echo "runc fails" >&2; exit 1; }
	[ ! -e %[1]s/late ] || { %[2]s "$@"; echo "runc fails" >&2; exit 1; }
	while [ -e %[1]s/hold ]; do : >%[1]s/waiting; sleep 0.02; done ;;
esac
exec %[2]s "$@"
`, dir, filepath.Join(tools, "runc")))
	return dir
}

// runc fails, or does its work before it fails.
func TestAContainerThatCannotBeFrozenGoesOn(t *testing.T) {
	dir := slowRunc(t)
	h := newHost(t, simhost.Options{Config: asked, Env: testenv.Options{ShimDir: dir}})
	for _, how := range []string{"fail", "late"} {
		c := h.start(t, 1)
		fail := simhost.WriteFile(t, filepath.Join(dir, how), "")
		c.refused(t, "pause", "runc fails")
		c.wantStatus(t, "RUNNING")
		c.counts(t, 1)
		if err := os.Remove(fail); err != nil {
			t.Fatal(err)
		}
		c.pause(t)
		simhost.WriteFile(t, fail, "")
		c.refused(t, "resume", "runc fails")
		c.wantStatus(t, "PAUSED")
		c.wantMemory(t, 0)
		if err := os.Remove(fail); err != nil {
			t.Fatal(err)
		}
		c.resume(t)
		c.counts(t, 1)
	}
}

// With cgroup v2 a frozen process can be killed. The embedded service has runc thaw the container
// then, once.
func TestAContainerThatEndedFrozenIsDeletedAfterRuncFailed(t *testing.T) {
	dir := slowRunc(t)
	h := newHost(t, simhost.Options{Config: asked, Env: testenv.Options{ShimDir: dir, Cgroup: 2}})
	c := h.start(t, 1)
	c.pause(t)
	fail := simhost.WriteFile(t, filepath.Join(dir, "fail"), "")
	if err := unix.Kill(c.init, unix.SIGKILL); err != nil { // the other processes end with it
		t.Fatal(err)
	}
	testenv.Await(t, "the task stops", func() bool { return strings.Contains(c.Ctr(t, "tasks", "ls"), "STOPPED") })
	if err := os.Remove(fail); err != nil {
		t.Fatal(err)
	}
	if _, stderr, err := c.CtrErr("tasks", "rm", c.id); err != nil {
		t.Errorf("it cannot be deleted: %s", stderr)
	}
	c.wantGone(t)
}

// Between the driver's calls and those of runc.
func TestAShimThatIsKilledWhileRuncRuns(t *testing.T) {
	dir := slowRunc(t)
	h := newHost(t, simhost.Options{Config: asked, Env: testenv.Options{ShimDir: dir}})
	for _, verb := range []string{"pause", "resume"} {
		c := h.start(t, 1)
		if verb == "resume" {
			c.pause(t)
		}
		hold, waiting := simhost.WriteFile(t, filepath.Join(dir, "hold"), ""), filepath.Join(dir, "waiting")
		done := make(chan error, 1)
		go func() {
			_, _, err := c.CtrErr("tasks", verb, c.id)
			done <- err
		}()
		testenv.Await(t, "runc waits", func() bool { _, err := os.Stat(waiting); return err == nil })
		c.killShim(t)
		if err := <-done; err == nil {
			t.Errorf("%s succeeded without a shim", verb)
		}
		_, _ = os.Remove(hold), os.Remove(waiting)
		c.wantGone(t)
	}
}
