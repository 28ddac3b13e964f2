package policy

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
)

var gpus = []device.GPU{{Index: 0, Minor: 1, UUID: "GPU-a", BusID: "0000:01:00.0"}, {Index: 1, Minor: 0, UUID: "GPU-b", BusID: "0000:02:00.0"}}

func given(nodes []Number) (set device.Set, err error) {
	for _, g := range gpus {
		if slices.Contains(nodes, Number{Major: 195, Minor: int64(g.Minor)}) {
			set.AddGPU(g)
		}
	}
	return set, nil
}

func spec(annotations map[string]string, caps []string, masked []string, minors ...int64) *bundle.Spec {
	s := &bundle.Spec{
		Annotations: annotations,
		Process:     &bundle.Process{Capabilities: &specs.LinuxCapabilities{Bounding: caps}},
		Linux:       &bundle.Linux{MaskedPaths: masked},
	}
	for _, m := range minors {
		s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{Path: "/dev/any", Type: "c", Major: 195, Minor: m})
	}
	return s
}

func pod(namespace string) map[string]string {
	return map[string]string{annotationContainerType: "container", annotationNamespace: namespace, annotationPod: "p", annotationContainer: "c"}
}

func TestDecide(t *testing.T) {
	masked := []string{"/proc/kcore"}
	admin := []string{"CAP_SYS_ADMIN"}
	kubelet := func(found bool, containers map[string][]string) func() (Allocation, error) {
		return func() (Allocation, error) { return Allocation{Found: found, Containers: containers}, nil }
	}
	nothing := kubelet(true, map[string][]string{"c": {}})
	for _, tc := range []struct {
		name    string
		spec    *bundle.Spec
		change  func(*config.Policy)
		kubelet func() (Allocation, error)
		mounted []string
		want    string // the UUIDs that may be selected, or the error
		audit   bool
	}{
		{"outside Kubernetes the environment grants", spec(nil, nil, masked), nil, nil, nil, "GPU-a GPU-b", false},
		{"unless the operator says otherwise", spec(nil, nil, masked), func(p *config.Policy) { p.AcceptEnvWhenUnprivileged = false }, nil, nil, "", false},
		{"then a device-list mount still does", spec(nil, nil, masked), func(p *config.Policy) { p.AcceptEnvWhenUnprivileged = false }, nil, []string{"GPU-b"}, "GPU-b", false},
		{"which a privileged container is free of", spec(nil, admin, nil), func(p *config.Policy) { p.AcceptEnvWhenUnprivileged = false }, nil, nil, "GPU-a GPU-b", false},
		{"CAP_SYS_ADMIN alone is not privileged", spec(nil, admin, masked), func(p *config.Policy) { p.AcceptEnvWhenUnprivileged = false }, nil, nil, "", false},
		{"a pod without an allocation gets nothing", spec(pod("default"), nil, masked), nil, nothing, nil, "", false},
		{"a pod gets what its specification carries, by number, and the kubelet is not asked", spec(pod("default"), nil, masked, 0), nil, nil, nil, "GPU-b", false},
		{"a number that is no GPU grants nothing", spec(pod("default"), nil, masked, 255), nil, nothing, nil, "", false},
		{"a pod gets what is mounted", spec(pod("default"), nil, masked), nil, nil, []string{"GPU-a"}, "GPU-a", false},
		{"a pod gets what the kubelet allocated to the container", spec(pod("default"), nil, masked), nil,
			kubelet(true, map[string][]string{"c": {"GPU-b"}, "other": {"GPU-a"}}), nil, "GPU-b", false},
		{"a replica of a time-sliced GPU is that GPU", spec(pod("default"), nil, masked), nil,
			kubelet(true, map[string][]string{"c": {"GPU-a::1", "GPU-a::2"}}), nil, "GPU-a", false},
		{"an init container, which the kubelet does not list, shares what its pod has", spec(pod("default"), nil, masked), nil,
			kubelet(true, map[string][]string{"main": {"GPU-b"}, "side": {}}), nil, "GPU-b", false},
		{"a pod that the kubelet does not know gets nothing", spec(pod("default"), nil, masked), nil, kubelet(false, nil), nil, "", false},
		{"a kubelet that does not answer is an error", spec(pod("default"), nil, masked), nil,
			func() (Allocation, error) { return Allocation{}, errors.New("timeout") }, nil, "error: timeout", false},
		{"an allocation that this host does not have is an error", spec(pod("default"), nil, masked), nil,
			kubelet(true, map[string][]string{"c": {"GPU-x"}}), nil, "error: does not have", false},
		{"without a kubelet on this host the environment grants", spec(pod("default"), nil, masked), nil,
			func() (Allocation, error) { return Allocation{}, ErrNoKubelet }, nil, "GPU-a GPU-b", false},
		{"a privileged pod selects by environment", spec(pod("default"), admin, nil), nil, nil, nil, "GPU-a GPU-b", false},
		{"a trusted namespace selects by environment", spec(pod("kube-system"), nil, masked), nil, nil, nil, "GPU-a GPU-b", false},
		{"a namespace that looks like one does not", spec(pod("kube-system-x"), nil, masked), nil, nothing, nil, "", false},
		{"a pod without a namespace annotation does not", spec(map[string]string{annotationContainerType: "container"}, nil, masked), func(p *config.Policy) { p.TrustedNamespaces = []string{""} }, kubelet(false, nil), nil, "", false},
		{"trust-env trusts", spec(pod("default"), nil, masked), func(p *config.Policy) { p.Kubernetes = config.TrustEnv }, nil, nil, "GPU-a GPU-b", false},
		{"audit gives and knows what enforce would", spec(pod("default"), nil, masked), func(p *config.Policy) { p.Kubernetes = config.Audit }, nothing, nil, "GPU-a GPU-b", true},
		{"audit gives though the kubelet does not answer", spec(pod("default"), nil, masked), func(p *config.Policy) { p.Kubernetes = config.Audit },
			func() (Allocation, error) { return Allocation{}, errors.New("timeout") }, nil, "GPU-a GPU-b", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := config.Default().Policy
			if tc.change != nil {
				tc.change(&p)
			}
			g, err := Decide(p, Identify(tc.spec), Host{Given: given, Select: selectGPUs, Mounted: tc.mounted, Kubelet: tc.kubelet})
			if want, ok := strings.CutPrefix(tc.want, "error: "); ok {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v %+v, want an error with %q", err, g, want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, gpu := range gpus {
				if g.Allows(gpu) {
					got = append(got, gpu.UUID)
				}
			}
			if strings.Join(got, " ") != tc.want || (g.Enforced != nil) != tc.audit || g.Reason == "" || g.Nothing() != (len(got) == 0) {
				t.Errorf("got %q enforced %v reason %q, want %q", got, g.Enforced, g.Reason, tc.want)
			}
			if g.Enforced != nil && (!g.Enforced.Nothing() || g.Enforced.Reason == "") {
				t.Errorf("enforce would have granted %+v", g.Enforced)
			}
		})
	}
}

