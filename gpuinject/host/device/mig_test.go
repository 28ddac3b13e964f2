package device

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// instance makes a MIG device of the GPU with that minor number, as the driver shows
// it, with the numbers of the driver's own table for its nodes.
func (h *fakeHost) instance(minor, gi, ci int) {
	h.t.Helper()
	dir := filepath.Join(h.roots.Proc, fmt.Sprintf("driver/nvidia/capabilities/gpu%d/mig/gi%d", minor, gi))
	for name, node := range map[string]int{"access": giNode(minor, gi), fmt.Sprintf("ci%d/access", ci): giNode(minor, gi) + 1 + ci} {
		h.write(filepath.Join(dir, name), fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", node))
		path := fmt.Sprintf("nvidia-caps/nvidia-cap%d", node)
		if _, err := os.Lstat(filepath.Join(h.roots.Dev, "dev", path)); err != nil {
			h.node(path, 241, uint32(node), 0o444)
		}
	}
}

func giNode(minor, gi int) int { return 3 + (minor*15+gi)*9 }

func (h *fakeHost) destroy(minor, gi int) {
	os.RemoveAll(filepath.Join(h.roots.Proc, fmt.Sprintf("driver/nvidia/capabilities/gpu%d/mig/gi%d", minor, gi)))
}

func migUUID(start string) string { return "MIG-" + start + "-1111-2222-3333-444444444444" }

// migHost is nodeHost with MIG devices of index 0 (minor 2) and 2 (minor 3). The
// table of every possible one is there as on each host, and must not count.
func migHost(t testing.TB) *fakeHost {
	h := nodeHost(t)
	h.write(h.roots.Proc+"/driver/nvidia-caps/mig-minors", "config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\n")
	h.write(h.roots.Proc+"/driver/nvidia/capabilities/mig/config", "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n")
	h.node("nvidia-caps/nvidia-cap1", 241, 1, 0o400)
	if err := os.MkdirAll(h.roots.Proc+"/driver/nvidia/capabilities/gpu0/mig", 0o755); err != nil {
		t.Fatal(err)
	}
	h.instance(2, 9, 0)
	h.instance(2, 10, 0)
	h.instance(2, 10, 1)
	h.instance(3, 1, 0)
	return h
}

// migFacts are NVML's of migHost: its order is another one than procfs'.
func migFacts() *Facts {
	return &Facts{GPUs: []GPUFacts{
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

func TestSelectMIG(t *testing.T) {
	inv := migHost(t).discover()
	for _, tt := range []struct {
		name  string
		ids   []string
		asks  bool
		want  []string
		error string
	}{
		{"all is every MIG device, and GPUs that have none", []string{"all"}, false, []string{"1", "0 9/0", "0 10/0", "0 10/1", "2 1/0"}, ""},
		{"the older name", []string{"MIG-" + uuid("fef8aaaa") + "/10/1"}, false, []string{"0 10/1"}, ""},
		{"the older name in any case, with the beginning of the GPU's UUID", []string{"mig-gpu-FEF8A/9/0"}, false, []string{"0 9/0"}, ""},
		{"a UUID", []string{migUUID("bbbb0000")}, true, []string{"0 9/0"}, ""},
		{"a UUID in capitals", []string{strings.ToUpper(migUUID("bbbb0000"))}, true, []string{"0 9/0"}, ""},
		{"the beginning of one UUID", []string{"MIG-cc"}, true, []string{"2 1/0"}, ""},
		{"an index is NVML's and not the order of procfs", []string{"0:0"}, true, []string{"0 10/1"}, ""},
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
		{"the beginning of two UUIDs", []string{"MIG-aaa"}, true, nil, "is the beginning of 2 UUIDs: 0:0 (" + migUUID("aaaa0000") + ", 10/1), 0:1 ("},
		{"the beginning of every UUID", []string{"MIG-"}, false, nil, "is the beginning of every UUID: this host has MIG-" + uuid("fef8aaaa") + "/9/0, "},
		{"an older name of no instance", []string{"MIG-" + uuid("fef8aaaa") + "/9/1"}, false, nil, "this host has MIG-" + uuid("fef8aaaa") + "/9/0, "},
		{"an older name of no GPU", []string{"MIG-" + uuid("00000000") + "/9/0"}, false, nil, "unknown MIG device"},
		{"a path", []string{"MIG-" + uuid("fef8aaaa") + "/9/../9/0"}, true, nil, "unknown MIG device"},
		{"a sign", []string{"MIG-" + uuid("fef8aaaa") + "/+9/0"}, true, nil, "unknown MIG device"},
		{"other digits", []string{"0:٠"}, false, nil, "unknown GPU"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			asked := false
			set, err := inv.Select(tt.ids, func(bool) (*Facts, bool, error) {
				asked = true
				return migFacts(), true, nil
			})
			if tt.error != "" {
				if err == nil || !strings.Contains(err.Error(), tt.error) || strings.ContainsAny(err.Error(), "\n") {
					t.Errorf("got %v, %v", shown(set), err)
				}
			} else if err != nil || !slices.Equal(shown(set), tt.want) {
				t.Errorf("got %q, %v, want %q", shown(set), err, tt.want)
			}
			if asked != tt.asks {
				t.Errorf("NVML was asked: %v", asked)
			}
		})
	}
}

func TestAMIGDeviceIsNamedByNVMLOnlyWhereNVMLWasAsked(t *testing.T) {
	inv := migHost(t).discover()
	set, err := inv.Select([]string{"MIG-" + uuid("fef8aaaa") + "/9/0"}, nil)
	if err != nil || set.MIG[0].Name() != "MIG-"+uuid("fef8aaaa")+"/9/0" || set.MIG[0].UUID != "" {
		t.Errorf("%+v, %v", set, err)
	}
	inv.Annotate(set, migFacts())
	if in := set.MIG[0]; in.Name() != migUUID("bbbb0000") || in.Index != 4 || in.Profile != "1g.18gb+gfx" {
		t.Errorf("%+v", in)
	}
}

func TestNVMLThatCannotBeAskedIsNoUnknownDevice(t *testing.T) {
	inv := migHost(t).discover()
	cause := errors.New("no library")
	_, err := inv.Select([]string{"0:0"}, func(bool) (*Facts, bool, error) { return nil, false, cause })
	if !errors.Is(err, ErrFacts) || !errors.Is(err, cause) || strings.Contains(err.Error(), uuid("fef8aaaa")) {
		t.Errorf("%v", err)
	}
}

// NVML's answer and what procfs shows can be of different times.
func TestAChangeOfTheLayoutIsNoticed(t *testing.T) {
	old := migFacts()
	now := migFacts()
	now.GPUs[0].Instances = []InstanceFacts{{Index: 0, UUID: migUUID("eeee0000"), GI: 5, CI: 0}}
	for _, tt := range []struct {
		name  string
		id    string
		kept  bool // the first answer is an earlier one
		now   *Facts
		asked int
		want  string // or the error
	}{
		{"a new device that the kept answer does not know", migUUID("eeee0000"), true, now, 2, "0 5/0"},
		{"a device that is gone, by the kept answer", migUUID("bbbb0000"), true, now, 2, "unknown MIG device"},
		{"a device that is gone, by an answer from just before", migUUID("bbbb0000"), false, now, 2, "unknown MIG device"},
		{"an unknown device by a new answer is not asked for again", migUUID("ffff0000"), false, now, 1, "unknown MIG device"},
		{"NVML and procfs never agree", migUUID("bbbb0000"), true, old, 2, "is known to NVML and not to procfs"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := migHost(t)
			inv := h.discover()
			if _, err := inv.Select([]string{"all"}, nil); err != nil { // looked at once before
				t.Fatal(err)
			}
			h.destroy(2, 9)
			h.destroy(2, 10)
			h.instance(2, 5, 0)
			inv.layouts = nil
			asked := 0
			set, err := inv.Select([]string{tt.id}, func(again bool) (*Facts, bool, error) {
				asked++
				if again != (asked > 1) {
					t.Errorf("question %d: again is %v", asked, again)
				}
				if again {
					return tt.now, true, nil
				}
				return old, !tt.kept, nil
			})
			got := strings.Join(shown(set), ",")
			if err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, tt.want) || asked != tt.asked {
				t.Errorf("got %q after %d questions, want %q after %d", got, asked, tt.want, tt.asked)
			}
		})
	}
}

func TestNodesOfMIG(t *testing.T) {
	h := migHost(t)
	inv := h.discover()
	for _, tt := range []struct {
		name, ids string
		caps      []string
		manage    bool
		want      string
	}{
		{"a MIG device is its GPU and two capabilities", "0:4", nil, false, "nvidiactl nvidia2 nvidia-caps/nvidia-cap354 nvidia-caps/nvidia-cap355"},
		{"two of one GPU instance share its capability", "0:0,0:1", nil, false,
			"nvidiactl nvidia2 nvidia-caps/nvidia-cap363 nvidia-caps/nvidia-cap364 nvidia-caps/nvidia-cap365"},
		{"beside a whole GPU", "1,2:0", nil, false, "nvidiactl nvidia0 nvidia3 nvidia-caps/nvidia-cap417 nvidia-caps/nvidia-cap418"},
		{"the right to configure", "1", nil, true, "nvidiactl nvidia0 nvidia-caps/nvidia-cap1"},
		{"a profile for graphics has the DRM nodes", "0:4", []string{"graphics"}, false,
			"nvidiactl nvidia2 nvidia-modeset dri/card1 dri/renderD129 nvidia-caps/nvidia-cap354 nvidia-caps/nvidia-cap355"},
		{"another has none", "0:1", []string{"graphics"}, false, "nvidiactl nvidia2 nvidia-modeset nvidia-caps/nvidia-cap363 nvidia-caps/nvidia-cap364"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			set, err := inv.Select(strings.Split(tt.ids, ","), func(bool) (*Facts, bool, error) { return migFacts(), true, nil })
			if err != nil {
				t.Fatal(err)
			}
			if tt.manage {
				c, err := inv.Management("config")
				if err != nil {
					t.Fatal(err)
				}
				set.Manage = append(set.Manage, c)
			}
			nodes, err := inv.Nodes(set, tt.caps)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, n := range nodes {
				got = append(got, strings.TrimPrefix(n.Path, "/dev/"))
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("got  %s\nwant %s", strings.Join(got, " "), tt.want)
			}
		})
	}
}

