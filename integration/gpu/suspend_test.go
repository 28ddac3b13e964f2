//go:build gpu

package gpu

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

const suspends = "[container]\non-pause = \"suspend-gpu\"\n"

// counting is a container with programs that count in GPU memory.
type counting struct {
	env  *testenv.Env
	id   string
	pids []int // of the programs, in order
}

// startCounting starts a container with programs "count MIB [DEVICE]", given as "MIB [DEVICE]", and
// waits until all of them count.
func startCounting(t *testing.T, env *testenv.Env, visible string, programs ...string) *counting {
	t.Helper()
	text := ""
	for i, arguments := range programs {
		text += fmt.Sprintf("count %s >/tmp/%d 2>&1 & ", arguments, i)
	}
	o := script(env, visible, text+"wait; sleep 600")
	o.Detach = true
	c := &counting{env: env, id: env.Run(t, o).ID}
	c.findPrograms(t, "count", len(programs))
	c.counts(t)
	return c
}

// findPrograms waits until the container has n programs of this name.
func (c *counting) findPrograms(t *testing.T, name string, n int) {
	t.Helper()
	testenv.Await(t, "the programs have started", func() bool {
		c.pids = nil
		for _, pid := range c.env.PIDs(t, c.id) {
			if comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); string(comm) == name+"\n" {
				c.pids = append(c.pids, pid)
			}
		}
		return len(c.pids) == n
	})
}

// counts waits until each program has passed twice more.
func (c *counting) counts(t *testing.T) {
	t.Helper()
	for i := range c.pids {
		testenv.AwaitCount(t, fmt.Sprintf("/proc/%d/root/tmp/%d", c.pids[0], i))
	}
}

// task is a command of ctr; it returns how long it took.
func (c *counting) task(t *testing.T, verb string) time.Duration {
	t.Helper()
	start := time.Now()
	c.env.Ctr(t, "tasks", verb, c.id)
	return time.Since(start)
}

// ask asks the host's nvidia-smi about a GPU.
func ask(t *testing.T, g gpu, query string) string {
	t.Helper()
	out, err := exec.Command("nvidia-smi", "-i", g.UUID, query, "--format=csv,noheader,nounits").CombinedOutput()
	if err != nil {
		t.Fatalf("nvidia-smi %s: %v: %s", query, err, out)
	}
	return strings.TrimSpace(string(out))
}

// memoryOf is the GPU's memory in use and free, in MiB.
func memoryOf(t *testing.T, g gpu) (used, free int) {
	t.Helper()
	if _, err := fmt.Sscanf(ask(t, g, "--query-gpu=memory.used,memory.free"), "%d, %d", &used, &free); err != nil {
		t.Fatal(err)
	}
	return used, free
}

// rss is a process's resident memory as the kernel writes it.
func rss(t *testing.T, pid int) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), "VmRSS:")
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(line)
}

// byHand makes the driver's calls on the host, without the shim, and returns how long the process
// took.
func byHand(t *testing.T, what string, pid int) time.Duration {
	t.Helper()
	dir, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	out, err := exec.Command(filepath.Join(dir, "suspend"), what, strconv.Itoa(pid)).CombinedOutput()
	if err != nil {
		t.Fatalf("suspend %s %d: %v: %s", what, pid, err, out)
	}
	return time.Since(start)
}

