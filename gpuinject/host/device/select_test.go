package device

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

func TestSelect(t *testing.T) {
	inv := migHost(t).discover()
	for _, tt := range []struct {
		name  string
		ids   []string
		asks  bool
		want  []string
		error string
	}{
		{"no id is no GPU", nil, false, nil, ""},
		{"the result is in index order", []string{"2", "0"}, false, []string{"0", "2"}, ""},
		{"the beginning of one UUID", []string{"GPU-fef80"}, false, []string{"1"}, ""},
		{"the beginning of one UUID in capitals", []string{"gpu-FEF8A"}, false, []string{"0"}, ""},
		{"a bus id as NVML has it", []string{"00000000:C1:00.0"}, false, []string{"1"}, ""},
		{"a bus id with a short domain, as libnvidia-container accepts it", []string{"0:65:00.0"}, false, []string{"0"}, ""},
		{"a bus id with a long domain", []string{"00010000:01:00.0"}, false, []string{"2"}, ""},
		{"duplicates by any name are one GPU", []string{"0", "0", uuid("fef8aaaa"), "GPU-fef8a", "00000000:65:00.0"}, false, []string{"0"}, ""},
		{"all beside an index is still all, once", []string{"1", "all"}, false, []string{"1", "0 9/0", "0 10/0", "0 10/1", "2 1/0"}, ""},
		{"all is every MIG device, and GPUs that have none", []string{"all"}, false, []string{"1", "0 9/0", "0 10/0", "0 10/1", "2 1/0"}, ""},
		{"the older name", []string{"MIG-" + uuid("fef8aaaa") + "/10/1"}, false, []string{"0 10/1"}, ""},
		{"the older name in any case, with the beginning of the GPU's UUID", []string{"mig-gpu-FEF8A/9/0"}, false, []string{"0 9/0"}, ""},
		{"a MIG UUID in capitals", []string{strings.ToUpper(migUUID("bbbb0000"))}, true, []string{"0 9/0"}, ""},
		{"the beginning of one MIG UUID", []string{"MIG-cc"}, true, []string{"2 1/0"}, ""},
		{"an index is NVML's and not the order of procfs", []string{"0:0"}, true, []string{"0 10/1"}, ""},
		{"an index with leading zeros", []string{"00:00", "0:04"}, true, []string{"0 9/0", "0 10/1"}, ""},
		{"an index after a gap", []string{"0:4"}, true, []string{"0 9/0"}, ""},
		{"by any name it is one device", []string{"0:0", migUUID("aaaa0000"), "MIG-" + uuid("fef8aaaa") + "/10/1", "0:0"}, true, []string{"0 10/1"}, ""},
		{"beside a whole GPU", []string{"2:0", "1"}, true, []string{"1", "2 1/0"}, ""},
		{"a GPU that has MIG devices is the caller's to judge", []string{"0"}, false, []string{"0"}, ""},

		{"an index that is not there lists all names", []string{"0:2"}, true, nil,
			"0:0 (" + migUUID("aaaa0000") + ", 10/1), 2:0 (" + migUUID("cccc0000") + ", 1/0)"},
		{"an index of a GPU without MIG", []string{"1:0"}, true, nil, `unknown MIG device "1:0"`},
		{"an index of a GPU that is not there", []string{"9:0"}, true, nil, `unknown MIG device "9:0"`},
		{"numbers beyond any device's", []string{"0:99999999999999999999"}, true, nil, "unknown MIG device"},
		{"a UUID that is not there", []string{migUUID("dddd0000")}, true, nil, "unknown MIG device"},
		{"the beginning of two UUIDs", []string{"MIG-aaa"}, true, nil, "is the beginning of 2 UUIDs: 0:1 (" + migUUID("aaab0000") + ", 10/0), 0:0 ("},
		{"the beginning of every UUID", []string{"MIG-"}, false, nil, "is the beginning of every UUID: this host has 0:4 (" + migUUID("bbbb0000") + ", 9/0), "},
		{"an older name of no instance", []string{"MIG-" + uuid("fef8aaaa") + "/9/1"}, false, nil, "this host has 0:4 ("},
		{"an older name of no GPU", []string{"MIG-" + uuid("00000000") + "/9/0"}, false, nil, "unknown MIG device"},
		{"a path", []string{"MIG-" + uuid("fef8aaaa") + "/9/../9/0"}, true, nil, "unknown MIG device"},
		{"a sign", []string{"MIG-" + uuid("fef8aaaa") + "/+9/0"}, false, nil, "unknown MIG device"},
		{"other digits", []string{"0:٠"}, false, nil, "unknown GPU"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := inv.NeedsFacts(tt.ids, Facts{}); got != tt.asks {
				t.Errorf("needs facts: %v", got)
			}
			set, err := inv.Select(tt.ids, migFacts())
			if tt.error != "" {
				if err == nil || !strings.Contains(err.Error(), tt.error) || strings.ContainsAny(err.Error(), "\n") {
					t.Errorf("got %v, %v", shown(set), err)
				}
				return
			}
			again, err2 := inv.Select(set.Names(), migFacts())
			if err != nil || err2 != nil || !slices.Equal(shown(set), tt.want) || !slices.Equal(shown(again), tt.want) {
				t.Errorf("got %q, %v; by its names %q, %v; want %q", shown(set), err, shown(again), err2, tt.want)
			}
		})
	}
}

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
		{"a word in capitals", "ALL", append([]string{`unknown GPU "ALL" (the word is "all")`}, known...)},
		{"a range", "0-3", []string{`unknown GPU "0-3" (there are no ranges: name each, as 0,1,2): `}},
		{"a MIG profile", "1g.10gb", []string{`unknown GPU "1g.10gb" (a MIG device has no name by its profile: use its UUID`}},
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
			testtree.Says(t, err, tt.want...)
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
