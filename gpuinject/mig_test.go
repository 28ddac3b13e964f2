package gpuinject

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
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
		if state, err := view.OpenState(cfg.Host.StateDir); err == nil {
			_ = state.Remove()
		}
	})
	return h
}

func (h *migHost) resolve(t *testing.T, spec any) (*Job, error) {
	t.Helper()
	job, err := ExamineSpec(spec, loading(h.cfg))
	if err != nil || job == nil {
		t.Fatalf("examine: %v, %v", job, err)
	}
	job.AskNVML = func() (device.Facts, error) {
		h.asked++
		return factsOf(h.Driver), nil
	}
	return job, job.Resolve()
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

func TestMIGDevicesByEveryName(t *testing.T) {
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
			if err := os.RemoveAll(filepath.Join(h.cfg.Host.StateDir, factsName)); err != nil {
				t.Fatal(err)
			}
			h.asked = 0
			job, err := h.resolve(t, newSpec("NVIDIA_VISIBLE_DEVICES="+tc.asked))
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
			if got := nodesOf(job.Plan); !slices.Equal(got, want) {
				t.Errorf("nodes %q\nwant  %q", got, want)
			}
			var gpus, mig []int
			for _, g := range job.Plan.GPUs {
				gpus = append(gpus, g.Index)
			}
			for _, m := range job.Plan.MIG {
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
			if err := job.Preview(""); err != nil {
				t.Fatal(err)
			}
			var buses []string
			for _, i := range tc.seen {
				buses = append(buses, h.GPUs[i].BusID)
			}
			if !slices.Equal(job.Plan.Proc.GPUs, buses) {
				t.Errorf("procfs shows %q, want %q", job.Plan.Proc.GPUs, buses)
			}
			var files []string
			for _, i := range tc.mig {
				gi := fmt.Sprintf("gpu%d/mig/gi%d", h.GPUs[1].Minor, h.MIG[i].GI)
				files = append(files, gi+"/access", fmt.Sprintf("%s/ci%d/access", gi, h.MIG[i].CI))
			}
			slices.Sort(files)
			got := slices.Sorted(slices.Values(job.Plan.Proc.Capabilities))
			if !slices.Equal(got, slices.Compact(files)) {
				t.Errorf("capability files %q, want %q", got, files)
			}
		})
	}
}

// Containers that ask for whole GPUs must not wait for NVML.
func TestTheRecordNamesMIGDevicesByWhatIsKnownAlready(t *testing.T) {
	h := newMIGHost(t)
	if _, err := h.resolve(t, newSpec("NVIDIA_VISIBLE_DEVICES=1:0")); err != nil || h.asked != 1 {
		t.Fatal(err, h.asked)
	}
	job, err := h.resolve(t, newSpec("NVIDIA_VISIBLE_DEVICES=all"))
	if err != nil || h.asked != 1 || len(job.Plan.MIG) != 3 {
		t.Fatal(err, h.asked, job.Plan.MIG)
	}
	for _, m := range job.Plan.MIG {
		if m.UUID == "" {
			t.Errorf("%+v", m)
		}
	}
}

func TestAGPUThatHasMIGDevicesIsRefusedByName(t *testing.T) {
	h := newMIGHost(t)
	for _, id := range []string{"1", h.GPUs[1].UUID, h.GPUs[1].UUID[:10], h.GPUs[1].BusID, "0,1"} {
		_, err := h.resolve(t, newSpec("NVIDIA_VISIBLE_DEVICES="+id))
		refused(t, err, Invalid, "divided by MIG", "MIG-"+h.GPUs[1].UUID+"/5/0", "MIG-"+h.GPUs[1].UUID+"/9/0")
	}
	if h.asked != 0 {
		t.Errorf("NVML was asked %d times", h.asked)
	}
}

