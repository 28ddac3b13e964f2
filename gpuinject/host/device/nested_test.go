package device

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// nested is migHost as a container sees it whose procfs shows everything, and which was given the
// GPUs with these minor numbers and these capability nodes.
func nested(t *testing.T, gpus, caps []uint32) Inventory {
	t.Helper()
	h := migHost(t)
	h.Check(os.RemoveAll(h.Dir + "/dev"))
	h.Node("nvidiactl", 195, 255, 0o666)
	for _, n := range gpus {
		h.Node(fmt.Sprintf("nvidia%d", n), 195, n, 0o666)
	}
	for _, n := range caps {
		h.Node(fmt.Sprintf("nvidia-caps/nvidia-cap%d", n), 241, n, 0o444)
	}
	return h.discover().OnlyPresent()
}

func TestAContainerAsAHostHasWhatItWasGiven(t *testing.T) {
	for _, tc := range []struct {
		name       string
		gpus, caps []uint32
		all        []string // by "all": indices count the GPUs that are here
		withheld   []int    // of each GPU
	}{
		{"everything", []uint32{0, 2, 3}, []uint32{354, 355, 363, 364, 365, 417, 418}, []string{"1", "0 9/0", "0 10/0", "0 10/1", "2 1/0"}, []int{0, 0, 0}},
		{"GPUs that are not partitioned", []uint32{0}, nil, []string{"0"}, []int{0}},
		{"one MIG device", []uint32{2}, []uint32{354, 355}, []string{"0 9/0"}, []int{2}},
		{"one of two of a GPU instance", []uint32{2}, []uint32{363, 365}, []string{"0 10/1"}, []int{2}},
		{"both of a GPU instance", []uint32{2}, []uint32{363, 364, 365}, []string{"0 10/0", "0 10/1"}, []int{1}},
		{"one, and all of another GPU", []uint32{2, 3}, []uint32{354, 355, 417, 418}, []string{"0 9/0", "1 1/0"}, []int{2, 0}},
		{"one, beside a GPU that is not partitioned", []uint32{0, 3}, []uint32{417, 418}, []string{"0", "1 1/0"}, []int{0, 0}},
		{"a GPU that was partitioned afterwards, or whose MIG device is gone, is not a whole one", []uint32{2, 0}, nil, []string{"1"}, []int{3, 0}},
		{"the node of a GPU instance gives none of its MIG devices", []uint32{2}, []uint32{363}, nil, []int{3}},
		{"that of a compute instance alone does not either", []uint32{2}, []uint32{355, 365}, nil, []int{3}},
		{"MIG devices without the node of their GPU", []uint32{0}, []uint32{354, 355}, []string{"0"}, []int{0}},
		{"the right to configure MIG gives no device", []uint32{2}, []uint32{1}, nil, []int{3}},
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
	inv := nested(t, []uint32{2}, []uint32{363, 364})
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
