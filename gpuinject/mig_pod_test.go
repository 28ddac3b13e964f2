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
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

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