func TestAChangeOfTheMIGLayoutCountsAtTheNextCreate(t *testing.T) {
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
		job, err := h.resolve(t, newSpec("NVIDIA_VISIBLE_DEVICES="+id))
		if err != nil {
			t.Fatal(err)
		}
		if m := job.Plan.MIG[0]; m.UUID != h.MIG[0].UUID || m.GPU != 0 || m.GI != 2 {
			t.Errorf("%s: %+v", id, m)
		}
	}
	_, err = h.resolve(t, newSpec("NVIDIA_VISIBLE_DEVICES=0"))
	refused(t, err, Invalid, "divided by MIG", h.MIG[0].UUID)
	if h.asked != 2 {
		t.Errorf("asked %d times", h.asked)
	}
}

// An answer from before a change, or from while it happened, must not be kept for the
// layout after it.
func TestNVMLThatAnswersInTheMiddleOfAChangeIsAskedAgain(t *testing.T) {
	h := newMIGHost(t)
	spec := newSpec("NVIDIA_VISIBLE_DEVICES=1:0")
	before := factsOf(h.Driver)
	job, err := ExamineSpec(spec, loading(h.cfg))
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	job.AskNVML = func() (device.Facts, error) {
		if asked++; asked > 1 {
			return factsOf(h.Driver), nil
		}
		// The change happens now, and the answer is the old one.
		return before, h.Reconfigure(t.Context(), []sim.MIGDevice{{GPU: 1, GI: 2, CI: 0}})
	}
	if err := job.Resolve(); err != nil || asked != 2 || len(job.Plan.MIG) != 1 || job.Plan.MIG[0].GI != 2 {
		t.Fatalf("asked %d times, %v, %+v", asked, err, job.Plan.MIG)
	}
}

func TestNVMLThatCannotBeAskedFailsOnlyWhoNeedsIt(t *testing.T) {
	h := newMIGHost(t)
	for asked, fails := range map[string]bool{"1:0": true, h.MIG[0].UUID: true, "all": false, "0": false, "MIG-" + h.GPUs[1].UUID + "/9/0": false} {
		job, err := ExamineSpec(newSpec("NVIDIA_VISIBLE_DEVICES="+asked), loading(h.cfg))
		if err != nil {
			t.Fatal(err)
		}
		job.AskNVML = func() (device.Facts, error) { return device.Facts{}, errors.New("the GPU is gone") }
		if err = job.Resolve(); !fails {
			if err != nil {
				t.Errorf("%s: %v", asked, err)
			}
			continue
		}
		refused(t, err, Precondition, "only NVML knows", "the GPU is gone")
	}
}

// A pod without a device has NVML asked by no annotation, and one that has a device does
// not start without it because NVML was silent.
func TestAnnotationsOfAPodWhereNVMLCannotBeAsked(t *testing.T) {
	h := newMIGHost(t)
	for _, tc := range []struct {
		name  string
		mig   []int
		asked int
	}{{"nothing was allocated", nil, 0}, {"the device was allocated", []int{0}, 1}} {
		t.Run(tc.name, func(t *testing.T) {
			spec := h.migPod(tc.mig, nil)
			spec.Annotations["cdi.k8s.io/x"] = "nvidia.com/gpu=" + h.MIG[0].UUID
			job, err := ExamineSpec(spec, loading(h.cfg))
			if err != nil || job == nil {
				t.Fatal(job, err)
			}
			asked := 0
			job.AskNVML = func() (device.Facts, error) {
				asked++
				return device.Facts{}, errors.New("the GPU is gone")
			}
			if err = job.Resolve(); tc.mig == nil {
				if !errors.Is(err, ErrNotGranted) {
					t.Error(err)
				}
			} else {
				refused(t, err, Precondition, "only NVML knows", "the GPU is gone")
			}
			if asked != tc.asked {
				t.Errorf("NVML was asked %d times", asked)
			}
		})
	}
}

