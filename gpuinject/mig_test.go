package gpuinject

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/facts"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/simtest"
)

// migDriver is a host with three GPUs, of which the middle one has MIG devices. NVML
// counts them in another order than procfs shows them.
func migDriver(t *testing.T) *sim.Driver {
	t.Helper()
	return simtest.New(t, sim.Options{
		GPUs: 3, MIG: []sim.MIGDevice{{GPU: 1, GI: 9, CI: 0}, {GPU: 1, GI: 5, CI: 0}, {GPU: 1, GI: 5, CI: 1}},
	})
}

// factsOf are what NVML would say of the simulated driver.
func factsOf(d *sim.Driver) device.Facts {
	f := device.Facts{Driver: d.Version, CUDA: "13.0"}
	for _, g := range d.GPUs {
		gpu := device.GPUFacts{Index: g.Index, Minor: g.Minor, UUID: g.UUID, BusID: g.BusID}
		for _, m := range d.MIG {
			if m.GPU == g.Index {
				gpu.Instances = append(gpu.Instances, device.InstanceFacts{Index: len(gpu.Instances), UUID: m.UUID, GI: m.GI, CI: m.CI, Name: "1g.18gb"})
			}
		}
		f.GPUs = append(f.GPUs, gpu)
	}
	return f
}

// migHost is the configuration of such a host, and how often NVML was asked.
type migHost struct {
	*sim.Driver
	cfg   *config.Config
	asked int
	// silent is true if NVML cannot be asked.
	silent bool
}

func newMIGHost(t *testing.T) *migHost {
	t.Helper()
	h := &migHost{Driver: migDriver(t)}
	cfg, err := config.Load(h.ConfigPath)
	if err != nil {
		t.Fatal(err)
	}
	h.cfg = cfg
	t.Cleanup(func() {
		removeState(cfg.Host.StateDir)
	})
	return h
}

func (h *migHost) resolve(t *testing.T, spec any) (Plan, error) {
	t.Helper()
	return resolveWith(t, h.cfg, spec, h.ask())
}

// ask returns a probe whose NVML answers for this host.
func (h *migHost) ask() Ask {
	return factsFrom(func() (device.Facts, error) {
		h.asked++
		if h.silent {
			return device.Facts{}, errors.New("NVML cannot be asked in this test")
		}
		return factsOf(h.Driver), nil
	})
}

