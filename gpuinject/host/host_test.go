package host_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/devnode"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

func TestDiscoverRecognisesThePlatform(t *testing.T) {
	family := func(name string) func(f *fixture) {
		return func(f *fixture) { f.module(); f.Write("sys/devices/soc0/family", name+"\n") }
	}
	for _, tt := range []struct {
		name     string
		build    func(f *fixture)
		platform string
		gpus     int
		compat   string
		driver   string
		err      error
	}{
		{"an ordinary host", func(f *fixture) { f.module(); f.gpu(0, "NVIDIA H200", uuid(1)) }, "", 1, version, "driver " + version, nil},
		{"a host without a driver", func(*fixture) {}, "", 0, "", "", device.ErrNoDriver},
		{"WSL2", func(f *fixture) { f.Node("dxg", 10, 125, 0o660); f.Write("usr/lib/wsl/lib/libdxcore.so", "") },
			"wsl", 1, "", "the driver of Windows, by WSL2 (experimental)", nil},
		{"WSL2's files on a GPU host", func(f *fixture) {
			f.module()
			f.gpu(0, "NVIDIA H200", uuid(1))
			f.Node("dxg", 10, 125, 0o660)
			f.Write("usr/lib/wsl/lib/libdxcore.so", "")
		}, "", 1, version, "driver " + version, nil},
		{"WSL2's node without dxcore", func(f *fixture) { f.Node("dxg", 10, 125, 0o660) }, "", 0, "", "", device.ErrNoDriver},
		{"dxcore without WSL2's node", func(f *fixture) { f.Write("usr/lib/wsl/lib/libdxcore.so", "") }, "", 0, "", "", device.ErrNoDriver},
		{"a Tegra by its release file, without a kernel module for PCI GPUs", func(f *fixture) { f.Write("etc/nv_tegra_release", "# R36\n") },
			"tegra", 1, "", "the driver of a Tegra, by its lists of files (experimental)", nil},
		{"a Tegra by its family, whose display module reports no GPU", family("Tegra"), "tegra", 1, "", "the driver of a Tegra, by its lists of files (experimental)", nil},
		{"a Tegra whose GPU procfs reports by name", func(f *fixture) { family("tegra264")(f); f.gpu(0, "NVIDIA Thor", uuid(1)) },
			"tegra", 1, "", "the driver of a Tegra, by its lists of files (experimental)", nil},
		{"a Tegra with a discrete GPU, which is not supported, is an ordinary host", func(f *fixture) {
			family("tegra264")(f)
			f.gpu(0, "NVIDIA Thor", uuid(1))
			f.gpu(1, "NVIDIA RTX 6000", uuid(2))
		}, "", 2, version, "driver " + version, nil},
		{"another system-on-chip", family("Snapdragon"), "", 0, version, "driver " + version, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			tt.build(f)
			h, err := host.Discover(f.cfg)
			if !errors.Is(err, tt.err) {
				t.Fatal(err)
			}
			if h.Platform != tt.platform || len(h.GPUs) != tt.gpus || h.CompatDriver != tt.compat || err == nil && h.Driver() != tt.driver {
				t.Errorf("platform %q with %d GPUs, driver %q for compatibility, %q", h.Platform, len(h.GPUs), h.CompatDriver, h.Driver())
			}
		})
	}
}

func TestAHostThatIsAContainerHasTheDevicesThatItWasGiven(t *testing.T) {
	for _, tt := range []struct {
		name      string
		mounted   bool   // libcuda is a mount of its own
		remove    string // a node
		gpus, mig int
	}{
		{"a container that was given everything", true, "", 2, 2},
		{"a container without the first GPU", true, "nvidia0", 1, 2},
		{"a container without a MIG device", true, "nvidia-caps/nvidia-cap21", 2, 1},
		{"on another host a missing node is a mistake", false, "nvidia0", 2, 2},
		{"the node of a MIG device too", false, "nvidia-caps/nvidia-cap21", 2, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			f.module()
			f.gpu(0, "NVIDIA H200", uuid(1))
			f.gpu(1, "NVIDIA H200", uuid(2))
			for name, minor := range map[string]uint32{"gi0": 20, "gi0/ci0": 21, "gi1": 30, "gi1/ci0": 31} {
				f.Write("proc/driver/nvidia/capabilities/gpu1/mig/"+name+"/access", fmt.Sprintf("DeviceFileMinor: %d\n", minor))
				f.Node(fmt.Sprintf("nvidia-caps/nvidia-cap%d", minor), 241, minor, 0o660)
			}
			lib := f.Write("opt/lib/libcuda.so."+version, elf64("libcuda.so.1"))
			f.Link("usr/lib64/libcuda.so.1", "/opt/lib/libcuda.so."+version)
			if tt.mounted {
				f.Check(unix.Mount(lib, lib, "", unix.MS_BIND, ""))
				t.Cleanup(func() { _ = unix.Unmount(lib, unix.MNT_DETACH) })
			}
			if tt.remove != "" {
				f.Check(os.Remove(f.Dir + "/dev/" + tt.remove))
			}
			h := f.discover()
			if len(h.GPUs) != tt.gpus || len(h.MIG) != tt.mig || h.GPUs[0].Index != 0 || h.GPUs[tt.gpus-1].UUID != uuid(2) {
				t.Errorf("GPUs %+v, MIG devices %+v", h.GPUs, h.MIG)
			}
			if got := driver.IsContainer(f.cfg, version); got != tt.mounted {
				t.Errorf("is a container: %v", got)
			}
		})
	}
}

