//go:build gpu

package gpu

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

const (
	mib     = 1 << 20
	gib     = 1 << 30
	noLimit = "18446744073709551615"
)

// limitTrial tries on a real driver what docs/memory-limits-driver.md lists, in that order. What the
// shim relies on is an error if it is not so; what is unknown is logged as ANSWER.
type limitTrial struct {
	testtree.Cgroups
	uuid, leaf string
}

// ask asks the probe as the shim does.
func (l limitTrial) ask(q probe.Questions) probe.Answers {
	return probe.Ask(func() (string, error) { return filepath.Join(testenv.ShimDir(), "nvidia-shimctl"), nil }, probe.StartProcess, q)
}

func (l limitTrial) set(cgroup string, soft, hard uint64) error {
	l.Helper()
	dir, err := os.Open(cgroup)
	testtree.Check(l, err)
	defer dir.Close()
	return probe.SetMemoryLimits(l.ask, dir, []probe.MemoryLimit{{UUID: l.uuid, Soft: soft, Hard: hard}})
}

func (l limitTrial) read(cgroup string) ([]probe.MemoryUse, error) {
	l.Helper()
	dir, err := os.Open(cgroup)
	testtree.Check(l, err)
	defer dir.Close()
	return probe.ReadMemoryLimits(l.ask, dir, []string{l.uuid})
}

// run runs one of Programs in a cgroup, or in that of the test if cgroup is "", and returns what it
// prints.
func (l limitTrial) run(cgroup string, arguments ...string) string {
	l.Helper()
	dir, err := compiled()
	testtree.Check(l, err)
	command := `"$@"`
	if cgroup != "" {
		command = "echo $$ >" + cgroup + `/cgroup.procs && exec "$@"`
	}
	arguments[0] = filepath.Join(dir, arguments[0])
	cmd := exec.Command("sh", append([]string{"-c", command, "sh"}, arguments...)...)
	cmd.Env = append(os.Environ(), "CUDA_VISIBLE_DEVICES="+l.uuid)
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		text += " (" + err.Error() + ")"
	}
	return text
}

func (l limitTrial) answer(question, answer string) {
	l.Helper()
	l.Logf("ANSWER: %s: %s", question, answer)
}

func TestMemoryLimitsOfTheDriver(t *testing.T) {
	gpus := hostGPUs(t)
	l := limitTrial{testtree.NewCgroups(t), gpus[0].UUID, ""}
	l.leaf = l.Make("pod/leaf", true)
	row := smi(t, "gpu", "driver_version", "persistence_mode", "mig.mode.current")[0]
	branch, _, _ := strings.Cut(row["driver_version"], ".")
	if n, err := strconv.Atoi(branch); err != nil || n < 615 {
		err := l.set(l.leaf, 0, gib)
		want := "driver " + row["driver_version"] + ": the driver has no memory limits, which need 615 or later"
		if !errors.Is(err, probe.ErrNoMemoryLimits) || err.Error() != want {
			t.Errorf("the refusal is %q, want %q", err, want)
		}
		t.Skipf("NOT TESTED: the driver is %s, and 615 is the first with memory limits: docs/memory-limits-driver.md lists what to try with one", row["driver_version"])
	}
	if row["mig.mode.current"] == "Enabled" || row["persistence_mode"] != "Enabled" {
		t.Skipf("NOT TESTED: GPU 0 needs persistence mode on and MIG off: %v", row)
	}
	l.backend()
	l.firstLimit()
	l.allocation()
	l.codes()
	l.ancestors()
}

// backend says which one the driver has chosen.
func (l limitTrial) backend() {
	l.Helper()
	capacity, err := os.ReadFile(filepath.Join(filepath.Dir(l.Top), "dmem.capacity"))
	l.answer("1. regions of dmem", fmt.Sprintf("%q, %v", capacity, err))
	params, _ := os.ReadFile("/proc/driver/nvidia/params")
	for line := range strings.Lines(string(params)) {
		if strings.HasPrefix(line, "RegistryDwords:") {
			l.answer("1. registry", line)
		}
	}
}

func (l limitTrial) firstLimit() {
	l.Helper()
	l.answer("2. read before any limit", l.run("", "limits", l.uuid, l.leaf))
	if err := l.set(l.leaf, 2*gib, 4*gib); err != nil {
		l.Fatalf("2. the first limit: %v", err)
	}
	use, err := l.read(l.leaf)
	if err != nil || len(use) != 1 {
		l.Fatalf("2. read back: %+v, %v", use, err)
	}
	l.answer("2. read back after soft 2 GiB and hard 4 GiB", fmt.Sprintf("%+v", use[0]))
	l.answer("2. 4000 MB are rounded to", l.run("", "limits", l.uuid, l.leaf, "4000000000", "4000000000")+", "+l.run("", "limits", l.uuid, l.leaf))
	for dir := l.leaf; len(dir) >= len(l.Top); dir = filepath.Dir(dir) {
		for _, name := range []string{"dmem.min", "dmem.max", "dmem.current"} {
			if data, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
				l.answer("2. "+strings.TrimPrefix(dir, l.Top)+"/"+name, fmt.Sprintf("%q", data))
			}
		}
	}
}

