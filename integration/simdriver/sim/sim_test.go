package sim

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// create makes a simulated driver for a test and removes it afterwards.
func create(t *testing.T, o Options) *Driver {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: device nodes are made with mknod")
	}
	o.Dir = filepath.Join(t.TempDir(), "gpus")
	d, err := Create(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Remove(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func read(t *testing.T, elem ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestProcFilesHaveTheModulesFormat(t *testing.T) {
	d := create(t, Options{GPUs: 3, KernelVersion: "575.57.08", Excluded: []int{2}})
	g := d.GPUs[0]
	if g.Minor != 2 {
		t.Errorf("GPU 0 has minor %d, want 2: an index must not pass for a minor", g.Minor)
	}
	information := "Model: \t\t NVIDIA H200\nIRQ:   \t\t 100\nGPU UUID: \t " + g.UUID + "\nVideo BIOS: \t 96.00.e8.00.01\n" +
		"Bus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\nBus Location: \t 0000:19:00.0\n" +
		"Device Minor: \t 2\nGPU Firmware: \t 575.57.08\nGPU Excluded:\t No\n"
	for name, want := range map[string]string{
		"gpus/0000:19:00.0/information": information,
		"gpus/0000:19:00.0/registry":    "Binary: \"\"\n",
		"registry":                      "Binary: \"\"\n",
		"suspend":                       "suspend hibernate resume\n",
		"suspend_depth":                 "default modeset uvm\n",
		"capabilities/mig/config":       "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n",
		"capabilities/mig/monitor":      "DeviceFileMinor: 2\nDeviceFileMode: 292\nDeviceFileModify: 1\n",
	} {
		if got := read(t, d.ProcRoot, "driver/nvidia", name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for name, line := range map[string]string{
		"driver/nvidia/version":                       `^NVRM version: NVIDIA UNIX Open Kernel Module for ` + machine + `  575\.57\.08  Release Build  \(`,
		"driver/nvidia/params":                        `(?m)^ModifyDeviceFiles: 1$`,
		"driver/nvidia/gpus/0000:4c:00.0/information": `(?m)^GPU Excluded:\t Yes$`,
		"devices":                                    `(?s)^Character devices:\n.*\n195 nvidia\n195 nvidiactl\n.*\n\nBlock devices:\n`,
		"driver/nvidia-caps/mig-minors":              `^config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\n`,
		"driver/nvidia-caps/sys-minors":              `^fabric-imex-mgmt 4323\n$`,
		"../sys/module/nvidia/version":               `^575\.57\.08\n$`,
		"../sys/bus/pci/devices/0000:19:00.0/vendor": `^0x10de\n$`,
		"../sys/bus/pci/devices/0000:19:00.0/class":  `^0x0302`,
	} {
		if got := read(t, d.ProcRoot, name); !regexp.MustCompile(line).MatchString(got) {
			t.Errorf("%s does not match %q:\n%.300s", name, line, got)
		}
	}
	// The numbers that NVIDIA's MIG documentation shows.
	minors := read(t, d.ProcRoot, "driver/nvidia-caps/mig-minors")
	for _, line := range []string{"gpu0/gi1/access 12\n", "gpu0/gi9/access 84\n", "gpu1/gi0/access 138\n", "gpu31/gi14/ci7/access 4322\n"} {
		if !strings.Contains(minors, line) {
			t.Errorf("mig-minors lacks %q", line)
		}
	}
	for _, g := range d.GPUs {
		for _, name := range []string{fmt.Sprintf("proc/driver/nvidia/capabilities/gpu%d/mig", g.Minor), fmt.Sprintf("sys/bus/pci/devices/%s/drm/renderD%d", g.BusID, 128+g.Index)} {
			if st, err := os.Stat(filepath.Join(d.Dir, name)); err != nil || !st.IsDir() {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestDeviceNodesHaveTheirNumbersAndModes(t *testing.T) {
	d := create(t, Options{GPUs: 3, MIG: []MIGDevice{{GPU: 0, GI: 1, CI: 0}}})
	giMinor := capMinor(2, 1, -1)
	for name, want := range map[string]struct {
		major, minor uint32
		mode         uint32
	}{
		"nvidia0": {195, 0, 0o666}, "nvidia1": {195, 1, 0o666}, "nvidia2": {195, 2, 0o666},
		"nvidiactl": {195, 255, 0o666}, "nvidia-modeset": {195, 254, 0o666},
		"nvidia-uvm": {d.Majors.UVM, 0, 0o666}, "nvidia-uvm-tools": {d.Majors.UVM, 1, 0o666},
		"nvidia-caps/nvidia-cap1": {d.Majors.Caps, 1, 0o400}, "nvidia-caps/nvidia-cap2": {d.Majors.Caps, 2, 0o444},
		fmt.Sprintf("nvidia-caps/nvidia-cap%d", giMinor): {d.Majors.Caps, uint32(giMinor), 0o444},
		"dri/card1": {d.Majors.DRM, 1, 0o660}, "dri/renderD130": {d.Majors.DRM, 130, 0o660},
	} {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(d.DevRoot, "dev", name), &st); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if st.Mode != unix.S_IFCHR|want.mode || unix.Major(st.Rdev) != want.major || unix.Minor(st.Rdev) != want.minor {
			t.Errorf("%s: mode %o, %d:%d, want %o, %d:%d", name, st.Mode, unix.Major(st.Rdev), unix.Minor(st.Rdev), want.mode, want.major, want.minor)
		}
	}
}

func TestCreateRefuses(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "precious"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		o    Options
		want string
	}{
		"no directory":             {Options{GPUs: 1}, "no directory"},
		"a directory with files":   {Options{Dir: dir, GPUs: 1}, "is not empty"},
		"no GPU":                   {Options{Dir: dir + "/d"}, "0 GPUs: 1 to 16"},
		"too many GPUs":            {Options{Dir: dir + "/d", GPUs: 17}, "17 GPUs: 1 to 16"},
		"an unknown layout":        {Options{Dir: dir + "/d", GPUs: 1, Layout: "plan9"}, `unknown layout "plan9"`},
		"a version that is a path": {Options{Dir: dir + "/d", GPUs: 1, Version: "../580.1"}, "is not a driver version"},
		"an excluded GPU too many": {Options{Dir: dir + "/d", GPUs: 1, Excluded: []int{1}}, "excluded GPU 1"},
		"a MIG device too many":    {Options{Dir: dir + "/d", GPUs: 1, MIG: []MIGDevice{{GI: 15}}}, "MIG device 0:15:0"},
	} {
		if _, err := Create(t.Context(), c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "precious")); err != nil {
		t.Error(err)
	}
	if _, err := Open(dir); err == nil {
		t.Error("a directory without a simulated driver was opened")
	}
}
