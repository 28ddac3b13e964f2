package gpuinject

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// pod is a container that CRI made, with the nodes of the GPUs that the kubelet
// allocated.
func pod(t *testing.T, namespace string, allocated []int, env ...string) *specs.Spec {
	t.Helper()
	spec := newSpec(env...)
	spec.Annotations["io.kubernetes.cri.container-type"] = "container"
	spec.Annotations["io.kubernetes.cri.sandbox-namespace"] = namespace
	for _, i := range allocated {
		spec.Linux.Devices = append(spec.Linux.Devices, specs.LinuxDevice{
			Path: "/dev/nvidia-of-the-plugin", Type: "c", Major: int64(simulated.Majors.GPU), Minor: int64(simulated.GPUs[i].Minor),
		})
	}
	return spec
}

func TestInKubernetesTheEnvironmentSelectsAndNeverGrants(t *testing.T) {
	uuid := func(i int) string { return simulated.GPUs[i].UUID }
	for _, tc := range []struct {
		name       string
		namespace  string
		mode       string
		allocated  []int
		asked      string
		want       []int
		nothing    bool
		denied     bool
		privileged bool
		note       string
	}{
		{name: "all of an image, nothing allocated", asked: "all", nothing: true},
		{name: "none of an image, nothing allocated", asked: "none", nothing: true},
		{name: "all, one allocated", asked: "all", allocated: []int{2}, want: []int{2}},
		{name: "the allocated one by UUID", asked: uuid(2), allocated: []int{2}, want: []int{2}},
		{name: "the allocated one by index", asked: "2", allocated: []int{2}, want: []int{2}},
		{name: "one of two allocated", asked: "3", allocated: []int{1, 3}, want: []int{3}},
		{name: "somebody else's by UUID", asked: uuid(0), allocated: []int{2}, denied: true},
		{name: "somebody else's by index", asked: "0", allocated: []int{2}, denied: true},
		{name: "one's own and somebody else's", asked: "2,0", allocated: []int{2}, denied: true},
		{name: "one that no host has", asked: "99", allocated: []int{2}, denied: true},
		{name: "an explicit one, nothing allocated", asked: "0", denied: true},
		{name: "a trusted namespace", namespace: "gpu-operator", asked: "all", want: []int{0, 1, 2, 3}},
		{name: "a namespace that looks like a trusted one", namespace: "gpu-operator ", asked: "all", nothing: true},
		{name: "no namespace", namespace: "-", asked: "all", nothing: true},
		{name: "a privileged container", asked: "1", want: []int{1}, privileged: true},
		{name: "trust-env", mode: config.TrustEnv, asked: "1", want: []int{1}},
		{name: "audit, nothing allocated", mode: config.Audit, asked: "1", want: []int{1}, note: "no GPU was allocated"},
		{name: "audit, another allocated", mode: config.Audit, asked: "1", allocated: []int{2}, want: []int{1}, note: uuid(2)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := hostConfig(t)
			if tc.mode != "" {
				cfg.Policy.Kubernetes = tc.mode
			}
			namespace := tc.namespace
			switch namespace {
			case "":
				namespace = "default"
			case "-":
				namespace = ""
			}
			spec := pod(t, namespace, tc.allocated, "NVIDIA_VISIBLE_DEVICES="+tc.asked)
			if tc.privileged {
				spec.Process.Capabilities.Bounding = []string{"CAP_SYS_ADMIN"}
				spec.Linux.MaskedPaths = nil
			}
			job, err := resolve(t, cfg, spec)
			switch {
			case tc.nothing:
				if !errors.Is(err, ErrNotGranted) || job.Plan.GPU || job.Plan.Grant == "" {
					t.Errorf("error %v, plan %+v", err, job.Plan)
				}
				return
			case tc.denied:
				refused(t, err, Denied, "is not this container's")
				for _, g := range simulated.GPUs {
					if !slices.Contains(tc.allocated, g.Index) && !strings.Contains(tc.asked, g.UUID) && strings.Contains(err.Error(), g.UUID) {
						t.Errorf("the message tells of a GPU of somebody else: %v", err)
					}
				}
				return
			case err != nil:
				t.Fatal(err)
			}
			var got []int
			for _, g := range job.Plan.GPUs {
				got = append(got, g.Index)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("GPUs %v, want %v", got, tc.want)
			}
			if audit := job.Plan.Audit; !strings.Contains(audit, tc.note) || tc.note == "" && audit != "" {
				t.Errorf("audit %q", audit)
			}
		})
	}
}

// A pod must not find out which GPUs there are by asking for them.
func TestAnotherPodsGPUAndNoGPUAtAllAreRefusedInTheSameWords(t *testing.T) {
	message := func(id string) string {
		_, err := resolve(t, hostConfig(t), pod(t, "default", []int{2}, "NVIDIA_VISIBLE_DEVICES="+id))
		refused(t, err, Denied)
		return strings.ReplaceAll(err.Error(), id, "ID")
	}
	if there, not := message(simulated.GPUs[0].UUID), message("GPU-00000000-1111-2222-3333-444444444444"); there != not {
		t.Errorf("%q and %q", there, not)
	}
}

func TestOutsideKubernetesTheEnvironmentGrantsUnlessItIsTurnedOff(t *testing.T) {
	cfg := hostConfig(t)
	job, err := resolve(t, cfg, newSpec("NVIDIA_VISIBLE_DEVICES= 3 ,,0,"+simulated.GPUs[3].BusID))
	if err != nil || len(job.Plan.GPUs) != 2 || job.Plan.GPUs[0].Index != 0 || job.Plan.GPUs[1].Index != 3 {
		t.Errorf("GPUs %+v, %v", job.Plan.GPUs, err)
	}
	_, err = resolve(t, cfg, newSpec("NVIDIA_VISIBLE_DEVICES=4"))
	refused(t, err, Invalid, `"4"`, simulated.GPUs[0].UUID, simulated.GPUs[3].BusID)

	cfg.Policy.AcceptEnvWhenUnprivileged = false
	if _, err := resolve(t, cfg, newSpec("NVIDIA_VISIBLE_DEVICES=all")); !errors.Is(err, ErrNotGranted) {
		t.Errorf("accept-env-when-unprivileged = false: %v", err)
	}
	_, err = resolve(t, cfg, newSpec("NVIDIA_VISIBLE_DEVICES=0"))
	refused(t, err, Denied, "accept-env-when-unprivileged")
}