// allocation checks what the limit is for.
func (l limitTrial) allocation() {
	l.Helper()
	testtree.Check(l, l.set(l.leaf, 0, 4*gib))
	l.answer("3. total memory of NVML in the cgroup, outside", l.run(l.leaf, "limits", l.uuid)+", "+l.run("", "limits", l.uuid))
	if out := l.run(l.leaf, "hold", "2048", "0"); !strings.HasPrefix(out, "holding ") {
		l.Errorf("3. 2 GiB below a limit of 4 GiB: %s", out)
	}
	if out := l.run(l.leaf, "hold", "5120", "0"); !strings.HasPrefix(out, "cuMemAlloc_v2 failed: 2") {
		l.Errorf("3. 5 GiB above a limit of 4 GiB: %s", out)
	}
	l.answer("3. used after the processes have ended", l.run("", "limits", l.uuid, l.leaf))
}

// codes are those that nvml.h does not say.
func (l limitTrial) codes() {
	l.Helper()
	small := strconv.Itoa(64 * mib)
	l.answer("4. soft more than hard", l.run("", "limits", l.uuid, l.leaf, "4294967296", "2147483648"))
	l.answer("4. more than the GPU has", l.run("", "limits", l.uuid, l.leaf, "0", "1125899906842624"))
	l.answer("4. no such cgroup", l.run("", "limits", l.uuid, l.leaf+"x", "0", small))
	l.answer("4. a directory that is no cgroup", l.run("", "limits", l.uuid, "/etc", "0", small))
	root := filepath.Dir(l.Top)
	l.answer("4. the root, read only", l.run("", "limits", l.uuid, root))
	closed := l.Make("closed/leaf", false)
	l.answer("4. a cgroup without the controller's files", l.run("", "limits", l.uuid, closed, "0", "4294967296"))
	l.run("", "limits", l.uuid, closed, "0", noLimit)
	dir, err := compiled()
	testtree.Check(l, err)
	cmd := exec.Command("sh", "-c", "echo $$ >"+l.leaf+"/cgroup.procs && exec "+filepath.Join(dir, "hold")+" 1024 600")
	cmd.Env = append(os.Environ(), "CUDA_VISIBLE_DEVICES="+l.uuid)
	out, err := cmd.StdoutPipe()
	testtree.Check(l, err)
	testtree.Check(l, cmd.Start())
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	if _, err := out.Read(make([]byte, 64)); err != nil { // it has the memory
		l.Fatal(err)
	}
	if err := l.set(l.leaf, 0, 64*mib); !errors.Is(err, probe.ErrBelowUse) {
		l.Errorf("4. below the use: %v", err)
	}
	l.answer("4. below the use, without our check", l.run("", "limits", l.uuid, l.leaf, "0", small))
}

// ancestors checks that a limit that is taken back leaves nothing, and shows what another leaves.
func (l limitTrial) ancestors() {
	l.Helper()
	sum := func() string {
		data, err := os.ReadFile(filepath.Join(l.Top, "dmem.min"))
		if err != nil {
			return "no dmem.min"
		}
		return string(data)
	}
	testtree.Check(l, l.set(l.leaf, 0, 1<<64-1))
	before := sum()
	testtree.Check(l, l.set(l.leaf, gib, gib))
	l.answer("5. dmem.min of the pod's parent with a soft limit", fmt.Sprintf("%q, before %q", sum(), before))
	testtree.Check(l, l.set(l.leaf, 0, 1<<64-1))
	if after := sum(); after != before {
		l.Errorf("5. a limit that was taken back leaves %q, was %q", after, before)
	}
	other := l.Make("careless/leaf", true)
	l.run("", "limits", l.uuid, other, strconv.Itoa(gib), strconv.Itoa(gib))
	l.RemoveCgroup(other)
	l.answer("5. after a cgroup with a soft limit was removed", fmt.Sprintf("%q", sum()))
	dir, err := os.Open(filepath.Dir(other))
	testtree.Check(l, err)
	defer dir.Close()
	testtree.Check(l, probe.ReleaseMemory(l.ask, dir, []probe.MemoryLimit{{UUID: l.uuid, Soft: gib, Hard: 1<<64 - 1}}))
	if after := sum(); after != before {
		l.Errorf("5. a request that was released leaves %q, was %q", after, before)
	}
}
