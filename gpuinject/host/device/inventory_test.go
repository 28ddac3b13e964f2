package device

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/devnode"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

func TestDiscover(t *testing.T) {
	t.Run("the index follows the bus id and not the minor, and leaves excluded GPUs out", func(t *testing.T) {
		inv := fourGPUs(t).discover()
		if inv.DriverVersion != "580.159.04" {
			t.Errorf("version %q", inv.DriverVersion)
		}
		want := []GPU{
			{0, 2, uuid("fef8aaaa"), "0000:65:00.0", "NVIDIA H200", ""},
			{1, 0, uuid("fef8089b"), "0000:c1:00.0", "NVIDIA H200", ""},
			{2, 3, uuid("0badcafe"), "10000:01:00.0", "NVIDIA H200", ""},
		}
		if !slices.Equal(inv.GPUs, want) {
			t.Errorf("got %+v, want %+v", inv.GPUs, want)
		}
		if len(inv.Excluded) != 1 || inv.Excluded[0].Index != -1 || inv.Excluded[0].BusID != "0000:81:00.0" {
			t.Errorf("excluded: %+v", inv.Excluded)
		}
	})
	t.Run("a host without the module has no driver, and the message names the file", func(t *testing.T) {
		h := newHost(t)
		os.Remove(h.cfg.ProcRoot + "/driver/nvidia/version")
		_, err := Discover(h.cfg)
		if !errors.Is(err, ErrNoDriver) || !strings.Contains(err.Error(), h.cfg.ProcRoot+"/driver/nvidia/version") {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("a driver without a GPU is an empty inventory, and names that are no bus id are ignored", func(t *testing.T) {
		h := newHost(t)
		h.Write("proc/driver/nvidia/gpus/registry/information", "Device Minor: 0\n")
		if inv := h.discover(); len(inv.GPUs) != 0 {
			t.Fatalf("got %+v", inv.GPUs)
		}
	})
	t.Run("GPUs that cannot be listed are an error and not none", func(t *testing.T) {
		h := newHost(t)
		testtree.Check(t, os.RemoveAll(h.Dir+"/proc/driver/nvidia/gpus"))
		h.Write("proc/driver/nvidia/gpus", "a file")
		_, err := Discover(h.cfg)
		testtree.Says(t, err, h.Dir+"/proc/driver/nvidia/gpus", "list GPUs")
	})
	const (
		version     = "proc/driver/nvidia/version"
		information = "proc/driver/nvidia/gpus/0000:65:00.0/information"
		access      = "proc/driver/nvidia/capabilities/gpu2/mig/gi9/ci0/access"
	)
	for _, tt := range []struct{ name, file, text string }{
		{"a GPU without a minor", information, "Model: x\n"},
		{"a minor that is no number", information, "Device Minor: many\n"},
		{"a minor that no kernel has", information, "Device Minor: 1048576\n"},
		{"nvidiactl's minor", information, "Device Minor: 255\n"},
		{"nvidia-modeset's minor", information, "Device Minor: 254\n"},
		{"an information file without end", information, strings.Repeat("Model: x\n", 10000)},
		{"a negative minor, which is no default", information, "Device Minor: -1\n"},
		{"a capability without a minor", access, "DeviceFileMode: 292\n"},
		{"a capability's minor that is no number", access, "DeviceFileMinor: many\n"},
		{"a capability's minor that no kernel has", access, "DeviceFileMinor: 1048576\n"},
		{"a capability file without end", access, "DeviceFileMinor: 5\n" + strings.Repeat("x: y\n", 100000)},
		{"a capability's negative minor, which is no default", access, "DeviceFileMinor: -1\n"},
	} {
		t.Run("faulty: "+tt.name, func(t *testing.T) {
			h := migHost(t)
			healthy := h.discover()
			h.Write(tt.file, tt.text)
			inv := h.discover()
			faults := inv.Faults()
			if len(faults) != 1 || !strings.Contains(faults[0].Error(), h.Dir+"/"+tt.file) {
				t.Fatalf("faults: %v", faults)
			}
			is := func(gpu GPU) bool { return len(inv.Faulty) == 1 && inv.Faulty[0].GPU.BusID == gpu.BusID }
			if want := slices.DeleteFunc(slices.Clone(healthy.GPUs), is); !slices.Equal(inv.GPUs, want) {
				t.Errorf("usable: %+v, want %+v", inv.GPUs, want)
			}
			for _, gpu := range inv.GPUs {
				if inv.IsWhole(gpu) != healthy.IsWhole(gpu) {
					t.Errorf("GPU %d counts as partitioned: %v", gpu.Index, !inv.IsWhole(gpu))
				}
			}
		})
	}
	t.Run("a version file without a version is an error", func(t *testing.T) {
		h := newHost(t)
		h.Write(version, "NVRM version: ../../etc\n")
		_, err := Discover(h.cfg)
		testtree.Says(t, err, h.Dir+"/"+version)
		if errors.Is(err, ErrNoDriver) {
			t.Errorf("the driver is there: %v", err)
		}
	})
}

// A node that stands for two GPUs, or for two rights, gives neither: a container of the one would
// have the other.
func TestANumberThatTwoDevicesHave(t *testing.T) {
	const (
		information = "proc/driver/nvidia/gpus/0000:c1:00.0/information"
		ci          = "proc/driver/nvidia/capabilities/gpu2/mig/gi10/ci0/access"
		gi          = "proc/driver/nvidia/capabilities/gpu3/mig/gi1/access"
	)
	right := func(minor int) string { return fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 292\n", minor) }
	for _, tt := range []struct {
		name, file, text string
		gpus, mig        []string // that are faulty
	}{
		{"the minor of a partitioned GPU", information, "GPU UUID: " + uuid("fef8089b") + "\nDevice Minor: 2\n", []string{"0000:65:00.0", "0000:c1:00.0"}, nil},
		{"a compute instance with that of another", ci, right(giNode(2, 9) + 1), nil, []string{"2 9/0", "2 10/0"}},
		{"a compute instance with its GPU instance's", ci, right(giNode(2, 10)), nil, []string{"2 10/0", "2 10/1"}},
		{"a GPU instance with another GPU's", gi, right(giNode(2, 9)), nil, []string{"2 9/0", "3 1/0"}},
		{"the right to configure MIG", gi, right(1), nil, []string{"3 1/0"}},
		{"the right to watch MIG", ci, right(2), nil, []string{"2 10/0"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := migHost(t)
			h.Write(tt.file, tt.text)
			inv := h.discover()
			var gpus, mig []string
			for _, f := range inv.Faulty {
				gpus = append(gpus, f.GPU.BusID)
			}
			for _, f := range inv.FaultyMIG {
				mig = append(mig, fmt.Sprintf("%d %d/%d", f.Instance.Minor, f.Instance.GI, f.Instance.CI))
			}
			if !slices.Equal(gpus, tt.gpus) || !slices.Equal(mig, tt.mig) {
				t.Errorf("faulty GPUs %q and MIG devices %q, want %q and %q", gpus, mig, tt.gpus, tt.mig)
			}
			for _, in := range inv.MIG {
				for _, f := range inv.FaultyMIG {
					if in.is(f.Instance) {
						t.Errorf("%s is usable as well", in.Name())
					}
				}
			}
		})
	}
}

// A GPU all of whose MIG devices are faulty is still partitioned, and its node gives neither.
func TestFaultyMIGDevicesDoNotMakeAGPUWhole(t *testing.T) {
	h := migHost(t)
	h.Write("proc/driver/nvidia/capabilities/gpu3/mig/gi1/access", "")
	inv := h.discover()
	if len(inv.FaultyMIG) != 1 || inv.IsWhole(inv.GPUs[2]) {
		t.Fatalf("%+v", inv.FaultyMIG)
	}
	node := []devnode.Number{{Major: 195, Minor: 3}}
	if set, err := inv.Given(node); err != nil || !set.Empty() {
		t.Errorf("its node gives %s, %v", set, err)
	}
	compute := devnode.Number{Major: 241, Minor: int64(giNode(3, 1) + 1)}
	if err := inv.GivenFaulty([]devnode.Number{compute}); err == nil {
		t.Error("the node of its compute instance is not that of a faulty device")
	}
}

func TestGivenFaulty(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		numbers    []devnode.Number
		faulty     bool
	}{
		{"its own node, whose minor is not known", "", []devnode.Number{{Major: 195, Minor: 2}}, true},
		{"the node of another GPU", "", []devnode.Number{{Major: 195, Minor: 0}}, false},
		{"the control nodes", "", []devnode.Number{{Major: 195, Minor: 255}, {Major: 195, Minor: 254}}, false},
		{"a node of another driver", "", []devnode.Number{{Major: 238, Minor: 2}}, false},
		{"no node", "", nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := fourGPUs(t)
			h.Write("proc/driver/nvidia/gpus/0000:65:00.0/information", tt.text)
			if err := h.discover().GivenFaulty(tt.numbers); tt.faulty != (err != nil) {
				t.Errorf("error %v", err)
			}
		})
	}
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
			if got := parseVersion([]byte(tt.text)); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestParseInformation(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       GPU
		excluded   bool
	}{
		{"blanks and tabs around the value", "GPU UUID: \t " + uuid("0badcafe") + " \nDevice Minor:\t\t7\n", GPU{UUID: uuid("0badcafe"), Minor: 7}, false},
		{"a GPU that was never initialised", "GPU UUID: \t GPU-????????-????-????-????-????????????\nDevice Minor: 0\n", GPU{}, false},
		{"a driver that says blacklisted", "Device Minor: 0\nBlacklisted:\t Yes\n", GPU{}, true},
		{"a driver that says GPU Excluded", "Device Minor: 0\nGPU Excluded:\t Yes\n", GPU{}, true},
		{"a model with a colon", "Model: \t A: B\nDevice Minor: 1", GPU{Model: "A: B", Minor: 1}, false},
		{"an excluded GPU without a minor", "Model: X\nGPU Excluded: Yes\n", GPU{Model: "X", Minor: -1}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.want.Index = -1
			got, excluded, err := parseInformation([]byte(tt.text))
			if err != nil || got != tt.want || excluded != tt.excluded {
				t.Errorf("got %+v, %v, %v; want %+v", got, excluded, err, tt.want)
			}
		})
	}
}

// FuzzInformation holds what the rest of the package relies on: a minor fits a device number, and a
// UUID is empty or 40 harmless characters.
func FuzzInformation(f *testing.F) {
	f.Add([]byte("Model: \t NVIDIA H200\nGPU UUID: \t " + uuid("fef8089b") + "\nDevice Minor: \t 0\nGPU Excluded:\t No\n"))
	f.Add([]byte("GPU UUID: GPU-????????-????-????-????-????????????\nDevice Minor: 99999999999999999999\n"))
	f.Add([]byte(openVersion))
	f.Add([]byte(charDevices))
	f.Fuzz(func(t *testing.T, data []byte) {
		gpu, _, err := parseInformation(data)
		if err == nil && (gpu.Minor < -1 || gpu.Minor >= 1<<20) {
			t.Errorf("minor %d", gpu.Minor)
		}
		if gpu.UUID != "" && !isUUID(gpu.UUID) {
			t.Errorf("UUID %q", gpu.UUID)
		}
		if v := parseVersion(data); strings.Trim(v, "0123456789.") != "" {
			t.Errorf("version %q", v)
		}
		for name, numbers := range parseNumbers(data) {
			if name == "" || slices.Max(numbers) >= 1<<20 {
				t.Errorf("numbers %q %d", name, numbers)
			}
		}
	})
}

// FuzzCapability holds that a capability has a minor of the kernel's and no mode but permissions.
func FuzzCapability(f *testing.F) {
	f.Add([]byte("DeviceFileMinor: 3\nDeviceFileMode: 292\nDeviceFileModify: 1\n"))
	f.Add([]byte("DeviceFileMinor: 1048576\nDeviceFileMode: -1"))
	f.Add([]byte("DeviceFileMode: 4294967295\nDeviceFileMinor:\t07\n:"))
	root := f.TempDir()
	file := filepath.Join(root, capabilitiesDir, "mig/config")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := readCapability(config.Host{ProcRoot: root}, "mig/config")
		if err == nil && (c.Minor >= 1<<20 || c.mode&^0o777 != 0 || c.File != "mig/config") {
			t.Errorf("%+v", c)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("%q", err)
		}
	})
}

