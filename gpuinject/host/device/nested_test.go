package device

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// nested is migHost as a container sees it whose procfs shows everything, and which was given the
// GPUs with these minor numbers and these capability nodes.
func nested(t *testing.T, gpus, caps []int) Inventory {
	t.Helper()
	h := migHost(t)
	for dir, keep := range map[string][]int{"dev/nvidia": gpus, "dev/nvidia-caps/nvidia-cap": caps} {
		nodes, err := filepath.Glob(filepath.Join(h.Dir, dir) + "[0-9]*")
		h.Check(err)
		for _, node := range nodes {
			n, err := strconv.Atoi(strings.TrimPrefix(node, filepath.Join(h.Dir, dir)))
			h.Check(err)
			if !slices.Contains(keep, n) {
				h.Check(os.Remove(node))
			}
		}
	}
	return h.discover().OnlyPresent()
}

func TestAContainerAsAHostHasWhatItWasGiven(t *testing.T) {
	for _, tc := range []struct {
		name       string
		gpus, caps []int
		all        []string // by "all": indices count the GPUs that are here
		withheld   []int    // of each GPU
	}{
		{"everything", []int{0, 2, 3}, []int{354, 355, 363, 364, 365, 417, 418}, []string{"1", "0 9/0", "0 10/0", "0 10/1", "2 1/0"}, []int{0, 0, 0}},
		{"GPUs that are not partitioned", []int{0}, nil, []string{"0"}, []int{0}},
		{"one MIG device", []int{2}, []int{354, 355}, []string{"0 9/0"}, []int{2}},
		{"one of two of a GPU instance", []int{2}, []int{363, 365}, []string{"0 10/1"}, []int{2}},
		{"both of a GPU instance", []int{2}, []int{363, 364, 365}, []string{"0 10/0", "0 10/1"}, []int{1}},
		{"one, and all of another GPU", []int{2, 3}, []int{354, 355, 417, 418}, []string{"0 9/0", "1 1/0"}, []int{2, 0}},
		{"one, beside a GPU that is not partitioned", []int{0, 3}, []int{417, 418}, []string{"0", "1 1/0"}, []int{0, 0}},
		{"a GPU that was partitioned afterwards, or whose MIG device is gone, is not a whole one", []int{2, 0}, nil, []string{"1"}, []int{3, 0}},
		{"the node of a GPU instance gives none of its MIG devices", []int{2}, []int{363}, nil, []int{3}},
		{"that of a compute instance alone does not either", []int{2}, []int{355, 365}, nil, []int{3}},
		{"MIG devices without the node of their GPU", []int{0}, []int{354, 355}, []string{"0"}, []int{0}},
		{"the right to configure MIG gives no device", []int{2}, []int{1}, nil, []int{3}},
		{"nothing", nil, nil, nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inv := nested(t, tc.gpus, tc.caps)
			set, err := inv.Select([]string{"all"}, Facts{})
			if err != nil || !slices.Equal(shown(set), tc.all) {
				t.Errorf("all is %q, %v, want %q", shown(set), err, tc.all)
			}
			if _, err := inv.Nodes(set, nil); err != nil {
				t.Errorf("what is here can be given: %v", err)
			}
			var withheld []int
			for _, gpu := range inv.GPUs {
				withheld = append(withheld, inv.Withheld(gpu))
			}
			if !slices.Equal(withheld, tc.withheld) {
				t.Errorf("withheld %v, want %v", withheld, tc.withheld)
			}
			// Nodes that a pod there was given are no more than that.
			given, err := inv.Given([]Number{{195, 0}, {195, 2}, {195, 3}, {241, 355}, {241, 364}, {241, 365}, {241, 418}})
			if err != nil || !slices.Equal(shown(given), tc.all) {
				t.Errorf("given %q, %v, want %q", shown(given), err, tc.all)
			}
		})
	}
}

// NVML in a container may read procfs, which shows everything.
func TestMIGDevicesThatAContainerWasNotGivenAreUnknownThere(t *testing.T) {
	inv := nested(t, []int{2}, []int{363, 364})
	for _, id := range []string{"MIG-" + uuid("fef8aaaa") + "/10/0", migUUID("aaab0000"), "MIG-aaa"} {
		if set, err := inv.Select([]string{id}, migFacts()); err != nil || !slices.Equal(shown(set), []string{"0 10/0"}) {
			t.Errorf("%s: %q, %v", id, shown(set), err)
		}
	}
	for _, id := range []string{migUUID("aaaa0000"), migUUID("cccc0000"), "0:4", "2:0", "MIG-" + uuid("fef8aaaa") + "/10/1", "MIG-" + uuid("0badcafe") + "/1/0"} {
		_, err := inv.Select([]string{id}, migFacts())
		if err == nil || !strings.Contains(err.Error(), "unknown MIG device") {
			t.Errorf("%s: %v", id, err)
			continue
		}
		_, list, _ := strings.Cut(err.Error(), "this host has")
		for _, secret := range []string{"10/1", "9/0", "bbbb0000-", "aaaa0000-", uuid("0badcafe")} {
			if strings.Contains(list, secret) {
				t.Errorf("%s: the message lists %s: %v", id, secret, err)
			}
		}
	}
}