// migPod is a pod whose specification has the nodes of MIG devices and GPUs.
func (h *migHost) migPod(mig, gpus []int, env ...string) *specs.Spec {
	spec := newSpec(env...)
	spec.Annotations["io.kubernetes.cri.container-type"] = "container"
	spec.Annotations["io.kubernetes.cri.sandbox-namespace"] = "default"
	add := func(major uint32, minor int) {
		spec.Linux.Devices = append(spec.Linux.Devices, specs.LinuxDevice{Path: fmt.Sprintf("/dev/plugin-%d-%d", major, minor), Type: "c", Major: int64(major), Minor: int64(minor)})
	}
	for _, i := range gpus {
		add(h.Majors.GPU, h.GPUs[i].Minor)
	}
	for _, i := range mig {
		add(h.Majors.GPU, h.GPUs[h.MIG[i].GPU].Minor)
		add(h.Majors.Caps, h.MIG[i].GIMinor)
		add(h.Majors.Caps, h.MIG[i].CIMinor)
	}
	return spec
}

func TestAPodGetsTheMIGDevicesOfItsSpecification(t *testing.T) {
	h := newMIGHost(t)
	for _, tc := range []struct {
		name    string
		mig     []int
		gpus    []int
		asked   string
		want    []int
		whole   int
		denied  bool
		nothing bool
	}{
		{name: "all of an image is the allocated one", mig: []int{0}, asked: "all", want: []int{0}},
		{name: "the allocated one by UUID", mig: []int{0}, asked: h.MIG[0].UUID, want: []int{0}},
		{name: "the allocated one by index", mig: []int{0}, asked: "1:0", want: []int{0}},
		{name: "one of two", mig: []int{0, 1}, asked: "1:1", want: []int{1}},
		{name: "beside a GPU", mig: []int{0}, gpus: []int{2}, asked: "all", want: []int{0}, whole: 1},
		{name: "another one of the same GPU instance", mig: []int{1}, asked: "1:2", denied: true},
		{name: "one's own and another", mig: []int{1}, asked: "1:1,1:0", denied: true},
		{name: "the GPU of one's own", mig: []int{1}, asked: "1", denied: true},
		{name: "one that does not exist", mig: []int{1}, asked: "1:9", denied: true},
		{name: "the node of the GPU alone gives nothing", gpus: []int{1}, asked: "all", nothing: true},
		{name: "the node of the GPU alone gives no MIG device", gpus: []int{1}, asked: "1:0", denied: true},
		{name: "the node of the GPU alone does not give the GPU", gpus: []int{1}, asked: "1", denied: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			job, err := h.resolve(t, h.migPod(tc.mig, tc.gpus, "NVIDIA_VISIBLE_DEVICES="+tc.asked))
			switch {
			case tc.nothing:
				if !errors.Is(err, ErrNotGranted) {
					t.Errorf("%v, %+v", err, job.Plan)
				}
				return
			case tc.denied:
				refused(t, err, Denied, "is not this container's")
				for i, m := range h.MIG {
					older := fmt.Sprintf("MIG-%s/%d/%d", h.GPUs[m.GPU].UUID, m.GI, m.CI)
					if !slices.Contains(tc.mig, i) && (strings.Contains(err.Error(), m.UUID) || strings.Contains(err.Error(), older)) {
						t.Errorf("the message tells of a MIG device of somebody else: %v", err)
					}
				}
				return
			case err != nil:
				t.Fatal(err)
			}
			var got []int
			for _, m := range job.Plan.MIG {
				got = append(got, slices.IndexFunc(h.MIG, func(x sim.MIG) bool { return x.GI == m.GI && x.CI == m.CI }))
			}
			if !slices.Equal(got, tc.want) || len(job.Plan.GPUs) != tc.whole {
				t.Errorf("MIG devices %v and GPUs %+v, want %v", got, job.Plan.GPUs, tc.want)
			}
		})
	}
}

// T47 and I7: a pod learns nothing of its neighbours by asking.
func TestAnotherPodsMIGDeviceAndNoneAtAllAreRefusedInTheSameWords(t *testing.T) {
	h := newMIGHost(t)
	message := func(id string) string {
		_, err := h.resolve(t, h.migPod([]int{1}, nil, "NVIDIA_VISIBLE_DEVICES="+id))
		refused(t, err, Denied)
		return strings.ReplaceAll(err.Error(), `"`+id+`"`, "ID")
	}
	want := message(h.MIG[0].UUID)
	for _, id := range []string{
		"MIG-00000000-1111-2222-3333-444444444444", "1:0", "1:7", "9:9", "1", "MIG-", "MIG-" + h.GPUs[1].UUID + "/9/0",
		"MIG-" + h.GPUs[1].UUID + "/9/7", "MIG-/../",
	} {
		if got := message(id); got != want {
			t.Errorf("%s: %q and %q", id, got, want)
		}
	}
}

