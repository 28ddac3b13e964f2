package gpuinject

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/health"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

// say makes the watcher's file say that these GPUs are sick, by index.
func (h *testHost) say(t testing.TB, states map[int]string) {
	t.Helper()
	f := health.File{Boot: health.BootID(), Driver: h.Version, Time: time.Now()}
	for _, g := range h.GPUs {
		state := health.GPU{PCI: g.BusID, UUID: g.UUID, State: health.OK}
		if s := states[g.Index]; s != "" {
			state.State, state.Reason, state.Fix, state.Since = s, "Xid 79", "reboot the host", time.Now()
		}
		f.GPUs = append(f.GPUs, state)
	}
	testtree.Check(t, os.MkdirAll(h.cfg.Host.StateDir, 0o700))
	testtree.Check(t, health.Write(h.cfg.Host.StateDir, f))
}

func refuseSick(c *config.Config) { c.Policy.Health = config.Refuse }

// A sick GPU is refused like one that the driver cannot describe: only containers that get it.
func TestASickGPUIsRefused(t *testing.T) {
	h := newHost(t, sim.Options{GPUs: 3, MIG: []sim.MIGDevice{{GPU: 2, GI: 1}}})
	h.say(t, map[int]string{1: health.Refuse, 2: health.Warn})
	const sick = "refused: GPU 1 "
	mig := h.MIG[0].UUID
	node := func(i int) func(*specs.Spec) { return withNode(h.Majors.GPU, h.GPUs[i].Minor) }
	both := func(c *config.Config) { refuseSick(c); c.Policy.FaultyGPUs = config.Refuse }
	table{
		show: showGPUs, host: h,
		rows: []row{
			{name: "warn", env: devices("1"), want: "GPU 1"},
			{name: "off", env: devices("1"), config: func(c *config.Config) { c.Policy.Health = config.Off }, want: "GPU 1"},
			{name: "refuse, another", env: devices("0"), config: refuseSick, want: "GPU 0"},
			{name: "refuse, by index", env: devices("1"), config: refuseSick, want: sick},
			{name: "refuse, by UUID", env: devices(h.GPUs[1].UUID), config: refuseSick, want: sick},
			{name: "refuse, by bus id", env: devices(h.GPUs[1].BusID), config: refuseSick, want: sick},
			{name: "refuse, all leaves it out", env: devices("all"), config: refuseSick, want: "GPU 0"},
			{name: "refuse, all is refused", env: devices("all"), config: both, want: "refused: \"all\" includes GPU 1 "},
			{name: "warn, all", env: devices("all"), want: "GPUs 0, 1"},
			{name: "refuse, a pod that was given it", env: devices("all"), spec: inPodOf(h.Driver, 1), config: refuseSick, want: sick},
			{name: "refuse, a pod that was given another", env: devices("all"), spec: inPodOf(h.Driver, 0), config: refuseSick, want: "GPU 0"},
			{name: "refuse, by CDI", spec: all(node(1), withNode(h.Majors.GPU, 255), editedByCDI("/dev/nvidia1")), config: refuseSick, want: sick},
		},
	}.run(t)
	mixed := table{show: showMIG, host: h, rows: []row{{name: "a MIG device of a GPU to be serviced", env: devices(mig), config: refuseSick, want: "1/0 of GPU 2"}}}
	mixed.run(t)
	h.say(t, map[int]string{2: health.Refuse})
	mixed.rows = []row{
		{name: "a MIG device by UUID", env: devices(mig), config: refuseSick, want: "refused: MIG device MIG- ... Xid 79"},
		{name: "a MIG device by index", env: devices("2:0"), config: refuseSick, want: "refused: MIG device MIG- ... Xid 79"},
		{name: "its GPU", env: devices("2"), config: refuseSick, want: "refused: partitioned by MIG ... Xid 79"},
		{name: "all without MIG devices", env: devices("all"), config: refuseSick, want: "GPU 0, GPU 1"},
		{name: "a MIG device, warn", env: devices(mig), want: "1/0 of GPU 2"},
	}
	mixed.run(t)
}

// The reason, the time and what to do are in the warning and in the refusal, and what NVML said
// before counts for a host with a sick GPU.
func TestWhatIsSaidOfASickGPU(t *testing.T) {
	h := newHost(t, sim.Options{GPUs: 2})
	h.say(t, map[int]string{1: health.Refuse})
	h.cfg.Policy.DisableRequire = false
	want := "unhealthy since " + time.Now().Format(time.DateOnly)
	require := []string{"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_ARCH=arch>=8"}
	p, err := h.resolve(t, newSpec(require...))
	check(t, err)
	if len(p.Warnings) > 0 {
		t.Errorf("another GPU: %q", p.Warnings)
	}
	p, err = h.resolve(t, newSpec(devices("1")...))
	check(t, err)
	if len(p.Warnings) != 1 || !strings.HasPrefix(p.Warnings[0], "GPU 1 is "+want) || !strings.HasSuffix(p.Warnings[0], ": Xid 79: reboot the host") {
		t.Errorf("%q", p.Warnings)
	}
	refuseSick(h.cfg)
	if _, err = h.resolve(t, newSpec(devices("1")...)); err == nil || !strings.Contains(err.Error(), want) || !strings.HasSuffix(err.Error(), ": Xid 79: reboot the host") {
		t.Errorf("%v", err)
	}
	if _, err := h.resolve(t, newSpec(require...)); err != nil || h.asked != 1 {
		t.Errorf("%v, NVML was asked %d times", err, h.asked)
	}
}

// A file that does not count allows, with a note; "off" does not read it.
func TestAHealthFileThatDoesNotCount(t *testing.T) {
	h := newHost(t, sim.Options{GPUs: 1})
	refuseSick(h.cfg)
	h.say(t, map[int]string{0: health.Refuse})
	name := filepath.Join(h.cfg.Host.StateDir, health.Name)
	valid, err := os.ReadFile(name)
	check(t, err)
	for text, note := range map[string]string{
		"\x00": "invalid character", strings.Repeat(" ", 1<<20): "is larger than",
		strings.Replace(string(valid), health.BootID(), "0", 1): "another boot",
		strings.Replace(string(valid), h.Version, "1.2", 1):     "of driver",
		`{"driver":"` + h.Version + `","gpus":[]}`:              "nothing watches",
	} {
		check(t, os.WriteFile(name, []byte(text), 0o644))
		p, err := h.resolve(t, newSpec(devices("0")...))
		if err != nil || !strings.Contains(strings.Join(p.Notes, "\n"), note) {
			t.Errorf("%.100q: %v, %q, want %q", text, err, p.Notes, note)
		}
		h.cfg.Policy.Health = config.Off
		p, err = h.resolve(t, newSpec(devices("0")...))
		if err != nil || strings.Contains(strings.Join(p.Notes, "\n"), "health") {
			t.Errorf("off: %v, %q", err, p.Notes)
		}
		refuseSick(h.cfg)
	}
	check(t, os.Remove(name))
	if p, err := h.resolve(t, newSpec(devices("0")...)); err != nil || strings.Contains(strings.Join(p.Notes, "\n"), "health") {
		t.Errorf("no file: %v, %q", err, p.Notes)
	}
}