func TestNodesOfMIGAreVerified(t *testing.T) {
	node := "nvidia-caps/nvidia-cap355" // compute instance 9/0 of index 0
	for _, tt := range []struct {
		name   string
		change func(h *fakeHost)
		want   string
	}{
		{"missing", func(h *fakeHost) { os.Remove(h.roots.Dev + "/dev/" + node) }, "nvidia-shimctl prepare"},
		{"of another major number", func(h *fakeHost) {
			os.Remove(h.roots.Dev + "/dev/" + node)
			h.node(node, 195, 355, 0o444)
		}, "is 195:355"},
		{"of another minor number", func(h *fakeHost) {
			os.Remove(h.roots.Dev + "/dev/" + node)
			h.node(node, 241, 1, 0o444)
		}, "is 241:1"},
		{"a link", func(h *fakeHost) {
			os.Remove(h.roots.Dev + "/dev/" + node)
			if err := os.Symlink("nvidia-cap1", h.roots.Dev+"/dev/"+node); err != nil {
				h.t.Fatal(err)
			}
		}, "symbolic link"},
		{"of a driver that is not loaded", func(h *fakeHost) {
			h.write(h.roots.Proc+"/devices", strings.ReplaceAll(charDevices, "241 nvidia-caps", ""))
		}, `no driver "nvidia-caps"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := migHost(t)
			inv := h.discover()
			set, err := inv.Select([]string{"MIG-GPU-fef8aaaa/9/0"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			tt.change(h)
			if nodes, err := inv.Nodes(set, nil); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %+v, %v, want %q", nodes, err, tt.want)
			}
		})
	}
}

func TestGiven(t *testing.T) {
	inv := migHost(t).discover()
	for _, tt := range []struct {
		name    string
		numbers []Number
		want    []string
	}{
		{"no node gives nothing", nil, nil},
		{"the node of a GPU without MIG gives it", []Number{{195, 255}, {195, 0}}, []string{"1"}},
		{"the node of a GPU that has MIG devices gives neither it nor one of them", []Number{{195, 2}}, nil},
		{"with the node of a GPU instance it still does not", []Number{{195, 2}, {241, 363}}, nil},
		{"the node of a compute instance gives its MIG device", []Number{{195, 2}, {241, 363}, {241, 365}}, []string{"0 10/1"}},
		{"without the GPU's node too", []Number{{241, 355}}, []string{"0 9/0"}},
		{"another driver's node of that number gives nothing", []Number{{195, 355}, {238, 355}}, nil},
		{"the right to configure MIG gives no device", []Number{{241, 1}, {241, 2}}, nil},
		{"several", []Number{{195, 0}, {195, 2}, {195, 3}, {241, 355}, {241, 418}}, []string{"1", "0 9/0", "2 1/0"}},
		{"a MIG device that could exist and does not", []Number{{195, 0}, {241, 5}}, []string{"1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			set, err := inv.Given(tt.numbers)
			if err != nil || !slices.Equal(shown(set), tt.want) {
				t.Errorf("got %q, %v, want %q", shown(set), err, tt.want)
			}
		})
	}
}

func TestCapabilityFiles(t *testing.T) {
	for name, text := range map[string]string{
		"a file without a minor is an error":          "DeviceFileMode: 292\n",
		"a minor that is no number is an error":       "DeviceFileMinor: many\n",
		"a minor that no kernel has is an error":      "DeviceFileMinor: 1048576\n",
		"a file without end is an error":              "DeviceFileMinor: 5\n" + strings.Repeat("x: y\n", 100000),
		"a negative minor is an error and no default": "DeviceFileMinor: -1\n",
	} {
		t.Run(name, func(t *testing.T) {
			h := migHost(t)
			h.write(h.roots.Proc+"/driver/nvidia/capabilities/gpu2/mig/gi9/ci0/access", text)
			if set, err := h.discover().Select([]string{"all"}, nil); err == nil {
				t.Errorf("got %q", shown(set))
			}
		})
	}
	t.Run("names that are no instance are passed over", func(t *testing.T) {
		h := migHost(t)
		h.write(h.roots.Proc+"/driver/nvidia/capabilities/gpu0/mig/gi/access", "")
		h.write(h.roots.Proc+"/driver/nvidia/capabilities/gpu0/mig/gi-1/access", "")
		h.write(h.roots.Proc+"/driver/nvidia/capabilities/gpu0/mig/other/access", "")
		if set, err := h.discover().Select([]string{"1"}, nil); err != nil || !slices.Equal(shown(set), []string{"1"}) {
			t.Errorf("got %q, %v", shown(set), err)
		}
		if list, err := h.discover().Instances(); err != nil || len(list) != 4 {
			t.Errorf("got %+v, %v", list, err)
		}
	})
	t.Run("an instance that goes while it is read is passed over", func(t *testing.T) {
		h := migHost(t)
		os.Remove(h.roots.Proc + "/driver/nvidia/capabilities/gpu2/mig/gi10/ci1/access")
		if list, err := h.discover().Instances(); err != nil || len(list) != 3 {
			t.Errorf("got %+v, %v", list, err)
		}
	})
}

func TestAnInventoryIsUnchangedWhileItsGPUsAreDividedTheSame(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(h *fakeHost)
		want   bool
	}{
		{"nothing", func(*fakeHost) {}, true},
		{"one GPU instance less", func(h *fakeHost) { h.destroy(2, 9) }, false},
		{"one GPU instance more", func(h *fakeHost) { h.instance(2, 7, 0) }, false},
		{"one in the place of another", func(h *fakeHost) { h.destroy(2, 9); h.instance(2, 8, 0) }, false},
		{"a GPU that was whole", func(h *fakeHost) { h.instance(0, 1, 0) }, false},
		{"a GPU that is whole now", func(h *fakeHost) { h.destroy(3, 1) }, false},
		{"a compute instance less, which Confirm sees where it was granted", func(h *fakeHost) {
			os.RemoveAll(filepath.Join(h.roots.Proc, "driver/nvidia/capabilities/gpu2/mig/gi10/ci1"))
		}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := migHost(t)
			inv := h.discover()
			if _, err := inv.Seen(); err != nil {
				t.Fatal(err)
			}
			tc.change(h)
			if got := inv.Unchanged(); got != tc.want {
				t.Errorf("unchanged: %v, want %v", got, tc.want)
			}
		})
	}
	t.Run("a GPU instance that may have a compute instance by now", func(t *testing.T) {
		h := migHost(t)
		ci := filepath.Join(h.roots.Proc, "driver/nvidia/capabilities/gpu3/mig/gi1/ci0")
		if err := os.RemoveAll(ci); err != nil {
			t.Fatal(err)
		}
		inv := h.discover()
		if _, err := inv.Seen(); err != nil {
			t.Fatal(err)
		}
		if inv.Unchanged() {
			t.Error("a GPU that counted as whole may be divided now")
		}
	})
}

func TestACapabilityIsConfirmedWhileTheDriverSaysTheSameOfIt(t *testing.T) {
	file := func(h *fakeHost) string {
		return filepath.Join(h.roots.Proc, "driver/nvidia/capabilities/gpu2/mig/gi9/ci0/access")
	}
	for _, tc := range []struct {
		name   string
		change func(h *fakeHost)
		want   string // in the error
	}{
		{"nothing", func(*fakeHost) {}, ""},
		{"another line", func(h *fakeHost) {
			h.write(file(h), fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileModify: 0\n", giNode(2, 9)+1))
		}, ""},
		{"another MIG device", func(h *fakeHost) { h.destroy(2, 10) }, ""},
		{"another node", func(h *fakeHost) { h.write(file(h), "DeviceFileMinor: 4\n") }, "gpu2/mig/gi9/ci0/access has changed"},
		{"nonsense", func(h *fakeHost) { h.write(file(h), "DeviceFileMinor: x\n") }, "is not a number"},
		{"its compute instance is gone", func(h *fakeHost) { os.RemoveAll(filepath.Dir(file(h))) }, "gi9/ci0/access: no such file"},
		{"its GPU instance is gone", func(h *fakeHost) { h.destroy(2, 9) }, "gi9/access: no such file"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := migHost(t)
			inv := h.discover()
			in, ok, err := inv.instance(inv.GPUs[0], 9, 0)
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			tc.change(h)
			read, err := inv.Confirm(inv.GPUs[:1], Set{MIG: []Instance{in}}.Capabilities())
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if err != nil {
				return
			}
			for _, name := range []string{file(h), inv.Roots.informationFile(inv.GPUs[0].BusID)} {
				if data, err := os.ReadFile(name); err != nil || string(data) != string(read[name]) {
					t.Errorf("%s: read %q, there is %q (%v)", name, read[name], data, err)
				}
			}
			if len(read) != 3 {
				t.Errorf("%d files were read, want 3", len(read))
			}
		})
	}
}