func TestMIGDevicesOfTheDeviceList(t *testing.T) {
	h := newMIGHost(t)
	for _, id := range []string{h.MIG[2].UUID, "MIG-" + h.GPUs[1].UUID + "/5/1"} {
		spec := h.migPod(nil, nil, "NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices")
		spec.Mounts = append(spec.Mounts, specs.Mount{Source: "/dev/null", Destination: "/var/run/nvidia-container-devices/" + id, Type: "bind"})
		job, err := h.resolve(t, spec)
		if err != nil {
			t.Fatal(err)
		}
		if p := job.Plan; len(p.MIG) != 1 || p.MIG[0].GI != 5 || p.MIG[0].CI != 1 || !slices.Equal(nodesOf(p), append([]string{}, append(h.capNodes(2), h.gpuNode(1))...)) {
			t.Errorf("%s: %+v", id, p)
		}
	}
}

func TestRightsOverMIG(t *testing.T) {
	h := newMIGHost(t)
	privileged := func(s *specs.Spec) {
		s.Process.Capabilities.Bounding, s.Linux.MaskedPaths = []string{"CAP_SYS_ADMIN"}, nil
	}
	admin := func(s *specs.Spec) { s.Process.Capabilities.Bounding = []string{"CAP_SYS_ADMIN"} }
	inPod := func(s *specs.Spec) {
		s.Annotations["io.kubernetes.cri.container-type"] = "container"
		s.Annotations["io.kubernetes.cri.sandbox-namespace"] = "default"
	}
	const configure, watch = "NVIDIA_MIG_CONFIG_DEVICES=all", "NVIDIA_MIG_MONITOR_DEVICES=all"
	for _, tc := range []struct {
		name   string
		env    []string
		change []func(*specs.Spec)
		kind   Kind
		err    string
		gpus   int
		mig    int
		nodes  []string
		files  []string
	}{
		{name: "an ordinary container", env: []string{"all", configure}, kind: Denied, err: "CAP_SYS_ADMIN"},
		{name: "an ordinary pod that has an allocation", env: []string{"all", watch}, change: []func(*specs.Spec){inPod, func(s *specs.Spec) {
			s.Linux.Devices = h.migPod([]int{0}, nil).Linux.Devices
		}}, kind: Denied, err: "privileged"},
		{name: "with a MIG device by name", env: []string{"1:0", configure}, change: []func(*specs.Spec){admin}, kind: Invalid, err: `"1:0"`},
		{name: "CAP_SYS_ADMIN and all", env: []string{"all", configure}, change: []func(*specs.Spec){admin}, gpus: 3, mig: 3,
			nodes: append(h.capNodes(0, 1, 2), "/dev/nvidia-caps/nvidia-cap1", h.gpuNode(0), h.gpuNode(1), h.gpuNode(2)), files: []string{"mig/config"}},
		{name: "the GPU by its name", env: []string{"1", configure, watch}, change: []func(*specs.Spec){admin}, gpus: 1, mig: 3,
			nodes: append(h.capNodes(0, 1, 2), "/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2", h.gpuNode(1)), files: []string{"mig/config", "mig/monitor"}},
		{name: "a GPU without MIG", env: []string{"0", watch}, change: []func(*specs.Spec){admin}, gpus: 1,
			nodes: []string{"/dev/nvidia-caps/nvidia-cap2", h.gpuNode(0)}, files: []string{"mig/monitor"}},
		{name: "a privileged pod", env: []string{"all", configure}, change: []func(*specs.Spec){inPod, privileged}, gpus: 3, mig: 3,
			nodes: append(h.capNodes(0, 1, 2), "/dev/nvidia-caps/nvidia-cap1", h.gpuNode(0), h.gpuNode(1), h.gpuNode(2))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			env := append([]string{"NVIDIA_VISIBLE_DEVICES=" + tc.env[0]}, tc.env[1:]...)
			spec := newSpec(env...)
			for _, change := range tc.change {
				change(spec)
			}
			job, err := h.resolve(t, spec)
			if tc.err != "" {
				refused(t, err, tc.kind, tc.err, strings.Split(tc.env[1], "=")[0])
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			slices.Sort(tc.nodes)
			if got := nodesOf(job.Plan); !slices.Equal(got, tc.nodes) || len(job.Plan.GPUs) != tc.gpus || len(job.Plan.MIG) != tc.mig {
				t.Errorf("%d GPUs, %d MIG devices, nodes %q\nwant %q", len(job.Plan.GPUs), len(job.Plan.MIG), got, tc.nodes)
			}
			if err := job.Preview(""); err != nil {
				t.Fatal(err)
			}
			for _, f := range tc.files {
				if !slices.Contains(job.Plan.Proc.Capabilities, f) {
					t.Errorf("the mask shows %q, not %s", job.Plan.Proc.Capabilities, f)
				}
			}
			if len(job.Plan.MIGRights) != len(tc.env)-1 {
				t.Errorf("rights %q", job.Plan.MIGRights)
			}
		})
	}
	t.Run("an ordinary pod that has none starts without a GPU", func(t *testing.T) {
		spec := newSpec("NVIDIA_VISIBLE_DEVICES=all", configure)
		inPod(spec)
		if job, err := h.resolve(t, spec); !errors.Is(err, ErrNotGranted) {
			t.Errorf("%v, %+v", err, job.Plan)
		}
	})
}

