package device

import (
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/simtest"
)

// What a device plugin's ids are, as opposed to what a user may write.
func TestIsFull(t *testing.T) {
	const uuid = "fef8089b-1111-2222-3333-444444444444"
	inv := Inventory{GPUs: []GPU{{UUID: "GPU-" + uuid}, {Alias: "tegra"}}}
	for _, id := range []string{"GPU-" + uuid, "MIG-" + uuid, "MIG-GPU-" + uuid + "/1/0", "MIG-GPU-" + uuid + "/13/10", "tegra"} {
		if !inv.IsFull(id) {
			t.Errorf("%q is not full", id)
		}
	}
	for _, id := range []string{
		"", "all", "none", "0", "0:1", "0000:65:00.0", uuid, "GPU-", "GPU-fef8089b", "gpu-" + uuid, "GPU-" + uuid + "0", "GPU-" + uuid + "::0",
		"MIG-", "MIG-fef8089b", "MIG-GPU-" + uuid, "MIG-GPU-" + uuid + "/1", "MIG-GPU-" + uuid + "/1/", "MIG-GPU-" + uuid + "/1/0/0",
		"MIG-GPU-" + uuid + "/a/0", "MIG-GPU-fef8089b/1/0", "Tegra", "tegra0",
	} {
		if inv.IsFull(id) {
			t.Errorf("%q is full", id)
		}
	}
}

func TestSelectRefuses(t *testing.T) {
	inv := fourGPUs(t).discover()
	known := []string{"0 (" + uuid("fef8aaaa") + ", 0000:65:00.0)", "1 (" + uuid("fef8089b") + ", 0000:c1:00.0)", "2 ("}
	for _, tt := range []struct {
		name, id string
		want     []string
	}{
		{"an index that the host does not have", "3", append([]string{`unknown GPU "3"`}, known...)},
		{"an index beyond any integer", strings.Repeat("9", 40), append([]string{"unknown GPU"}, known...)},
		{"a negative index", "-1", []string{`unknown GPU "-1"`}},
		{"an unknown UUID", uuid("00000000"), append([]string{`unknown GPU "GPU-00000000-`}, known...)},
		{"an ambiguous UUID names its matches only", "GPU-fef8", append([]string{`"GPU-fef8" is the beginning of 2 UUIDs`}, known[:2]...)},
		{"a bare GPU-", "GPU-", []string{`"GPU-" is the beginning of every UUID`}},
		{"a UUID with a tail", uuid("fef8089b") + "0", []string{"unknown GPU"}},
		{"an unknown bus id", "0000:66:00.0", []string{`unknown GPU "0000:66:00.0"`}},
		{"a bus id without its domain", "65:00.0", []string{"unknown GPU"}},
		{"an excluded GPU by UUID", "GPU-dddd", []string{"excluded"}},
		{"an excluded GPU by bus id", "0000:81:00.0", []string{"excluded"}},
		{"a MIG UUID on a host without MIG", "MIG-12345678-1111-2222-3333-444444444444", append([]string{`unknown MIG device "MIG-12345678-`, "there is no MIG device"}, known...)},
		{"an old MIG UUID on a host without MIG", "MIG-" + uuid("fef8089b") + "/1/0", append([]string{"unknown MIG device", "there is no MIG device"}, known...)},
		{"a MIG index on a host without MIG", "0:1", append([]string{`unknown MIG device "0:1"`, "there is no MIG device"}, known...)},
		{"a blank", " 0", []string{`unknown GPU " 0"`}},
		{"an empty id", "", []string{`unknown GPU ""`}},
		{"all in capitals, which is no word of the contract", "ALL", []string{`unknown GPU "ALL"`}},
		{"a name of several lines", "a\nb", []string{`"a\nb"`}},
		{"a long id is cut at 256 bytes", strings.Repeat("x", 5000), []string{`"` + strings.Repeat("x", 256) + `"`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := inv.Select([]string{"0", tt.id}, Facts{})
			if inv.NeedsFacts([]string{tt.id}, Facts{}) {
				t.Error("NVML would be asked on a host without MIG")
			}
			simtest.Says(t, err, tt.want...)
		})
	}
	t.Run("a GPU without a known UUID can be chosen by index and is not matched by a prefix", func(t *testing.T) {
		h := newHost(t)
		h.gpu("0000:65:00.0", 0, "GPU-????????-????-????-????-????????????", "No")
		inv := h.discover()
		if _, err := inv.Select([]string{"0"}, Facts{}); err != nil {
			t.Error(err)
		}
		if _, err := inv.Select([]string{"GPU-?"}, Facts{}); err == nil || !strings.Contains(err.Error(), "UUID not known") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a host without a GPU says so", func(t *testing.T) {
		inv := newHost(t).discover()
		if set, err := inv.Select([]string{"all"}, Facts{}); err != nil || !set.Empty() {
			t.Errorf("all: %v, %v", set, err)
		}
		if _, err := inv.Select([]string{"0"}, Facts{}); err == nil || !strings.Contains(err.Error(), "no usable GPU") {
			t.Errorf("got %v", err)
		}
	})
}
