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

// The second GPU of the tests' host has these.
var instances = []device.Instance{
	{GPU: 1, Minor: 0, Parent: "GPU-b", GI: 1, CI: 0, UUID: "MIG-1", CINode: 11},
	{GPU: 1, Minor: 0, Parent: "GPU-b", GI: 2, CI: 0, UUID: "MIG-2", CINode: 12},
}

func selectMIG(ids []string) (set device.Set, err error) {
	for _, id := range ids {
		i := slices.IndexFunc(instances, func(in device.Instance) bool {
			return in.UUID == id || id == map[int]string{1: "MIG-GPU-b/1/0", 2: "MIG-GPU-b/2/0"}[in.GI]
		})
		if i < 0 {
			gpus, err := selectGPUs([]string{id})
			if err != nil {
				return set, err
			}
			set.Add(gpus)
			continue
		}
		set.AddMIG(instances[i])
	}
	return set, nil
}

func givenMIG(nodes []Number) (set device.Set, err error) {
	for _, in := range instances {
		if slices.Contains(nodes, Number{Major: 241, Minor: int64(in.CINode)}) {
			set.AddMIG(in)
		}
	}
	return set, nil
}

func TestAGrantOfMIGDevices(t *testing.T) {
	kubelet := func(ids ...string) func() (Allocation, error) {
		return func() (Allocation, error) {
			return Allocation{Found: true, Containers: map[string][]string{"c": ids}}, nil
		}
	}
	for _, tc := range []struct {
		name    string
		nodes   []Number
		kubelet func() (Allocation, error)
		mounted []string
		want    string // what may be selected, or the error
	}{
		{"by the node of a compute instance, and the kubelet is not asked", []Number{{Major: 195, Minor: 0}, {Major: 241, Minor: 12}}, nil, nil, "MIG-2"},
		{"by a mount of the older name", nil, nil, []string{"MIG-GPU-b/1/0"}, "MIG-1"},
		{"by a mount and a node", []Number{{Major: 241, Minor: 12}}, nil, []string{"MIG-1"}, "MIG-1 MIG-2"},
		{"by the kubelet", nil, kubelet("MIG-2"), nil, "MIG-2"},
		{"by the kubelet, of which replicas are one", nil, kubelet("MIG-2::0", "MIG-2::1"), nil, "MIG-2"},
		{"by the kubelet, beside a GPU", nil, kubelet("MIG-1", "GPU-a"), nil, "GPU-a MIG-1"},
		{"a GPU that the kubelet allocated whole has its MIG devices", nil, kubelet("GPU-b"), nil, "GPU-b MIG-1 MIG-2"},
		{"another GPU has not", nil, kubelet("GPU-a"), nil, "GPU-a"},
		{"a MIG device that is gone is an error", nil, kubelet("MIG-3"), nil, "error: does not have"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := spec(pod("default"), nil, []string{"/proc/kcore"})
			for _, n := range tc.nodes {
				s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{Path: "/dev/any", Type: "c", Major: n.Major, Minor: n.Minor})
			}
			ask := tc.kubelet
			if ask == nil {
				ask = func() (Allocation, error) { return Allocation{}, errors.New("the kubelet was asked") }
			}
			g, err := Decide(config.Default().Policy, Identify(s), Host{Given: givenMIG, Select: selectMIG, Mounted: tc.mounted, Kubelet: ask})
			if want, ok := strings.CutPrefix(tc.want, "error: "); ok {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v %+v, want an error with %q", err, g, want)
				}
				return
			}
			var got []string
			for _, gpu := range gpus {
				if g.Allows(gpu) {
					got = append(got, gpu.UUID)
				}
			}
			for _, in := range instances {
				if g.AllowsMIG(in) {
					got = append(got, in.UUID)
				}
				if g.AllowsAll(device.Set{MIG: []device.Instance{in}}) != g.AllowsMIG(in) {
					t.Errorf("AllowsAll of %s", in.UUID)
				}
			}
			if err != nil || strings.Join(got, " ") != tc.want || g.Nothing() {
				t.Errorf("got %q, %v, want %q", got, err, tc.want)
			}
			for _, name := range g.Set.Names() {
				if !strings.Contains(g.Reason, name) {
					t.Errorf("the reason %q does not say %s", g.Reason, name)
				}
			}
		})
	}
}

func TestWhoMayManageMIG(t *testing.T) {
	masked, admin := []string{"/proc/kcore"}, []string{"CAP_SYS_ADMIN"}
	userns := func(s *bundle.Spec) *bundle.Spec {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
		return s
	}
	for _, tc := range []struct {
		name string
		spec *bundle.Spec
		mode string
		may  bool
	}{
		{"an ordinary container", spec(nil, nil, masked), "", false},
		{"one with CAP_SYS_ADMIN", spec(nil, admin, masked), "", true},
		{"one with CAP_SYS_ADMIN in a user namespace", userns(spec(nil, admin, masked)), "", false},
		{"a privileged one", spec(nil, admin, nil), "", true},
		{"an ordinary pod", spec(pod("default"), nil, masked), "", false},
		{"a pod with CAP_SYS_ADMIN", spec(pod("default"), admin, masked), "", false},
		{"a privileged pod", spec(pod("default"), admin, nil), "", true},
		{"a pod of a trusted namespace", spec(pod("gpu-operator"), nil, masked), "", true},
		{"a pod of no namespace", spec(pod(""), nil, masked), "", false},
		{"an ordinary pod where the environment is trusted", spec(pod("default"), nil, masked), config.TrustEnv, false},
		{"an ordinary pod where nothing is enforced", spec(pod("default"), nil, masked), config.Audit, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := config.Default().Policy
			if tc.mode != "" {
				p.Kubernetes = tc.mode
			}
			may, reason := MayManageMIG(p, Identify(tc.spec))
			if may != tc.may || reason == "" {
				t.Errorf("may %v (%s), want %v", may, reason, tc.may)
			}
		})
	}
}
