package gpuinject

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/question"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

var migDevices = []sim.MIGDevice{{GPU: 1, GI: 9, CI: 0}, {GPU: 1, GI: 5, CI: 0}, {GPU: 1, GI: 5, CI: 1}}

// newMIGHost makes a host with three GPUs, of which the middle one has MIG devices. NVML lists them
// in another order than procfs.
func newMIGHost(t *testing.T) *testHost {
	t.Helper()
	return newHost(t, sim.Options{
		GPUs: 3, MIG: migDevices,
	})
}

// older returns the name of a MIG device of GPU 1 that can be resolved without NVML.
func (h *testHost) older(ids string) string { return "MIG-" + h.GPUs[1].UUID + "/" + ids }

// nodes returns the nodes of the MIG devices at these positions, sorted.
func (h *testHost) nodes(mig ...int) (paths []string) {
	for _, i := range mig {
		for _, minor := range []int{h.MIG[i].GIMinor, h.MIG[i].CIMinor} {
			paths = append(paths, fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor))
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// migNodes adds the nodes of MIG devices, as a device plugin does.
func (h *testHost) migNodes(mig ...int) func(*specs.Spec) {
	return func(s *specs.Spec) {
		for _, i := range mig {
			withNode(h.Majors.GPU, h.GPUs[h.MIG[i].GPU].Minor)(s)
			withNode(h.Majors.Caps, h.MIG[i].GIMinor)(s)
			withNode(h.Majors.Caps, h.MIG[i].CIMinor)(s)
		}
	}
}

// inMIGPod puts the container into a pod that has MIG devices.
func (h *testHost) inMIGPod(mig ...int) func(*specs.Spec) {
	return all(inPodOf(h.Driver), h.migNodes(mig...))
}

func TestPartitionedGPUByName(t *testing.T) {
	h := newMIGHost(t)
	tb := table{host: h}
	for _, id := range []string{"1", h.GPUs[1].UUID, h.GPUs[1].UUID[:10], h.GPUs[1].BusID, "0,1"} {
		want := "refused: partitioned by MIG ... " + h.older("5/0") + " ... " + h.older("9/0")
		tb.rows = append(tb.rows, row{name: id, env: devices(id), want: want, kind: verdict.KindInvalid})
	}
	tb.run(t)
	if h.asked != 0 {
		t.Errorf("NVML was asked %d times", h.asked)
	}
}

// An answer from before or during a change must not be kept for the layout after it.
func TestMIGReconfigurationDuringProbe(t *testing.T) {
	h := newMIGHost(t)
	h.change = func(*device.Facts) { // the answer is the old one
		if err := h.Reconfigure(t.Context(), []sim.MIGDevice{{GPU: 1, GI: 2, CI: 0}}); err != nil {
			t.Error(err)
		}
	}
	_, err := h.resolve(t, newSpec("NVIDIA_VISIBLE_DEVICES=1:0"))
	refused(t, err, verdict.KindPrecondition, "MIG was being configured", "try again")
	h.change = nil
	plan, err := h.resolve(t, newSpec("NVIDIA_VISIBLE_DEVICES=1:0"))
	if err != nil || showMIG(plan) != "2/0 of GPU 1" {
		t.Fatalf("%v, %+v", err, plan.MIG)
	}
}

// NVML is asked only for names that cannot be resolved without it, which are refused if it does not
// answer.
func TestMIGWithoutNVML(t *testing.T) {
	h := newMIGHost(t)
	h.silent = true
	const unknown = "refused: only NVML can resolve this UUID or index"
	annotation := annotated("cdi.k8s.io/x", "nvidia.com/gpu="+h.MIG[0].UUID)
	table{
		host: h,
		show: func(p Plan) string {
			var names []string
			for _, m := range p.MIG {
				names = append(names, m.Name+m.UUID)
			}
			return strings.Join(names, " ")
		},
		rows: []row{
			{name: "a GPU", env: devices("0")},
			{name: "all", env: devices("all"), want: strings.Join([]string{h.older("5/0"), h.older("5/1"), h.older("9/0")}, " ")},
			{name: "the older name", env: devices(h.older("9/0")), want: h.older("9/0")},
			{name: "a pod without a device", spec: all(inPodOf(h.Driver), annotation), want: "starts without a GPU"},
			{name: "an index", env: devices("1:0"), want: unknown, kind: verdict.KindPrecondition},
			{name: "a UUID", env: devices(h.MIG[0].UUID), want: unknown + ": NVML was asked: NVML cannot be asked in this test", kind: verdict.KindPrecondition},
			{name: "a pod with the device", spec: all(h.inMIGPod(0), annotation), want: unknown, kind: verdict.KindPrecondition},
		},
	}.run(t)
	if h.asked != 3 {
		t.Errorf("NVML was asked %d times", h.asked)
	}
}

// The driver knows a GPU's UUID only after something opened the GPU.
func TestUUIDsThatTheDriverDoesNotKnowYet(t *testing.T) {
	cold := func(t *testing.T) *testHost {
		h := newHost(t, sim.Options{GPUs: 3, MIG: []sim.MIGDevice{{GPU: 1, GI: 9}}})
		for _, g := range h.GPUs {
			file := filepath.Join(h.ProcRoot, "driver/nvidia/gpus", g.BusID, "information")
			text := strings.ReplaceAll(string(readFile(t, filepath.Dir(file), "information")), g.UUID, "GPU-????????-????-????-????-????????????")
			writeFile(t, file, text, 0o444)
		}
		return h
	}
	h := cold(t)
	first, other := h.GPUs[0].UUID, "GPU-00000000-0000-0000-0000-000000000000"
	const unknown, denied = "refused: unknown GPU", "refused: is not this container's"
	table{host: h, show: showMIG, rows: []row{
		{name: "an index", env: devices("0"), want: "GPU 0"},
		{name: "a UUID", env: devices(first), want: "GPU 0"},
		{name: "its beginning", env: devices(first[:12]), want: "GPU 0"},
		{name: "by CDI name", env: devices("nvidia.com/gpu=" + first), want: "GPU 0"},
		{name: "by a mount", spec: listing(first), want: "GPU 0"},
		{name: "a MIG device by its GPU's", env: devices(h.older("9/0")), want: "9/0 of GPU 1"},
		{name: "a pod", env: devices(first), spec: inPodOf(h.Driver, 0), want: "GPU 0"},
		{name: "a pod that names another's", env: devices(h.GPUs[2].UUID), spec: inPodOf(h.Driver, 0), want: denied},
		{name: "a pod with device-list mounts", spec: all(inPodOf(h.Driver), listing(first)), want: "GPU 0"},
		{name: "a UUID that no GPU has", env: devices(other), want: unknown, kind: verdict.KindInvalid},
	}}.run(t)
	h = cold(t)
	h.silent = true
	table{host: h, show: showMIG, rows: []row{
		{name: "an index without NVML", env: devices("0"), want: "GPU 0"},
		{name: "a UUID without NVML", env: devices(first), want: "refused: while the driver does not know the UUID of every GPU: only NVML can resolve this UUID or index ... NVML was asked", kind: verdict.KindPrecondition},
	}}.run(t)
	warm := newHost(t, sim.Options{GPUs: 3})
	table{host: warm, show: showMIG, rows: []row{{name: "a UUID that no GPU has, on a host whose UUIDs are known", env: devices(other), want: unknown}}}.run(t)
	if warm.asked != 0 {
		t.Errorf("NVML was asked %d times", warm.asked)
	}
}

func TestMIGDevicesOfPods(t *testing.T) {
	h := newMIGHost(t)
	const first, second, denied = "9/0 of GPU 1", "5/0 of GPU 1", "refused: is not this container's"
	const watch = "NVIDIA_MIG_MONITOR_DEVICES=all"
	audit := kubernetes(config.Audit)
	audited := `; kubernetes = "enforce" would have refused this: in the container's specification: ` + h.older("9/0")
	list := devices(request.DeviceListDir)
	table{host: h, show: withAudit(showMIG), rows: []row{
		{name: "all", env: devices("all"), spec: h.inMIGPod(0), want: first},
		{name: "the allocated one by UUID", env: devices(h.MIG[0].UUID), spec: h.inMIGPod(0), want: first},
		{name: "the allocated one by index", env: devices("1:0"), spec: h.inMIGPod(0), want: first},
		{name: "one of two", env: devices("1:1"), spec: h.inMIGPod(0, 1), want: second},
		{name: "beside a GPU", env: devices("all"), spec: all(inPodOf(h.Driver, 2), h.migNodes(0)), want: "GPU 2, " + first},
		{name: "another one of the same GPU instance", env: devices("1:2"), spec: h.inMIGPod(1), want: denied},
		{name: "the allocated one and another", env: devices("1:1,1:0"), spec: h.inMIGPod(1), want: denied},
		{name: "the node of the GPU alone, all", env: devices("all"), spec: inPodOf(h.Driver, 1), want: "starts without a GPU"},
		{name: "the node of the GPU alone, a MIG device", env: devices("1:0"), spec: inPodOf(h.Driver, 1), want: denied},
		{name: "the node of the GPU alone, the GPU", env: devices("1"), spec: inPodOf(h.Driver, 1), want: denied},
		{name: "a right brings no more than is granted", env: append(devices("all"), watch), spec: all(h.migNodes(0), admin), config: noEnv,
			want: first + ", the right `mig/monitor`"},
		{name: "a right in a pod", env: append(devices("all"), watch), spec: h.inMIGPod(0), want: "refused: is not for this container"},
		{name: "a right, nothing allocated", env: append(devices("all"), watch), spec: inPod(), want: "starts without a GPU"},
		{name: "a device list", env: list, spec: all(h.inMIGPod(), listing(h.MIG[2].UUID)), want: "5/1 of GPU 1"},
		{name: "a device list with the older name", env: list, spec: all(h.inMIGPod(), listing(h.older("5/1"))), want: "5/1 of GPU 1"},
		{name: "audit, the allocated one", env: devices("1:0"), spec: h.inMIGPod(0), config: audit, want: first},
		{name: "audit, another one", env: devices("1:1"), spec: h.inMIGPod(0), config: audit, want: second + audited},
	}}.run(t)
}

// I7: a pod learns nothing about its neighbours by asking.
func TestT40RefusalRevealsNoMIGDevice(t *testing.T) {
	h := newMIGHost(t)
	message := func(id string) string {
		spec := newSpec("NVIDIA_VISIBLE_DEVICES=" + id)
		h.inMIGPod(1)(spec)
		_, err := h.resolve(t, spec)
		refused(t, err, verdict.KindDenied)
		return strings.ReplaceAll(err.Error(), `"`+id+`"`, "ID")
	}
	want := message(h.MIG[0].UUID)
	for _, id := range []string{
		"MIG-00000000-1111-2222-3333-444444444444", "1:0", "1:7", "9:9", "1", "MIG-", h.older("9/0"), h.older("9/7"), "MIG-/../",
	} {
		if got := message(id); got != want {
			t.Errorf("%s: %q and %q", id, got, want)
		}
	}
}

// A question starts a process, so the kubelet and NVML are asked together.
func TestKubeletAndNVMLAreAskedTogether(t *testing.T) {
	h := newMIGHost(t)
	var asked []string
	ask := func(q question.Questions) (a question.Answers) {
		if q.Pod != nil {
			asked = append(asked, q.Pod.Namespace+"/"+q.Pod.Name)
			a.Pod = &policy.Allocation{Found: true, Containers: map[string][]string{"main": {h.MIG[2].UUID}}}
		}
		if q.Facts {
			asked = append(asked, "NVML")
			facts := factsOf(h.Driver)
			a.Facts = &facts
		}
		asked = append(asked, ";")
		return a
	}
	spec := newSpec("NVIDIA_VISIBLE_DEVICES=" + h.MIG[2].UUID)
	h.inMIGPod()(spec)
	spec.Annotations["io.kubernetes.cri.sandbox-name"], spec.Annotations["io.kubernetes.cri.container-name"] = "pod", "main"
	// NVML's answer is kept for the second container.
	for _, want := range []string{"default/pod NVML ;", "default/pod ;"} {
		asked = nil
		plan, err := resolve(t, h.cfg, spec, ask)
		check(t, err)
		if got := strings.Join(asked, " "); got != want || showMIG(plan) != "5/1 of GPU 1" {
			t.Errorf("asked %q, want %q; given %s", got, want, showMIG(plan))
		}
	}
}

func TestMIGDevicesThatAreTakenOver(t *testing.T) {
	h := newMIGHost(t)
	hook := editedByCDI(fmt.Sprintf("/dev/nvidia%d", h.GPUs[1].Minor))
	gpu := func(i int) func(*specs.Spec) { return withNode(h.Majors.GPU, h.GPUs[i].Minor) }
	table{host: h, env: append(devices("void"), caps("compute")...), show: showMIG, rows: []row{
		{name: "one", spec: all(h.migNodes(0), hook), want: "9/0 of GPU 1"},
		{name: "two of one GPU instance, and a GPU", spec: all(h.migNodes(1, 2), gpu(2), hook), want: "GPU 2, 5/0 of GPU 1, 5/1 of GPU 1"},
		{name: "the node of the GPU alone", spec: all(gpu(1), hook), want: ""},
		{name: "the right to configure", spec: all(h.migNodes(0), withNode(h.Majors.Caps, 1), hook), want: "9/0 of GPU 1, the right `mig/config`"},
	}}.run(t)
}

func TestMPSOfMIG(t *testing.T) {
	h := newMIGHost(t)
	daemonsOf(t, h.cfg)
	show := func(p Plan) string { return fmt.Sprint(p.Sockets, p.Notes[1:]) }
	mps := func(c *config.Config) { c.Container.Sockets = []string{config.MPS} }
	table{host: h, show: show, rows: []row{
		{name: "a MIG device", env: devices("1:0"), config: mps, want: "[] [no socket of mps: a MIG device needs an MPS daemon of its own]"},
		{name: "a GPU", env: devices("0"), config: mps, want: "[mps] []"},
	}}.run(t)
}

// nested turns this host into a container that serves as a host: it has no capability nodes but
// those of the MIG devices at these positions, and its driver files are mounts.
func (h *testHost) nested(t *testing.T, keep ...int) *testHost {
	t.Helper()
	libcuda, err := filepath.Glob(filepath.Join(h.Root, "usr/lib/*/libcuda.so."+h.Version))
	if err != nil || len(libcuda) != 2 {
		t.Fatal(libcuda, err)
	}
	mount(t, libcuda[1], libcuda[1])
	for _, node := range h.nodes(0, 1, 2) {
		if !slices.Contains(h.nodes(keep...), node) {
			check(t, os.Remove(h.DevRoot+node))
		}
	}
	return h
}

func TestMIGInAContainerAsAHost(t *testing.T) {
	const configure = "NVIDIA_MIG_CONFIG_DEVICES=all"
	none, first, second := newMIGHost(t).nested(t), newMIGHost(t).nested(t, 0), newMIGHost(t).nested(t, 1)
	every := newMIGHost(t).nested(t, 0, 1, 2)
	table{show: showMIG, rows: []row{
		{name: "all is what it was given", host: second, env: devices("all"), want: "GPU 0, GPU 2, 5/0 of GPU 1"},
		{name: "a partitioned GPU without a MIG device is not among all", host: none, env: devices("all"), want: "GPU 0, GPU 2"},
		{name: "nor given by name", host: none, env: devices("1"), want: "refused: was given none of its MIG devices"},
		{name: "nor one that has some", host: second, env: devices("1"), want: "refused: partitioned by MIG and cannot be used as a whole"},
		{name: "an index that was not given", host: second, env: devices("1:0"), want: "refused: unknown MIG device"},
		{name: "the right to configure brings nothing more", host: first, env: append(devices("all"), configure), spec: admin,
			want: "GPU 0, GPU 2, 9/0 of GPU 1, the right `mig/config`"},
		{name: "unless all MIG devices are here", host: every, env: append(devices("all"), configure), spec: admin,
			want: "GPU 0, GPU 1, GPU 2, 5/0 of GPU 1, 5/1 of GPU 1, 9/0 of GPU 1, the right `mig/config`"},
	}}.run(t)
}