func selectGPUs(ids []string) (set device.Set, err error) {
	for _, id := range ids {
		i := slices.IndexFunc(gpus, func(g device.GPU) bool { return g.UUID == id })
		if i < 0 {
			return device.Set{}, errors.New("no such GPU")
		}
		set.AddGPU(gpus[i])
	}
	return set, nil
}

func TestAnInitContainerThatTheKubeletDoesNotListIsToldWhatToDo(t *testing.T) {
	for name, want := range map[string]string{"c": "says the kubelet", "other": "PASS_DEVICE_SPECS"} {
		kubelet := func() (Allocation, error) {
			return Allocation{Found: true, Containers: map[string][]string{name: {}}}, nil
		}
		g, err := Decide(config.Default().Policy, Identify(spec(pod("default"), nil, []string{"/proc/kcore"})), Host{Given: given, Select: selectGPUs, Kubelet: kubelet})
		if err != nil || !g.Nothing() || !strings.Contains(g.Reason, want) {
			t.Errorf("listed %s: %+v %v, want %q", name, g, err, want)
		}
	}
}

func TestTheKindOfContainerIsWhatContainerdSays(t *testing.T) {
	if c := Identify(spec(map[string]string{annotationContainerType: "sandbox"}, nil, nil)); !c.Sandbox || !c.Kubernetes {
		t.Errorf("sandbox is %+v", c)
	}
	if c := Identify(spec(map[string]string{"io.kubernetes.cri.container-typ": "sandbox"}, nil, nil)); c.Sandbox || c.Kubernetes {
		t.Errorf("other annotation is %+v", c)
	}
}
