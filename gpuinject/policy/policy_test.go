package policy

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/devnode"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// The host has two GPUs, and the second one has two MIG devices.
var (
	gpus      = []device.GPU{{Index: 0, Minor: 1, UUID: "GPU-a", BusID: "0000:01:00.0"}, {Index: 1, Minor: 0, UUID: "GPU-b", BusID: "0000:02:00.0"}}
	instances = []device.Instance{
		{GPU: 1, Minor: 0, Parent: "GPU-b", GI: 1, CI: 0, UUID: "MIG-1"},
		{GPU: 1, Minor: 0, Parent: "GPU-b", GI: 2, CI: 0, UUID: "MIG-2"},
	}
)

// setOf returns the devices of a list of UUIDs.
func setOf(uuids string) (set device.Set) {
	for _, g := range gpus {
		if slices.Contains(strings.Fields(uuids), g.UUID) {
			set.AddGPU(g)
		}
	}
	for _, in := range instances {
		if slices.Contains(strings.Fields(uuids), in.UUID) {
			set.AddMIG(in)
		}
	}
	return set
}

// allowed lists what may be selected.
func allowed(t *testing.T, g Allowed) string {
	t.Helper()
	var list []string
	for _, gpu := range gpus {
		if g.Allows(gpu) {
			list = append(list, gpu.UUID)
		}
		if g.AllowsAll(device.Set{GPUs: []device.GPU{gpu}}) != g.Allows(gpu) {
			t.Errorf("AllowsAll of %s differs from Allows", gpu.UUID)
		}
	}
	for _, in := range instances {
		if g.AllowsMIG(in) {
			list = append(list, in.UUID)
		}
		if g.AllowsAll(device.Set{MIG: []device.Instance{in}}) != g.AllowsMIG(in) {
			t.Errorf("AllowsAll of %s differs from AllowsMIG", in.UUID)
		}
	}
	if g.Nothing() != (len(list) == 0) {
		t.Errorf("Nothing is %v of %q", g.Nothing(), list)
	}
	return strings.Join(list, " ")
}

func pod(namespace string) request.Container {
	return request.Container{Kubernetes: true, Namespace: namespace, Pod: "p", UID: "u", Name: "c"}
}

// allocation is the kubelet's answer of one pod: lists of ids by container.
func allocation(containers map[string][]string) KubeletAnswer {
	return KubeletAnswer{Allocation: Allocation{Found: true, Containers: containers}}
}

