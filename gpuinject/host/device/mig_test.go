package device

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/devnode"
)

// instance makes a MIG device of the GPU with that minor number, as the driver shows it, with the
// numbers of the driver's own table for its nodes.
func (h *fakeHost) instance(minor, gi, ci int) {
	h.Helper()
	dir := fmt.Sprintf("proc/driver/nvidia/capabilities/gpu%d/mig/gi%d/", minor, gi)
	for name, node := range map[string]int{"access": giNode(minor, gi), fmt.Sprintf("ci%d/access", ci): giNode(minor, gi) + 1 + ci} {
		h.Write(dir+name, fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", node))
		h.Node(fmt.Sprintf("nvidia-caps/nvidia-cap%d", node), 241, uint32(node), 0o444)
	}
}

func giNode(minor, gi int) int { return 3 + (minor*15+gi)*9 }

func (h *fakeHost) destroy(minor, gi int) {
	os.RemoveAll(filepath.Join(h.cfg.ProcRoot, fmt.Sprintf("driver/nvidia/capabilities/gpu%d/mig/gi%d", minor, gi)))
}

func migUUID(start string) string { return "MIG-" + start + "-1111-2222-3333-444444444444" }

// migHost is nodeHost with MIG devices of index 0 (minor 2) and 2 (minor 3). The table of every
// possible one is there as on each host, and must not count.
func migHost(t testing.TB) *fakeHost {
	h := nodeHost(t)
	h.Write("proc/driver/nvidia-caps/mig-minors", "config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\n")
	h.Write("proc/driver/nvidia/capabilities/mig/config", "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n")
	h.Node("nvidia-caps/nvidia-cap1", 241, 1, 0o400)
	h.Check(os.MkdirAll(h.cfg.ProcRoot+"/driver/nvidia/capabilities/gpu0/mig", 0o755))
	h.instance(2, 9, 0)
	h.instance(2, 10, 0)
	h.instance(2, 10, 1)
	h.instance(3, 1, 0)
	return h
}

// migFacts are NVML's of migHost: its order is another one than procfs'.
func migFacts() Facts {
	return Facts{Driver: "580.159.04", GPUs: []GPUFacts{
		{Index: 0, BusID: "00000000:65:00.0", Instances: []InstanceFacts{
			{Index: 0, UUID: migUUID("aaaa0000"), GI: 10, CI: 1, Name: "1g.18gb"},
			{Index: 1, UUID: migUUID("aaab0000"), GI: 10, CI: 0, Name: "1g.18gb"},
			{Index: 4, UUID: migUUID("bbbb0000"), GI: 9, CI: 0, Name: "1g.18gb+gfx"},
		}},
		{Index: 1, BusID: "0000:C1:00.0"},
		{Index: 2, BusID: "10000:01:00.0", Instances: []InstanceFacts{{Index: 0, UUID: migUUID("cccc0000"), GI: 1, CI: 0}}},
	}}
}

// shown are the members of a set: "1" for a GPU, "0 9/0" for a MIG device.
func shown(s Set) (names []string) {
	for _, g := range s.GPUs {
		names = append(names, fmt.Sprint(g.Index))
	}
	for _, in := range s.MIG {
		names = append(names, fmt.Sprintf("%d %d/%d", in.GPU, in.GI, in.CI))
	}
	return names
}

func TestAMIGDeviceHasNVMLsNamesOnlyByFacts(t *testing.T) {
	inv := migHost(t).discover()
	set, err := inv.Select([]string{"MIG-" + uuid("fef8aaaa") + "/9/0"}, Facts{})
	named := inv.Annotate(set.MIG, migFacts())
	if err != nil || set.MIG[0].Name() != "MIG-"+uuid("fef8aaaa")+"/9/0" || named[0].Name() != migUUID("bbbb0000") || named[0].Profile != "1g.18gb+gfx" {
		t.Errorf("%+v, %+v, %v", set.MIG, named, err)
	}
	if _, err := inv.Select([]string{"0:0"}, Facts{}); !errors.Is(err, ErrFacts) {
		t.Errorf("without facts a MIG device is not unknown: %v", err)
	}
}

// The facts and procfs may have been read at different times.
func TestFactsOfAnotherLayout(t *testing.T) {
	old := migFacts()
	now := migFacts()
	now.GPUs[0].Instances = []InstanceFacts{{Index: 0, UUID: migUUID("eeee0000"), GI: 5, CI: 0}}
	h := migHost(t)
	h.destroy(2, 9)
	h.destroy(2, 10)
	h.instance(2, 5, 0)
	inv := h.discover()
	for _, tt := range []struct {
		name, id string
		facts    Facts
		needs    bool
		want     string // or the error
	}{
		{"a new device that old facts do not have", migUUID("eeee0000"), old, true, "unknown MIG device"},
		{"the same device by new facts", migUUID("eeee0000"), now, false, "0 5/0"},
		{"a device that is gone, by old facts", migUUID("bbbb0000"), old, true, "unknown MIG device"},
		{"a device that is gone, by new facts", migUUID("bbbb0000"), now, true, "unknown MIG device"},
		{"a device of another GPU, by old facts", migUUID("cccc0000"), old, false, "2 1/0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := inv.NeedsFacts([]string{"all", tt.id}, tt.facts); got != tt.needs {
				t.Errorf("needs newer facts: %v", got)
			}
			set, err := inv.Select([]string{tt.id}, tt.facts)
			got := strings.Join(shown(set), ",")
			if err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestGiven(t *testing.T) {
	inv := migHost(t).discover()
	for _, tt := range []struct {
		name    string
		numbers []devnode.Number
		want    []string
	}{
		{"no node gives nothing", nil, nil},
		{"the node of a GPU without MIG gives it", []devnode.Number{{Major: 195, Minor: 255}, {Major: 195, Minor: 0}}, []string{"1"}},
		{"the node of a GPU that has MIG devices gives neither it nor one of them", []devnode.Number{{Major: 195, Minor: 2}}, nil},
		{"with the node of a GPU instance it still does not", []devnode.Number{{Major: 195, Minor: 2}, {Major: 241, Minor: 363}}, nil},
		{"the node of a compute instance gives its MIG device", []devnode.Number{{Major: 195, Minor: 2}, {Major: 241, Minor: 363}, {Major: 241, Minor: 365}}, []string{"0 10/1"}},
		{"without the GPU's node too", []devnode.Number{{Major: 241, Minor: 355}}, []string{"0 9/0"}},
		{"another driver's node of that number gives nothing", []devnode.Number{{Major: 195, Minor: 355}, {Major: 238, Minor: 355}}, nil},
		{"the right to configure MIG gives no device", []devnode.Number{{Major: 241, Minor: 1}, {Major: 241, Minor: 2}}, nil},
		{"several", []devnode.Number{{Major: 195, Minor: 0}, {Major: 195, Minor: 2}, {Major: 195, Minor: 3}, {Major: 241, Minor: 355}, {Major: 241, Minor: 418}}, []string{"1", "0 9/0", "2 1/0"}},
		{"a MIG device that could exist and does not", []devnode.Number{{Major: 195, Minor: 0}, {Major: 241, Minor: 5}}, []string{"1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			set, err := inv.Given(tt.numbers)
			if err != nil || !slices.Equal(shown(set), tt.want) {
				t.Errorf("got %q, %v, want %q", shown(set), err, tt.want)
			}
		})
	}
}

func TestCapabilityFilesThatAreNoInstanceArePassedOver(t *testing.T) {
	h := migHost(t)
	for _, name := range []string{"gi", "gi-1", "other"} {
		h.Write("proc/driver/nvidia/capabilities/gpu0/mig/"+name+"/access", "")
	}
	// One that disappears while it is read.
	h.Check(os.Remove(h.cfg.ProcRoot + "/driver/nvidia/capabilities/gpu2/mig/gi10/ci1/access"))
	if list := h.discover().MIG; len(list) != 3 {
		t.Errorf("got %+v", list)
	}
}

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
			given, err := inv.Given([]devnode.Number{{Major: 195, Minor: 0}, {Major: 195, Minor: 2}, {Major: 195, Minor: 3}, {Major: 241, Minor: 355}, {Major: 241, Minor: 364}, {Major: 241, Minor: 365}, {Major: 241, Minor: 418}})
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

// A partitioned GPU whose MIG devices are not known must not be given as a whole.
func TestAGPUWhoseMIGCannotBeListedIsFaulty(t *testing.T) {
	h := migHost(t)
	h.Check(os.RemoveAll(filepath.Join(h.cfg.ProcRoot, capabilitiesDir, "gpu2/mig")))
	h.Write("proc/"+capabilitiesDir+"/gpu2/mig", "")
	inv := h.discover()
	if len(inv.Faulty) != 1 || inv.Faulty[0].GPU.Minor != 2 || len(inv.GPUs) != 2 || len(inv.MIG) != 1 {
		t.Errorf("faulty: %+v, usable: %+v, MIG: %+v", inv.Faulty, inv.GPUs, inv.MIG)
	}
}