// capNodes are the capability nodes of MIG devices, by position.
func (h *migHost) capNodes(positions ...int) (paths []string) {
	for _, i := range positions {
		for _, minor := range []int{h.MIG[i].GIMinor, h.MIG[i].CIMinor} {
			paths = append(paths, fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor))
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

func (h *migHost) gpuNode(i int) string { return fmt.Sprintf("/dev/nvidia%d", h.GPUs[i].Minor) }

// nodesOf are the plan's nodes of GPUs and MIG devices.
func nodesOf(p Plan) (paths []string) {
	for _, d := range p.Devices {
		if d.Path != "/dev/nvidiactl" && !strings.HasPrefix(d.Path, "/dev/nvidia-uvm") {
			paths = append(paths, d.Path)
		}
	}
	slices.Sort(paths)
	return paths
}

func TestMIGNames(t *testing.T) {
	h := newMIGHost(t)
	gpu := func(i int) string { return h.gpuNode(i) }
	for _, tc := range []struct {
		name  string
		asked string
		nvml  bool
		mig   []int // positions in h.MIG
		gpus  []int
		seen  []int // GPUs in procfs
	}{
		{"a UUID", h.MIG[0].UUID, true, []int{0}, nil, []int{1}},
		{"an index is NVML's", "1:0", true, []int{0}, nil, []int{1}},
		{"another index", "1:2", true, []int{2}, nil, []int{1}},
		{"the older name", "MIG-" + h.GPUs[1].UUID + "/5/1", false, []int{2}, nil, []int{1}},
		{"one device by three names", h.MIG[2].UUID + ",1:2,MIG-" + h.GPUs[1].UUID + "/5/1", true, []int{2}, nil, []int{1}},
		{"two of one GPU instance", "1:1,1:2", true, []int{1, 2}, nil, []int{1}},
		{"beside a GPU", "0,1:0", true, []int{0}, []int{0}, []int{0, 1}},
		{"all", "all", false, []int{0, 1, 2}, []int{0, 2}, []int{0, 1, 2}},
		{"a GPU without MIG", "2", false, nil, []int{2}, []int{2}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := os.RemoveAll(filepath.Join(h.cfg.Host.StateDir, facts.Name)); err != nil {
				t.Fatal(err)
			}
			h.asked = 0
			plan, err := h.resolve(t, newSpec("NVIDIA_VISIBLE_DEVICES="+tc.asked))
			if err != nil {
				t.Fatal(err)
			}
			if (h.asked > 0) != tc.nvml || h.asked > 1 {
				t.Errorf("NVML was asked %d times", h.asked)
			}
			want := h.capNodes(tc.mig...)
			for _, i := range tc.seen {
				want = append(want, gpu(i))
			}
			slices.Sort(want)
			if got := nodesOf(plan); !slices.Equal(got, want) {
				t.Errorf("nodes %q\nwant  %q", got, want)
			}
			var gpus, mig []int
			for _, g := range plan.GPUs {
				gpus = append(gpus, g.Index)
			}
			for _, m := range plan.MIG {
				i := slices.IndexFunc(h.MIG, func(x sim.MIG) bool { return x.GPU == m.GPU && x.GI == m.GI && x.CI == m.CI })
				mig = append(mig, i)
				if tc.nvml && (m.UUID != h.MIG[i].UUID || m.Name != m.UUID || m.Profile != "1g.18gb") || !tc.nvml && m.UUID != "" || m.Name == "" {
					t.Errorf("planned %+v", m)
				}
			}
			slices.Sort(mig)
			if !slices.Equal(gpus, tc.gpus) || !slices.Equal(mig, tc.mig) {
				t.Errorf("GPUs %v and MIG devices %v, want %v and %v", gpus, mig, tc.gpus, tc.mig)
			}
			var buses []string
			for _, i := range tc.seen {
				buses = append(buses, h.GPUs[i].BusID)
			}
			if !slices.Equal(plan.Proc.GPUs, buses) {
				t.Errorf("procfs shows %q, want %q", plan.Proc.GPUs, buses)
			}
			var files []string
			for _, i := range tc.mig {
				gi := fmt.Sprintf("gpu%d/mig/gi%d", h.GPUs[1].Minor, h.MIG[i].GI)
				files = append(files, gi+"/access", fmt.Sprintf("%s/ci%d/access", gi, h.MIG[i].CI))
			}
			slices.Sort(files)
			got := slices.Sorted(slices.Values(plan.Proc.Capabilities))
			if !slices.Equal(got, slices.Compact(files)) {
				t.Errorf("capability files %q, want %q", got, files)
			}
		})
	}
}

// Containers that ask for whole GPUs must not wait for NVML.
func TestMIGNamesFromKeptFacts(t *testing.T) {
	h := newMIGHost(t)
	if _, err := h.resolve(t, newSpec("NVIDIA_VISIBLE_DEVICES=1:0")); err != nil || h.asked != 1 {
		t.Fatal(err, h.asked)
	}
	plan, err := h.resolve(t, newSpec("NVIDIA_VISIBLE_DEVICES=all"))
	if err != nil || h.asked != 1 || len(plan.MIG) != 3 {
		t.Fatal(err, h.asked, plan.MIG)
	}
	for _, m := range plan.MIG {
		if m.UUID == "" {
			t.Errorf("%+v", m)
		}
	}
}

func TestPartitionedGPUByName(t *testing.T) {
	h := newMIGHost(t)
	for _, id := range []string{"1", h.GPUs[1].UUID, h.GPUs[1].UUID[:10], h.GPUs[1].BusID, "0,1"} {
		_, err := h.resolve(t, newSpec("NVIDIA_VISIBLE_DEVICES="+id))
		refused(t, err, Invalid, "partitioned by MIG", "MIG-"+h.GPUs[1].UUID+"/5/0", "MIG-"+h.GPUs[1].UUID+"/9/0")
	}
	if h.asked != 0 {
		t.Errorf("NVML was asked %d times", h.asked)
	}
}

func TestMIGReconfiguration(t *testing.T) {
	h := newMIGHost(t)
	old := h.MIG[0].UUID
	if _, err := h.resolve(t, newSpec("NVIDIA_VISIBLE_DEVICES="+old)); err != nil {
		t.Fatal(err)
	}
	if _, err := h.resolve(t, newSpec("NVIDIA_VISIBLE_DEVICES="+old)); err != nil || h.asked != 1 {
		t.Errorf("the answer was not kept: asked %d times, %v", h.asked, err)
	}
	if err := h.Reconfigure(t.Context(), []sim.MIGDevice{{GPU: 0, GI: 2, CI: 0}, {GPU: 1, GI: 5, CI: 0}}); err != nil {
		t.Fatal(err)
	}
	_, err := h.resolve(t, newSpec("NVIDIA_VISIBLE_DEVICES="+old))
	refused(t, err, Invalid, "unknown MIG device", h.MIG[0].UUID, h.MIG[1].UUID)
	if h.asked != 2 {
		t.Errorf("asked %d times", h.asked)
	}
	for _, id := range []string{h.MIG[0].UUID, "0:0", "all"} {
		plan, err := h.resolve(t, newSpec("NVIDIA_VISIBLE_DEVICES="+id))
		if err != nil {
			t.Fatal(err)
		}
		if m := plan.MIG[0]; m.UUID != h.MIG[0].UUID || m.GPU != 0 || m.GI != 2 {
			t.Errorf("%s: %+v", id, m)
		}
	}
	_, err = h.resolve(t, newSpec("NVIDIA_VISIBLE_DEVICES=0"))
	refused(t, err, Invalid, "partitioned by MIG", h.MIG[0].UUID)
	if h.asked != 2 {
		t.Errorf("asked %d times", h.asked)
	}
}

// An answer from before a change, or from while it happened, must not be kept for the layout after
// it.
func TestMIGReconfigurationDuringProbe(t *testing.T) {
	h := newMIGHost(t)
	spec := newSpec("NVIDIA_VISIBLE_DEVICES=1:0")
	before := factsOf(h.Driver)
	_, err := resolveWith(t, h.cfg, spec, factsFrom(func() (device.Facts, error) {
		// The change happens now, and the answer is the old one.
		return before, h.Reconfigure(t.Context(), []sim.MIGDevice{{GPU: 1, GI: 2, CI: 0}})
	}))
	refused(t, err, Precondition, "MIG was being configured", "try again")
	plan, err := h.resolve(t, spec)
	if err != nil || h.asked != 1 || len(plan.MIG) != 1 || plan.MIG[0].GI != 2 {
		t.Fatalf("asked %d times, %v, %+v", h.asked, err, plan.MIG)
	}
}

func TestMIGWithoutNVML(t *testing.T) {
	h := newMIGHost(t)
	gone := factsFrom(func() (device.Facts, error) { return device.Facts{}, errors.New("the GPU is gone") })
	for asked, fails := range map[string]bool{"1:0": true, h.MIG[0].UUID: true, "all": false, "0": false, "MIG-" + h.GPUs[1].UUID + "/9/0": false} {
		_, err := resolveWith(t, h.cfg, newSpec("NVIDIA_VISIBLE_DEVICES="+asked), gone)
		if fails {
			refused(t, err, Precondition, "only NVML knows", "the GPU is gone")
		} else if err != nil {
			t.Errorf("%s: %v", asked, err)
		}
	}
}
