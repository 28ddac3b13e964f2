package device

import (
	"errors"
	"os"
	"strings"
	"testing"
)

func TestDiscover(t *testing.T) {
	t.Run("the index follows the bus id and not the minor, and leaves excluded GPUs out", func(t *testing.T) {
		inv := fourGPUs(t).discover()
		if inv.DriverVersion != "580.159.04" {
			t.Errorf("version %q", inv.DriverVersion)
		}
		want := []GPU{
			{0, 2, uuid("fef8aaaa"), "0000:65:00.0", "NVIDIA H200"},
			{1, 0, uuid("fef8089b"), "0000:c1:00.0", "NVIDIA H200"},
			{2, 3, uuid("0badcafe"), "10000:01:00.0", "NVIDIA H200"},
		}
		if len(inv.GPUs) != len(want) {
			t.Fatalf("got %+v", inv.GPUs)
		}
		for i := range want {
			if inv.GPUs[i] != want[i] {
				t.Errorf("GPU %d: got %+v, want %+v", i, inv.GPUs[i], want[i])
			}
		}
		if len(inv.Excluded) != 1 || inv.Excluded[0].Index != -1 || inv.Excluded[0].BusID != "0000:81:00.0" {
			t.Errorf("excluded: %+v", inv.Excluded)
		}
	})
	t.Run("bus ids are compared as numbers, whatever order the directory has", func(t *testing.T) {
		h := newHost(t)
		for minor, bus := range []string{"10000:01:00.0", "2000:01:00.0", "0000:0a:00.0", "0000:09:00.0"} {
			h.gpu(bus, minor, uuid("0badcafe"), "No")
		}
		for i, g := range h.discover().GPUs {
			if g.Index != i || g.Minor != 3-i {
				t.Errorf("index %d is %+v", i, g)
			}
		}
	})
	t.Run("a host without the module has no driver, and the message names the file", func(t *testing.T) {
		h := newHost(t)
		os.Remove(h.roots.Proc + "/driver/nvidia/version")
		_, err := Discover(h.roots)
		if !errors.Is(err, ErrNoDriver) || !strings.Contains(err.Error(), h.roots.Proc+"/driver/nvidia/version") {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("a driver without a GPU is an empty inventory", func(t *testing.T) {
		if inv := newHost(t).discover(); len(inv.GPUs) != 0 {
			t.Fatalf("got %+v", inv.GPUs)
		}
	})
	t.Run("names that are no bus id are ignored", func(t *testing.T) {
		h := newHost(t)
		h.write(h.roots.Proc+"/driver/nvidia/gpus/registry/information", "Device Minor: 0\n")
		if inv := h.discover(); len(inv.GPUs) != 0 {
			t.Fatalf("got %+v", inv.GPUs)
		}
	})
	for name, text := range map[string]string{
		"a GPU without a minor is an error":              "Model: x\n",
		"a minor that is no number is an error":          "Device Minor: many\n",
		"a minor that no kernel has is an error":         "Device Minor: 1048576\n",
		"an information file without end is an error":    strings.Repeat("Model: x\n", 10000),
		"a negative minor is an error and not a default": "Device Minor: -1\n",
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.write(h.roots.Proc+"/driver/nvidia/gpus/0000:65:00.0/information", text)
			if _, err := Discover(h.roots); err == nil || !strings.Contains(err.Error(), "0000:65:00.0/information") {
				t.Fatalf("got %v", err)
			}
		})
	}
	t.Run("a version file without a version is an error", func(t *testing.T) {
		h := newHost(t)
		h.write(h.roots.Proc+"/driver/nvidia/version", "NVRM version: ../../etc\n")
		if _, err := Discover(h.roots); err == nil || errors.Is(err, ErrNoDriver) {
			t.Fatalf("got %v", err)
		}
	})
}

func TestParseVersion(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"the open module", openVersion, "580.159.04"},
		{"the proprietary module", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n", "535.104.05"},
		{"the proprietary module on arm", "NVRM version: NVIDIA UNIX aarch64 Kernel Module  570.86.15  Fri Jan 24\n", "570.86.15"},
		{"a version of two groups", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  440.44  Sun Dec  8\n", "440.44"},
		{"only the compiler's version", "GCC version:  gcc version 13.3.0\n", ""},
		{"a path in place of a version", "NVRM version: NVIDIA ../1.2.3/x\n", ""},
		{"an empty file", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, _ := parseVersion([]byte(tt.text)); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestParseInformation(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       information
	}{
		{"blanks and tabs around the value", "GPU UUID: \t " + uuid("0badcafe") + " \nDevice Minor:\t\t7\n", information{uuid: uuid("0badcafe"), minor: 7}},
		{"a GPU that was never initialised", "GPU UUID: \t GPU-????????-????-????-????-????????????\nDevice Minor: 0\n", information{}},
		{"a driver that says blacklisted", "Device Minor: 0\nBlacklisted:\t Yes\n", information{excluded: true}},
		{"a driver that says GPU Excluded", "Device Minor: 0\nGPU Excluded:\t Yes\n", information{excluded: true}},
		{"a model with a colon", "Model: \t A: B\nDevice Minor: 1", information{model: "A: B", minor: 1}},
		{"no minor", "Model: X\n", information{model: "X", minor: -1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseInformation([]byte(tt.text))
			if err != nil || got != tt.want {
				t.Errorf("got %+v, %v; want %+v", got, err, tt.want)
			}
		})
	}
}

// FuzzInformation holds what the rest of the package relies on: a minor fits a
// device number, and a UUID is empty or 40 harmless characters.
func FuzzInformation(f *testing.F) {
	f.Add([]byte("Model: \t NVIDIA H200\nGPU UUID: \t " + uuid("fef8089b") + "\nDevice Minor: \t 0\nGPU Excluded:\t No\n"))
	f.Add([]byte("GPU UUID: GPU-????????-????-????-????-????????????\nDevice Minor: 99999999999999999999\n"))
	f.Add([]byte(openVersion))
	f.Add([]byte(charDevices))
	f.Fuzz(func(t *testing.T, data []byte) {
		info, err := parseInformation(data)
		if err == nil && (info.minor < -1 || info.minor >= 1<<20) {
			t.Errorf("minor %d", info.minor)
		}
		if info.uuid != "" && !isUUID(info.uuid) {
			t.Errorf("UUID %q", info.uuid)
		}
		if v, ok := parseVersion(data); ok && (v == "" || strings.Trim(v, "0123456789.") != "") {
			t.Errorf("version %q", v)
		}
		for name, major := range parseMajors(data) {
			if name == "" || major >= 1<<12 {
				t.Errorf("major %q %d", name, major)
			}
		}
	})
}

func eightGPUs(b *testing.B) *fakeHost {
	h := newHost(b)
	for i, bus := range []string{"19", "3b", "4c", "5d", "9b", "bb", "cb", "db"} {
		h.gpu("0000:"+bus+":00.0", i, uuid(strings.Repeat(bus, 4)), "No")
	}
	return h
}

func BenchmarkDiscoverEightGPUs(b *testing.B) {
	h := eightGPUs(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Discover(h.roots); err != nil {
			b.Fatal(err)
		}
	}
}

func TestAnInventoryIsUnchangedWhileTheSameDriverShowsTheSameGPUs(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(h *fakeHost)
		want   bool
	}{
		{"nothing", func(*fakeHost) {}, true},
		{"a name that is no bus id", func(h *fakeHost) { h.write(h.roots.Proc+"/driver/nvidia/gpus/registry/information", "") }, true},
		{"another version", func(h *fakeHost) {
			h.write(h.roots.Proc+"/driver/nvidia/version", strings.Replace(openVersion, "580.159.04", "580.159.05", 1))
		}, false},
		{"the module is gone", func(h *fakeHost) { os.Remove(h.roots.Proc + "/driver/nvidia/version") }, false},
		{"one GPU more", func(h *fakeHost) { h.gpu("0000:c2:00.0", 7, uuid("00000000"), "No") }, false},
		{"one GPU less", func(h *fakeHost) { os.RemoveAll(h.roots.Proc + "/driver/nvidia/gpus/0000:c1:00.0") }, false},
		{"an excluded GPU less", func(h *fakeHost) { os.RemoveAll(h.roots.Proc + "/driver/nvidia/gpus/0000:81:00.0") }, false},
		{"one GPU in the place of another", func(h *fakeHost) {
			os.RemoveAll(h.roots.Proc + "/driver/nvidia/gpus/0000:c1:00.0")
			h.gpu("0000:c2:00.0", 0, uuid("fef8089b"), "No")
		}, false},
		{"no GPU", func(h *fakeHost) { os.RemoveAll(h.roots.Proc + "/driver/nvidia/gpus") }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := fourGPUs(t)
			inv := h.discover()
			tc.change(h)
			if got := inv.Unchanged(); got != tc.want {
				t.Errorf("unchanged: %v, want %v", got, tc.want)
			}
		})
	}
}

func TestAGPUIsConfirmedWhileTheDriverSaysTheSameOfIt(t *testing.T) {
	const bus = "0000:c1:00.0"
	for _, tc := range []struct {
		name   string
		change func(h *fakeHost)
		want   string // in the error
	}{
		{"nothing", func(*fakeHost) {}, ""},
		{"another GPU's UUID", func(h *fakeHost) { h.gpu("0000:65:00.0", 2, uuid("00000000"), "No") }, ""},
		{"another UUID", func(h *fakeHost) { h.gpu(bus, 0, uuid("00000000"), "No") }, bus},
		{"a UUID that is not known any more", func(h *fakeHost) { h.gpu(bus, 0, "GPU-????????-????-????-????-????????????", "No") }, bus},
		{"another minor", func(h *fakeHost) { h.gpu(bus, 1, uuid("fef8089b"), "No") }, bus},
		{"excluded", func(h *fakeHost) { h.gpu(bus, 0, uuid("fef8089b"), "Yes") }, bus},
		{"gone", func(h *fakeHost) { os.RemoveAll(h.roots.Proc + "/driver/nvidia/gpus/" + bus) }, bus},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := fourGPUs(t)
			inv := h.discover()
			tc.change(h)
			_, err := inv.Confirm(inv.GPUs[1:2], nil)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
	t.Run("a UUID that is known now", func(t *testing.T) {
		h := newHost(t)
		h.gpu(bus, 0, "GPU-????????-????-????-????-????????????", "No")
		inv := h.discover()
		h.gpu(bus, 0, uuid("fef8089b"), "No")
		if _, err := inv.Confirm(inv.GPUs, nil); err != nil {
			t.Error(err)
		}
	})
}
