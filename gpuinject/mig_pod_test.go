package gpuinject

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// A pod without a device has NVML asked by no annotation, and one that has a device does
// not start without it because NVML was silent.
func TestPodAnnotationsWithoutNVML(t *testing.T) {
	h := newMIGHost(t)
	for _, tc := range []struct {
		name  string
		mig   []int
		asked int
	}{{"nothing was allocated", nil, 0}, {"the device was allocated", []int{0}, 1}} {
		t.Run(tc.name, func(t *testing.T) {
			spec := h.migPod(tc.mig, nil)
			spec.Annotations["cdi.k8s.io/x"] = "nvidia.com/gpu=" + h.MIG[0].UUID
			asked := 0
			plan, err := resolveWith(t, h.cfg, spec, factsFrom(func() (device.Facts, error) {
				asked++
				return device.Facts{}, errors.New("the GPU is gone")
			}))
			if tc.mig == nil {
				if err != nil || plan.GPU {
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

func TestMIGDevicesOfPods(t *testing.T) {
	h := newMIGHost(t)
	nodes := func(gpus []int, mig ...int) func(*specs.Spec) {
		return func(s *specs.Spec) {
			pod := h.migPod(mig, gpus)
			s.Annotations, s.Linux.Devices = pod.Annotations, pod.Linux.Devices
		}
	}
	const first, second, denied = "9/0 of GPU 1", "5/0 of GPU 1", "refused: is not this container's"
	contractSection{host: h, show: showMIG, cases: []contractCase{
		{name: "all", env: devices("all"), spec: nodes(nil, 0), here: first},
		{name: "the allocated one by UUID", env: devices(h.MIG[0].UUID), spec: nodes(nil, 0), here: first},
		{name: "the allocated one by index", env: devices("1:0"), spec: nodes(nil, 0), here: first},
		{name: "one of two", env: devices("1:1"), spec: nodes(nil, 0, 1), here: second},
		{name: "beside a GPU", env: devices("all"), spec: nodes([]int{2}, 0), here: "GPU 2, " + first},
		{name: "another one of the same GPU instance", env: devices("1:2"), spec: nodes(nil, 1), here: denied},
		{name: "the allocated one and another", env: devices("1:1,1:0"), spec: nodes(nil, 1), here: denied},
		{name: "the GPU of the allocated one", env: devices("1"), spec: nodes(nil, 1), here: denied},
		{name: "one that does not exist", env: devices("1:9"), spec: nodes(nil, 1), here: denied},
		{name: "the node of the GPU alone, all", env: devices("all"), spec: nodes([]int{1}), here: "starts without a GPU"},
		{name: "the node of the GPU alone, a MIG device", env: devices("1:0"), spec: nodes([]int{1}), here: denied},
		{name: "the node of the GPU alone, the GPU", env: devices("1"), spec: nodes([]int{1}), here: denied},
	}}.run(t)
}

// T47 and I7: a pod learns nothing of its neighbours by asking.
func TestRefusalRevealsNoMIGDevice(t *testing.T) {
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

// One question takes a process of the probe: what the kubelet allocated and what NVML says of it
// are asked for together.
func TestKubeletAndNVMLAreAskedTogether(t *testing.T) {
	h := newMIGHost(t)
	var asked []string
	ask := func(q probe.Questions) (a probe.Answers) {
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
	// NVML's answer is kept for the second container.
	for _, want := range []string{"default/pod NVML ;", "default/pod ;"} {
		spec := h.migPod(nil, nil, "NVIDIA_VISIBLE_DEVICES=all")
		spec.Annotations["io.kubernetes.cri.sandbox-name"], spec.Annotations["io.kubernetes.cri.container-name"] = "pod", "main"
		asked = nil
		plan, err := resolveWith(t, h.cfg, spec, ask)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(asked, " "); got != want || len(plan.MIG) != 1 || plan.MIG[0].UUID != h.MIG[2].UUID || len(plan.GPUs) != 0 {
			t.Errorf("asked %q, want %q; MIG devices %+v, GPUs %+v", got, want, plan.MIG, plan.GPUs)
		}
	}
}

func TestMIGDeviceList(t *testing.T) {
	h := newMIGHost(t)
	for _, id := range []string{h.MIG[2].UUID, "MIG-" + h.GPUs[1].UUID + "/5/1"} {
		spec := h.migPod(nil, nil, "NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices")
		spec.Mounts = append(spec.Mounts, specs.Mount{Source: "/dev/null", Destination: "/var/run/nvidia-container-devices/" + id, Type: "bind"})
		plan, err := h.resolve(t, spec)
		if err != nil {
			t.Fatal(err)
		}
		if p := plan; len(p.MIG) != 1 || p.MIG[0].GI != 5 || p.MIG[0].CI != 1 || !slices.Equal(nodesOf(p), append([]string{}, append(h.capNodes(2), h.gpuNode(1))...)) {
			t.Errorf("%s: %+v", id, p)
		}
	}
}

func TestAuditOfMIG(t *testing.T) {
	h := newMIGHost(t)
	h.cfg.Policy.Kubernetes = config.Audit
	for asked, audited := range map[string]bool{"1:0": false, "1:1": true, "all": true} {
		plan, err := h.resolve(t, h.migPod([]int{0}, nil, "NVIDIA_VISIBLE_DEVICES="+asked))
		if err != nil {
			t.Fatal(err)
		}
		if (plan.Audit != "") != audited || audited && !strings.Contains(plan.Audit, "MIG-"+h.GPUs[1].UUID+"/9/0") {
			t.Errorf("%s: audit %q", asked, plan.Audit)
		}
	}
}
