package policy

import (
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/device"
)

var gpus = []device.GPU{{Index: 0, Minor: 1, UUID: "GPU-a", BusID: "0000:01:00.0"}, {Index: 1, Minor: 0, UUID: "GPU-b", BusID: "0000:02:00.0"}}

func node(g device.GPU) Number { return Number{195, int64(g.Minor)} }

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
	for _, tc := range []struct {
		name   string
		spec   *bundle.Spec
		change func(*config.Policy)
		want   string // the UUIDs that may be selected
		audit  bool
	}{
		{"outside Kubernetes the environment grants", spec(nil, nil, masked), nil, "GPU-a GPU-b", false},
		{"unless the operator says otherwise", spec(nil, nil, masked), func(p *config.Policy) { p.AcceptEnvWhenUnprivileged = false }, "", false},
		{"which a privileged container is free of", spec(nil, admin, nil), func(p *config.Policy) { p.AcceptEnvWhenUnprivileged = false }, "GPU-a GPU-b", false},
		{"CAP_SYS_ADMIN alone is not privileged", spec(nil, admin, masked), func(p *config.Policy) { p.AcceptEnvWhenUnprivileged = false }, "", false},
		{"a pod without an allocation gets nothing", spec(pod("default"), nil, masked), nil, "", false},
		{"a pod gets what its specification carries, by number", spec(pod("default"), nil, masked, 0), nil, "GPU-b", false},
		{"a number that is no GPU grants nothing", spec(pod("default"), nil, masked, 255), nil, "", false},
		{"a privileged pod selects by environment", spec(pod("default"), admin, nil), nil, "GPU-a GPU-b", false},
		{"a trusted namespace selects by environment", spec(pod("kube-system"), nil, masked), nil, "GPU-a GPU-b", false},
		{"a namespace that looks like one does not", spec(pod("kube-system-x"), nil, masked), nil, "", false},
		{"a pod without a namespace annotation does not", spec(map[string]string{annotationContainerType: "container"}, nil, masked), func(p *config.Policy) { p.TrustedNamespaces = []string{""} }, "", false},
		{"trust-env trusts", spec(pod("default"), nil, masked), func(p *config.Policy) { p.Kubernetes = config.TrustEnv }, "GPU-a GPU-b", false},
		{"audit gives and says what it would refuse", spec(pod("default"), nil, masked), func(p *config.Policy) { p.Kubernetes = config.Audit }, "GPU-a GPU-b", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := config.Default().Policy
			if tc.change != nil {
				tc.change(&p)
			}
			g := Decide(p, Identify(tc.spec), gpus, node)
			got := ""
			for _, gpu := range gpus {
				if g.Allows(gpu) {
					if got != "" {
						got += " "
					}
					got += gpu.UUID
				}
			}
			if got != tc.want || (g.Audit != "") != tc.audit || g.Reason == "" {
				t.Errorf("got %q audit %q reason %q, want %q", got, g.Audit, g.Reason, tc.want)
			}
		})
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