func TestRightsOverMIGReachNoDeviceThatWasNotGranted(t *testing.T) {
	h := newMIGHost(t)
	h.cfg.Policy.AcceptEnvWhenUnprivileged = false
	spec := newSpec("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_MIG_MONITOR_DEVICES=all")
	spec.Process.Capabilities.Bounding = []string{"CAP_SYS_ADMIN"}
	spec.Linux.Devices = h.migPod([]int{0}, nil).Linux.Devices
	job, err := h.resolve(t, spec)
	if err != nil {
		t.Fatal(err)
	}
	want := append(h.capNodes(0), "/dev/nvidia-caps/nvidia-cap2", h.gpuNode(1))
	slices.Sort(want)
	if got := nodesOf(job.Plan); !slices.Equal(got, want) || len(job.Plan.GPUs) != 0 {
		t.Errorf("nodes %q, GPUs %+v, want %q", got, job.Plan.GPUs, want)
	}
}

// Files of MIG tell the driver's libraries as well whether to make nodes.
func TestNoCapabilityFileLetsLibrariesMakeNodes(t *testing.T) {
	for text, want := range map[string]string{
		"DeviceFileMinor: 5\nDeviceFileMode: 292\nDeviceFileModify: 1\n": "DeviceFileMinor: 5\nDeviceFileMode: 292\nDeviceFileModify: 0\n",
		"DeviceFileMinor: 5\n": "DeviceFileMinor: 5\nDeviceFileModify: 0\n",
	} {
		if got := string(withLine([]byte(text), "DeviceFileModify:", "DeviceFileModify: 0")); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestAuditSaysWhichMIGDevicesWouldHaveBeenRefused(t *testing.T) {
	h := newMIGHost(t)
	h.cfg.Policy.Kubernetes = config.Audit
	for asked, audited := range map[string]bool{"1:0": false, "1:1": true, "all": true} {
		job, err := h.resolve(t, h.migPod([]int{0}, nil, "NVIDIA_VISIBLE_DEVICES="+asked))
		if err != nil {
			t.Fatal(err)
		}
		if (job.Plan.Audit != "") != audited || audited && !strings.Contains(job.Plan.Audit, "MIG-"+h.GPUs[1].UUID+"/9/0") {
			t.Errorf("%s: audit %q", asked, job.Plan.Audit)
		}
	}
}
