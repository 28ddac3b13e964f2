package sim

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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

// smi runs the simulated nvidia-smi with the devices of d.
func smi(t *testing.T, d *Driver, args ...string) (string, int) {
	t.Helper()
	dir := d.Layout.BinDir()
	if targets := layouts[d.Layout].binTargets; targets != "" {
		dir = targets // the links are for a root of their own
	}
	cmd := exec.Command(filepath.Join(d.Root, dir, "nvidia-smi"), args...)
	cmd.Env = []string{"LD_LIBRARY_PATH=" + filepath.Join(d.Root, d.Layout.LibDir()), "NVIDIA_SIM_DEV=" + filepath.Join(d.DevRoot, "dev")}
	return result(t, cmd)
}

func result(t *testing.T, cmd *exec.Cmd) (string, int) {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

func listing(gpus ...GPU) string {
	var b strings.Builder
	for i, g := range gpus {
		fmt.Fprintf(&b, "GPU %d: NVIDIA H200 (UUID: %s)\n", i, g.UUID)
	}
	return b.String()
}

func TestNvidiaSMIListsTheGPUsThatMayBeOpened(t *testing.T) {
	d := create(t, Options{GPUs: 4, Excluded: []int{3}})
	out, code := smi(t, d, "-L")
	if want := listing(d.GPUs[:3]...); out != want || code != 0 {
		t.Errorf("three GPUs and an excluded one: exit %d\n%swant\n%s", code, out, want)
	}
	out, code = smi(t, d)
	if code != 0 || strings.Count(out, "NVIDIA H200") != 3 || !strings.Contains(out, "CUDA Version: 13.0") {
		t.Errorf("table: exit %d\n%s", code, out)
	}
	remove(t, d, fmt.Sprintf("nvidia%d", d.GPUs[1].Minor))
	out, code = smi(t, d, "-L")
	if want := listing(d.GPUs[0], d.GPUs[2]); out != want || code != 0 {
		t.Errorf("one node less: exit %d\n%swant\n%s", code, out, want)
	}
	out, _ = smi(t, d, "--query-gpu=index,uuid,pci.bus_id,name", "--format=csv,noheader")
	want := fmt.Sprintf("0, %s, 00000000:19:00.0, NVIDIA H200\n1, %s, 00000000:4C:00.0, NVIDIA H200\n", d.GPUs[0].UUID, d.GPUs[2].UUID)
	if out != want {
		t.Errorf("query:\n%swant\n%s", out, want)
	}
	remove(t, d, "nvidia0", "nvidia2")
	if out, code = smi(t, d, "-L"); out != "No devices found.\n" || code != 6 {
		t.Errorf("no GPU: exit %d, %q", code, out)
	}
	remove(t, d, "nvidiactl")
	if out, code = smi(t, d, "-L"); code != 9 || !strings.HasPrefix(out, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.") {
		t.Errorf("no control node: exit %d, %q", code, out)
	}
	cmd := exec.Command(filepath.Join(d.Root, "usr/bin/nvidia-smi"))
	cmd.Env = []string{}
	if out, code = result(t, cmd); code != 12 || !strings.HasPrefix(out, "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.") {
		t.Errorf("no library: exit %d, %q", code, out)
	}
}

func remove(t *testing.T, d *Driver, nodes ...string) {
	t.Helper()
	for _, n := range nodes {
		if err := os.Remove(filepath.Join(d.DevRoot, "dev", n)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNodeWithoutPermissionDoesNotCount(t *testing.T) {
	d := create(t, Options{GPUs: 2})
	// A mount without device nodes refuses with EACCES, as a device cgroup does
	// with EPERM.
	dev := filepath.Join(d.DevRoot, "dev")
	node := filepath.Join(dev, "nvidia0")
	if err := unix.Mount(node, node, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", node, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_NODEV, ""); err != nil {
		t.Fatal(err)
	}
	out, code := smi(t, d, "-L")
	if want := listing(d.GPUs[1]); out != want || code != 0 {
		t.Errorf("exit %d\n%swant\n%s", code, out, want)
	}
}

func TestMIGDevicesAreListedWithTheirParent(t *testing.T) {
	d := create(t, Options{GPUs: 3, MIG: []MIGDevice{{GPU: 1, GI: 7, CI: 0}, {GPU: 1, GI: 8, CI: 0}}})
	want := fmt.Sprintf("GPU 0: NVIDIA H200 (UUID: %s)\nGPU 1: NVIDIA H200 (UUID: %s)\n"+
		"  MIG 1g.18gb     Device  0: (UUID: %s)\n  MIG 1g.18gb     Device  1: (UUID: %s)\nGPU 2: NVIDIA H200 (UUID: %s)\n",
		d.GPUs[0].UUID, d.GPUs[1].UUID, d.MIG[0].UUID, d.MIG[1].UUID, d.GPUs[2].UUID)
	if out, code := smi(t, d, "-L"); out != want || code != 0 {
		t.Errorf("exit %d\n%swant\n%s", code, out, want)
	}
	remove(t, d, fmt.Sprintf("nvidia-caps/nvidia-cap%d", d.MIG[0].CIMinor))
	if out, _ := smi(t, d, "-L"); strings.Contains(out, d.MIG[0].UUID) || !strings.Contains(out, d.MIG[1].UUID) {
		t.Errorf("one capability node less:\n%s", out)
	}
	access := fmt.Sprintf("driver/nvidia/capabilities/gpu%d/mig/gi7/ci0/access", d.GPUs[1].Minor)
	content := fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", d.MIG[0].CIMinor)
	if got := read(t, d.ProcRoot, access); got != content {
		t.Errorf("%s: %q, want %q", access, got, content)
	}
	line := fmt.Sprintf("gpu%d/gi7/ci0/access %d\n", d.GPUs[1].Minor, d.MIG[0].CIMinor)
	if !strings.Contains(read(t, d.ProcRoot, "driver/nvidia-caps/mig-minors"), line) {
		t.Errorf("mig-minors lacks %q", line)
	}
}

func TestMIGDevicesAreReplaced(t *testing.T) {
	d := create(t, Options{GPUs: 2, MIG: []MIGDevice{{GPU: 1, GI: 7, CI: 0}, {GPU: 1, GI: 7, CI: 1}}})
	old := d.MIG
	if err := d.Reconfigure(t.Context(), []MIGDevice{{GPU: 0, GI: 3, CI: 0}, {GPU: 1, GI: 8, CI: 0}}); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("GPU 0: NVIDIA H200 (UUID: %s)\n  MIG 1g.18gb     Device  0: (UUID: %s)\nGPU 1: NVIDIA H200 (UUID: %s)\n  MIG 1g.18gb     Device  0: (UUID: %s)\n",
		d.GPUs[0].UUID, d.MIG[0].UUID, d.GPUs[1].UUID, d.MIG[1].UUID)
	if out, code := smi(t, d, "-L"); out != want || code != 0 {
		t.Errorf("exit %d\n%swant\n%s", code, out, want)
	}
	for _, name := range []string{
		fmt.Sprintf("%s/dev/nvidia-caps/nvidia-cap%d", d.DevRoot, old[0].GIMinor),
		fmt.Sprintf("%s/dev/nvidia-caps/nvidia-cap%d", d.DevRoot, old[1].CIMinor),
		fmt.Sprintf("%s/driver/nvidia/capabilities/gpu%d/mig/gi7", d.ProcRoot, d.GPUs[1].Minor),
	} {
		if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	again, err := Open(d.Dir)
	if err != nil || !slices.Equal(again.MIG, d.MIG) {
		t.Errorf("opened again: %+v, %v", again.MIG, err)
	}
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