func TestDecide(t *testing.T) {
	const everything = "GPU-a GPU-b MIG-1 MIG-2"
	plain := request.Container{}
	privileged, privilegedPod := request.Container{Privileged: true, Admin: true}, pod("default")
	privilegedPod.Privileged, privilegedPod.Admin = true, true
	noEnv := func(p *config.Policy) { p.AcceptEnvWhenUnprivileged = false }
	audit := func(p *config.Policy) { p.Kubernetes = config.Audit }
	noKubelet := func(p *config.Policy) { p.AcceptEnvWithoutKubelet = true }
	listed := allocation(map[string][]string{"c": {"GPU-b"}, "other": {"GPU-a"}})
	listed.Set = setOf("GPU-b")
	none := allocation(map[string][]string{"c": {}})
	gone := allocation(map[string][]string{"c": {"GPU-x"}})
	gone.SetErr = errors.New("no such GPU")
	fails := KubeletAnswer{Err: errors.New("timeout")}
	for _, tc := range []struct {
		name      string
		container request.Container
		change    func(*config.Policy)
		inSpec    string
		kubelet   KubeletAnswer
		want      string // what may be selected, or the error
		reason    string
		asks      bool // the kubelet's answer counts
	}{
		{name: "outside Kubernetes", container: plain, want: everything, reason: "outside Kubernetes the environment grants"},
		{name: "outside Kubernetes, environment not accepted", container: plain, change: noEnv, reason: "accept-env-when-unprivileged is off"},
		{name: "and devices in the specification", container: plain, change: noEnv, inSpec: "GPU-b", want: "GPU-b MIG-1 MIG-2", reason: "GPU-b"},
		{name: "and privileged", container: privileged, change: noEnv, want: everything, reason: "outside Kubernetes"},
		{name: "and CAP_SYS_ADMIN alone", container: request.Container{Admin: true}, change: noEnv, reason: "accept-env"},
		{name: "a pod without an allocation", container: pod("default"), kubelet: none, reason: "no GPU was allocated to the container, says the kubelet", asks: true},
		{name: "a pod with a GPU in its specification", container: pod("default"), inSpec: "GPU-a", kubelet: listed, want: "GPU-a", reason: "in the container's specification: GPU-a"},
		{name: "a pod with a MIG device in its specification", container: pod("default"), inSpec: "MIG-2", want: "MIG-2", reason: "MIG-2"},
		{name: "a pod with a GPU of the kubelet", container: pod("default"), kubelet: listed, want: "GPU-b MIG-1 MIG-2", reason: "allocated by the kubelet: GPU-b", asks: true},
		{name: "a container that the kubelet does not list", container: pod("default"), kubelet: allocation(map[string][]string{"other": {}}), reason: "PASS_DEVICE_SPECS=true", asks: true},
		{name: "a pod that the kubelet does not know", container: pod("default"), reason: "the kubelet does not know pod default/p", asks: true},
		{name: "a kubelet that does not answer", container: pod("default"), kubelet: fails, want: "error: timeout", asks: true},
		{name: "an allocation that this host does not have", container: pod("default"), kubelet: gone, want: "error: does not have: no such GPU", asks: true},
		{name: "no kubelet on this host", container: pod("default"), kubelet: KubeletAnswer{NoKubelet: true}, want: "error: what was allocated to pod default/p is not known: there is no kubelet at /var/lib/kubelet/pod-resources/kubelet.sock: set policy.kubelet-socket to pod-resources/kubelet.sock in the kubelet's --root-dir, or on a host without a kubelet policy.accept-env-without-kubelet = true", asks: true},
		{name: "no kubelet, and that is accepted", container: pod("default"), change: noKubelet, kubelet: KubeletAnswer{NoKubelet: true}, want: everything, reason: "there is no kubelet at", asks: true},
		{name: "that is accepted, and there is a kubelet", container: pod("default"), change: noKubelet, kubelet: none, reason: "no GPU was allocated", asks: true},
		{name: "that is accepted, and the kubelet does not answer", container: pod("default"), change: noKubelet, kubelet: fails, want: "error: timeout", asks: true},
		{name: "audit, and no kubelet", container: pod("default"), change: audit, kubelet: KubeletAnswer{NoKubelet: true}, want: everything, reason: "audit", asks: true},
		{name: "a pod of another runtime", container: request.Container{Kubernetes: true}, change: noKubelet, reason: "does not name its pod"},
		{name: "a namespace that GPU Operator uses", container: pod("gpu-operator"), kubelet: none, reason: "no GPU", asks: true},
		{name: "a privileged pod", container: privilegedPod, want: everything, reason: "privileged"},
		{name: "a trusted namespace", container: pod("kube-system"), want: everything, reason: "namespace kube-system is trusted"},
		{name: "a namespace that looks alike", container: pod("kube-system-x"), kubelet: none, reason: "no GPU", asks: true},
		{name: "a pod without a namespace", container: pod(""), change: func(p *config.Policy) { p.TrustedNamespaces = []string{""} }, reason: "does not name its pod"},
		{name: "trust-env", container: pod("default"), change: func(p *config.Policy) { p.Kubernetes = config.TrustEnv }, want: everything, reason: "trust-env"},
		{name: "audit", container: pod("default"), change: audit, kubelet: none, want: everything, reason: "audit", asks: true},
		{name: "audit, and the kubelet does not answer", container: pod("default"), change: audit, kubelet: fails, want: everything, reason: "audit", asks: true},
		{name: "audit of a trusted namespace", container: pod("kube-system"), change: audit, want: everything, reason: "trusted"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := config.Default().Policy
			if tc.change != nil {
				tc.change(&p)
			}
			environment := EnvironmentDecides(p, tc.container)
			if got := NeedsKubelet(tc.container, environment) && tc.inSpec == ""; got != tc.asks {
				t.Errorf("NeedsKubelet is %v", got)
			}
			g, enforced, err := Decide(p, tc.container, environment, setOf(tc.inSpec), tc.kubelet)
			if want, ok := strings.CutPrefix(tc.want, "error: "); ok {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %+v, %v, want an error with %q", g, err, want)
				}
				return
			}
			if got := allowed(t, g); err != nil || got != tc.want || !strings.Contains(g.Reason, tc.reason) {
				t.Errorf("got %q (%s), %v, want %q (%s)", got, g.Reason, err, tc.want, tc.reason)
			}
			// The mode "audit" gives and knows what "enforce" would.
			if audited := tc.reason == "audit"; audited != (g.All != enforced.All) || audited && (!enforced.Nothing() || enforced.Reason == "") {
				t.Errorf("enforce would have granted %+v", enforced)
			}
		})
	}
}