// FuzzParams holds that what the driver's parameters say is a mode and a number of channels.
func FuzzParams(f *testing.F) {
	f.Add([]byte("ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 44\nDeviceFileMode: 438\nImexChannelCount: 2048\n"))
	f.Add([]byte("DeviceFileMode: 4294967295\nImexChannelCount:\t99999999999\nModifyDeviceFiles: -1\n:"))
	root := f.TempDir()
	file := filepath.Join(root, "driver/nvidia/params")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		e, channels, err := readParams(config.Host{ProcRoot: root})
		if err == nil && (e.Mode&^0o777 != 0 || channels < 0 || channels > 1<<20) {
			t.Errorf("%+v, %d channels", e, channels)
		}
	})
}

func TestBusID(t *testing.T) {
	for text, want := range map[string]string{
		"00000000:65:00.0": "0000:65:00.0",
		"00000000:4C:00.0": "0000:4c:00.0",
		"0000:4C:00.0":     "0000:4c:00.0",
		"00010000:01:00.0": "10000:01:00.0",
		"0000ABCD:01:1F.7": "abcd:01:1f.7",
		"0:4C:00.0":        "0000:4c:00.0",
		"0000:4c:00.0 ":    "", "000000000:4c:00.0": "", "4c:00.0": "", ":4c:00.0": "", "0000:4c:00": "", "": "",
	} {
		if got := BusID(text); got != want {
			t.Errorf("%s is %s, want %s", text, got, want)
		}
	}
}