// A paused container gives all of its GPU memory back; another container can use the whole GPU
// meanwhile, and the results are correct afterwards.
func TestSuspendGivesTheGPUBack(t *testing.T) {
	g := hostGPUs(t)[0]
	env := newEnv(t, suspends)
	before, _ := memoryOf(t, g)
	const size = 5700
	c := startCounting(t, env, g.Index, strconv.Itoa(size))
	used, _ := memoryOf(t, g)
	t.Logf("driver %s; %d MiB used before, %d with %d MiB counted", ask(t, g, "--query-gpu=driver_version,name"), before, used, size)
	took := map[string][]int64{}
	for range 7 {
		for _, verb := range []string{"suspend", "resume"} {
			took["by hand "+verb] = append(took["by hand "+verb], byHand(t, verb, c.pids[0]).Milliseconds())
		}
		for _, verb := range []string{"pause", "resume"} {
			took["ctr task "+verb] = append(took["ctr task "+verb], c.task(t, verb).Milliseconds())
		}
	}
	for _, what := range slices.Sorted(maps.Keys(took)) {
		list := slices.Sorted(slices.Values(took[what]))
		t.Logf("%s: median %d ms (%d to %d)", what, list[len(list)/2], list[0], list[len(list)-1])
	}
	c.counts(t)
	t.Logf("resident: %s", rss(t, c.pids[0]))
	c.task(t, "pause")
	t.Logf("resident while paused: %s", rss(t, c.pids[0]))
	paused, free := memoryOf(t, g)
	if paused > before+16 {
		t.Errorf("%d MiB are in use while the container is paused, %d before it was started", paused, before)
	}
	if list := ask(t, g, "--query-compute-apps=pid,used_memory"); list != "" {
		t.Errorf("processes on the GPU while the container is paused: %s", list)
	}
	if found := holds(c.pids[0]); slices.ContainsFunc(found, func(s string) bool { return strings.HasPrefix(s, "fd ") }) {
		t.Errorf("the suspended process has %v", found)
	}
	other := startHold(t, env, g.Index, free-1024)
	filled, _ := memoryOf(t, g)
	t.Logf("paused: %d MiB in use; another container then has %d", paused, filled)
	env.Remove(t, other)
	c.task(t, "resume")
	c.counts(t)
	env.Remove(t, c.id)
}

// What Resume does if the memory is not there: the container stays paused and can be resumed later.
func TestSuspendOnAFullGPU(t *testing.T) {
	g := hostGPUs(t)[0]
	env := newEnv(t, suspends)
	c := startCounting(t, env, g.Index, "2048", "2048")
	c.task(t, "pause")
	_, free := memoryOf(t, g)
	other := startHold(t, env, g.Index, free-2048)
	for range 2 {
		_, _, err := env.CtrErr("tasks", "resume", c.id)
		if err == nil || !strings.Contains(err.Error(), "MiB are needed: free memory, then resume again") {
			t.Errorf("resume on a full GPU: %v", err)
		}
	}
	env.Remove(t, other)
	c.task(t, "resume")
	c.counts(t)
	env.Remove(t, c.id)
}

// Several processes of a container, on two GPUs if there are so many, again and again, beside a
// container that is not paused.
func TestSuspendSeveralProcessesManyTimes(t *testing.T) {
	gpus := hostGPUs(t)
	gpus = gpus[:min(len(gpus), 2)]
	last := strconv.Itoa(len(gpus) - 1) // a device in the container
	env := newEnv(t, suspends)
	neighbour := startCounting(t, env, gpus[0].Index, "64")
	c := startCounting(t, env, visible(gpus), "256", "64 "+last, "64 "+last)
	used := func() (list []int) {
		for _, g := range gpus {
			mib, _ := memoryOf(t, g)
			list = append(list, mib)
		}
		return list
	}
	was, first := used(), rss(t, c.pids[0])
	start := time.Now()
	const cycles = 100
	for range cycles {
		c.task(t, "pause")
		c.task(t, "resume")
		c.counts(t)
	}
	now := used()
	t.Logf("%d cycles in %s; %d MiB used at first, then %d; resident %s, then %s", cycles, time.Since(start), was, now, first, rss(t, c.pids[0]))
	for i := range gpus {
		if now[i] > was[i]+16 {
			t.Errorf("GPU %s: %d MiB are in use after %d cycles, %d before", gpus[i].Index, now[i], cycles, was[i])
		}
	}
	env.Remove(t, c.id)
	neighbour.counts(t)
	env.Remove(t, neighbour.id)
}

// visible is NVIDIA_VISIBLE_DEVICES for some GPUs.
func visible(gpus []gpu) string {
	var list []string
	for _, g := range gpus {
		list = append(list, g.Index)
	}
	return strings.Join(list, ",")
}