func TestAllocation(t *testing.T) {
	a := Allocation{Found: true, Containers: map[string][]string{
		"main": {"MIG-1", "GPU-b", "GPU-b"}, "side": {"GPU-a"}, "none": {},
	}}
	for name, want := range map[string]string{"main": "GPU-b MIG-1 true", "side": "GPU-a true", "none": "true", "init": "GPU-a GPU-b MIG-1 false"} {
		ids, listed := a.IDs(name)
		fields := append(slices.Clone(ids), map[bool]string{true: "true", false: "false"}[listed])
		if got := strings.Join(fields, " "); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

func TestDecideClass(t *testing.T) {
	other := func(name string, minor uint32, one bool) device.Node {
		return device.Node{Path: name, Major: 231, Minor: minor, Individual: one}
	}
	const every = "verbs0 verbs1 cm"
	nodes := []device.Node{other("verbs0", 0, true), other("verbs1", 1, true), other("cm", 9, false)}
	for _, tc := range []struct {
		name  string
		all   bool
		spec  []devnode.Number
		allow string
		named bool
		want  string
	}{
		{name: "the environment grants GPUs", all: true, want: every},
		{name: "a GPU was allocated", spec: []devnode.Number{{Major: 195, Minor: 0}}},
		{name: "the operator allows the class", allow: "mofed", want: every},
		{name: "the operator allows another class", allow: "imex"},
		{name: "named by a device list", named: true, want: every},
		{name: "a node in the specification brings what all share", spec: []devnode.Number{{Major: 231, Minor: 1}}, want: "verbs1 cm"},
		{name: "what all share brings no other node", spec: []devnode.Number{{Major: 231, Minor: 9}}, want: "cm"},
		{name: "a node of the same minor and another major", spec: []devnode.Number{{Major: 195, Minor: 1}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := config.Default().Policy
			p.AllowFromEnvironment = []string{tc.allow}
			g := Allowed{All: tc.all, Reason: "the grant"}
			if !tc.all {
				g.Set = device.Set{GPUs: gpus}
			}
			may, all, reason := DecideClass(p, request.Container{Kubernetes: true, Nodes: tc.spec}, g, "mofed", nodes, tc.named)
			var names []string
			for _, n := range may {
				names = append(names, n.Path)
			}
			if s := strings.Join(names, " "); s != tc.want || all != (s == every) || reason == "" {
				t.Errorf("got %q (%s), want %q", s, reason, tc.want)
			}
		})
	}
}

func TestMayManageMIG(t *testing.T) {
	with := func(c request.Container, admin, privileged bool) request.Container {
		c.Admin, c.Privileged = admin, privileged
		return c
	}
	for _, tc := range []struct {
		name      string
		container request.Container
		mode      string
		may       bool
	}{
		{"an ordinary container", request.Container{}, config.Enforce, false},
		{"one with CAP_SYS_ADMIN", request.Container{Admin: true}, config.Enforce, true},
		{"an ordinary pod", pod("default"), config.Enforce, false},
		{"a pod with CAP_SYS_ADMIN", with(pod("default"), true, false), config.Enforce, false},
		{"a privileged pod", with(pod("default"), true, true), config.Enforce, true},
		{"a pod of a trusted namespace", pod("kube-system"), config.Enforce, true},
		{"a pod without a namespace", pod(""), config.Enforce, false},
		{"an ordinary pod under trust-env", pod("default"), config.TrustEnv, false},
		{"an ordinary pod under audit", pod("default"), config.Audit, false},
	} {
		p := config.Default().Policy
		p.Kubernetes, p.TrustedNamespaces = tc.mode, append(p.TrustedNamespaces, "")
		if may, missing := MayManageMIG(p, tc.container); may != tc.may || missing == "" {
			t.Errorf("%s: %v (%s), want %v", tc.name, may, missing, tc.may)
		}
	}
}