// A container whose driver is installed inside: its nodes, its user namespace or its capabilities
// tell, and what cannot be done there is not advised.
func TestAHostThatIsAContainerByOtherSigns(t *testing.T) {
	const allCaps = "Name:\tsystemd\nCapBnd:\t000001ffffffffff\n"
	for _, tt := range []struct {
		name      string
		make      func(f *fixture)
		container bool
	}{
		{"an ordinary host", func(f *fixture) {}, false},
		{"process 1 with all rights", func(f *fixture) {
			f.Write("proc/1/status", allCaps)
			f.Write("proc/1/uid_map", "         0          0 4294967295\n")
		}, false},
		{"a mounted node of a GPU", func(f *fixture) { f.mount("dev/nvidia1") }, true},
		{"a mounted control node", func(f *fixture) { f.mount("dev/nvidiactl") }, true},
		{"a user namespace", func(f *fixture) { f.Write("proc/1/uid_map", "0 100000 65536\n") }, true},
		{"no CAP_MKNOD", func(f *fixture) { f.Write("proc/1/status", "CapBnd:\t000001fff7ffffff\n") }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			f.module()
			f.gpu(0, "NVIDIA H200", uuid(1))
			f.gpu(1, "NVIDIA H200", uuid(2))
			f.Node("nvidiactl", 195, 255, 0o666)
			tt.make(f)
			h := f.discover()
			// /dev/nvidia-uvm was not given to it.
			_, err := h.Nodes(device.Set{GPUs: h.GPUs}, []string{"compute"}, driver.Files{})
			if err == nil || !errors.Is(err, fs.ErrNotExist) || strings.Contains(err.Error(), "prepare") == tt.container || strings.Contains(err.Error(), host.StartAgain) != tt.container {
				t.Errorf("error %v", err)
			}
			if got := host.IsContainer(f.cfg, version); got != tt.container {
				t.Errorf("is a container: %v", got)
			}
			f.Node("nvidia-uvm", 1, 3, 0o666)
			_, err = h.Nodes(device.Set{GPUs: h.GPUs}, []string{"compute"}, driver.Files{})
			testtree.Says(t, err, "nvidia-uvm is 1:3")
			if strings.Contains(err.Error(), "prepare") == tt.container {
				t.Errorf("error %v", err)
			}
			f.Check(os.Remove(f.Dir + "/dev/nvidia0"))
			if h := f.discover(); (len(h.GPUs) == 1) != tt.container {
				t.Errorf("without a GPU's node: GPUs %+v", h.GPUs)
			}
		})
	}
}

// mount makes a file a mount point until the test ends.
func (f *fixture) mount(name string) {
	f.Helper()
	name = f.Dir + "/" + name
	f.Check(unix.Mount(name, name, "", unix.MS_BIND, ""))
	f.Cleanup(func() { _ = unix.Unmount(name, unix.MNT_DETACH) })
}

func TestDriverFilesAreSearchedOnce(t *testing.T) {
	f := newFixture(t)
	f.module()
	f.Write("usr/lib64/libcuda.so."+version, elf64("libcuda.so.1"))
	files := f.files()
	if f.changed(files) {
		t.Error("searched again although nothing changed")
	}
	f.Write("usr/lib64/libnvidia-ml.so."+version, elf64("libnvidia-ml.so.1"))
	if h, found, err := host.Find(f.cfg); err != nil || h.DriverVersion != version || len(found.Libraries) != 2 || found.Key() == files.Key() {
		t.Errorf("found %v, %v", libraries(found), err)
	}
	if !f.changed(files) {
		t.Error("a new library was not found")
	}
}

func TestIsDriverNode(t *testing.T) {
	for name, want := range map[string]bool{
		"/dev/nvidia0": true, "/dev/nvidia-caps/nvidia-cap1": true, "/dev/dxg": true, "/dev/nvhost-gpu": true, "/dev/nvmap": true,
		"/dev/nvgpu/igpu0/as": true, "/dev/../dev/nvidiactl": true, "/dev/null": false, "/x/dev/nvidia0": false, "": false,
	} {
		if got := devnode.IsDriver(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
