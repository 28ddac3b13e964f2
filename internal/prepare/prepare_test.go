package prepare

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

// host is a fixture: every root is below one directory, the driver's too.
type host struct{ testtree.Root }

const gpu = "0000:65:00.0"

const devices = "Character devices:\n195 nvidia\n510 nvidia-uvm\n511 nvidia-caps\n512 nvidia-caps-imex-channels\n\nBlock devices:\n"

// newHost has one GPU with minor 0, all modules loaded, and no node.
func newHost(t *testing.T) host {
	t.Helper()
	h := host{testtree.NewRoot(t)}
	h.mkdir("dev")
	h.Write("sys/bus/pci/devices/"+gpu+"/vendor", "0x10de\n")
	h.Write("sys/bus/pci/devices/"+gpu+"/class", "0x030200\n")
	h.Write("sys/bus/pci/devices/0000:00:1f.0/vendor", "0x8086\n")
	h.Write("sys/bus/pci/devices/0000:00:1f.0/class", "0x030000\n")
	h.Write("sys/module/nvidia_modeset/initstate", "live\n")
	h.Write("proc/devices", devices)
	h.Write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Release Build\n")
	h.Write("proc/driver/nvidia/params", "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\nImexChannelCount: 2048\n")
	h.Write("proc/driver/nvidia/gpus/"+gpu+"/information", "Model: \t NVIDIA H200\nDevice Minor: \t 0\n")
	return h
}

func (h host) path(name string) string { return filepath.Join(h.Dir, name) }

func (h host) mkdir(name string) {
	h.Helper()
	h.Check(os.MkdirAll(h.path(name), 0o755))
}

func (h host) options() Options {
	c := config.Default().Host
	c.DriverRoot, c.DevRoot, c.ProcRoot, c.SysRoot = h.path("root"), h.Dir, h.path("proc"), h.path("sys")
	return Options{Host: c}
}

func (h host) run(o Options) *Report {
	h.Helper()
	r, err := Run(h.Context(), o)
	h.Check(err)
	return r
}

// nodes describes everything below dev but char: "nvidia0 195:0 0666 0:0".
func (h host) nodes() []string {
	h.Helper()
	list := []string{}
	err := filepath.Walk(h.path("dev"), func(name string, st os.FileInfo, err error) error {
		if err != nil || st.IsDir() || filepath.Dir(name) == h.path("dev/char") {
			return err
		}
		s, rel := st.Sys().(*syscall.Stat_t), strings.TrimPrefix(name, h.path("dev")+"/")
		kind := fmt.Sprintf("%d:%d", unix.Major(uint64(s.Rdev)), unix.Minor(uint64(s.Rdev)))
		if s.Mode&unix.S_IFMT != unix.S_IFCHR {
			kind = "no device"
		}
		list = append(list, fmt.Sprintf("%s %s %04o %d:%d", rel, kind, s.Mode&0o7777, s.Uid, s.Gid))
		return nil
	})
	h.Check(err)
	return list
}

// usual are the nodes of newHost.
var usual = []string{"nvidia-modeset 195:254 0666 0:0", "nvidia-uvm 510:0 0666 0:0", "nvidia-uvm-tools 510:1 0666 0:0", "nvidia0 195:0 0666 0:0", "nvidiactl 195:255 0666 0:0"}

// states are "nvidia0 made" and the like, for a few words in a test.
func states(r *Report) string {
	var b strings.Builder
	for _, m := range r.Modules {
		fmt.Fprintf(&b, "%s %s\n", m.Name, m.State)
	}
	for _, n := range r.Nodes {
		fmt.Fprintf(&b, "%s %s %s\n", filepath.Base(n.Path), n.State, n.Message)
	}
	return b.String() + strings.Join(r.Notes, "\n")
}

func TestMissingNodesAreMadeAndASecondRunTouchesNothing(t *testing.T) {
	h := newHost(t)
	defer unix.Umask(unix.Umask(0o077))
	dry := h.options()
	dry.DryRun = true
	if r := h.run(dry); !r.Ready || strings.Count(states(r), Made) != 5 || len(h.nodes()) != 0 {
		t.Errorf("a dry run: ready %v, %s%v", r.Ready, states(r), h.nodes())
	}
	r := h.run(h.options())
	if !r.Ready || strings.Count(states(r), Made) != 5 || !slices.Equal(r.PCI, []string{gpu}) {
		t.Errorf("ready %v, GPUs %v\n%s", r.Ready, r.PCI, states(r))
	}
	if got := h.nodes(); !slices.Equal(got, usual) {
		t.Errorf("got %q", got)
	}
	inode := func() uint64 {
		var st unix.Stat_t
		h.Check(unix.Lstat(h.path("dev/nvidia0"), &st))
		return st.Ino
	}
	before := inode()
	o := h.options()
	o.Replace = true
	if r := h.run(o); !r.Ready || strings.Count(states(r), Present) != 8 || inode() != before {
		t.Errorf("a second run:\n%s", states(r))
	}
}

// runc 1.1.5 tells systemd only about devices with a link below /dev/char.
func TestNodesHaveALinkByNumber(t *testing.T) {
	h := newHost(t)
	h.Write("proc/driver/nvidia/capabilities/mig/monitor", "DeviceFileMinor: 2\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
	dry := h.options()
	dry.DryRun = true
	h.run(dry)
	if _, err := os.Lstat(h.path("dev/char")); err == nil {
		t.Error("a dry run made a directory")
	}
	for range 2 { // the second time they exist
		if r := h.run(h.options()); !r.Ready || len(r.Notes) > 0 {
			t.Fatal(states(r))
		}
	}
	for number, want := range map[string]string{"195:0": "../nvidia0", "510:1": "../nvidia-uvm-tools", "511:2": "../nvidia-caps/nvidia-cap2"} {
		if got, err := os.Readlink(h.path("dev/char/" + number)); err != nil || got != want {
			t.Errorf("%s is a link to %q, want %q: %v", number, got, want, err)
		}
	}
}

func TestNodesOfOtherSoftwareGetNoLink(t *testing.T) {
	h := newHost(t)
	h.Write("proc/driver/nvidia/params", "ModifyDeviceFiles: 0\n")
	h.run(h.options())
	if _, err := os.Lstat(h.path("dev/char")); err == nil {
		t.Error("prepare made links to nodes that are not its own")
	}
}

func TestNodesAreAsTheDriversParametersSay(t *testing.T) {
	const caps = "proc/driver/nvidia/capabilities/"
	const nothing = "nothing to do"
	channels := []string{"nvidia-caps-imex-channels/channel0 512:0 0666 0:0", "nvidia-caps-imex-channels/channel2047 512:2047 0666 0:0"}
	for _, c := range []struct {
		name  string
		have  func(h host)
		imex  []int
		want  []string
		ready bool
		says  string
	}{
		{"mode and owner", func(h host) {
			h.Write("proc/driver/nvidia/params", "ModifyDeviceFiles: 1\nDeviceFileUID: 7\nDeviceFileGID: 44\nDeviceFileMode: 432\n")
			os.RemoveAll(h.path("sys/module"))
		}, nil, []string{"nvidia-uvm 510:0 0660 7:44", "nvidia-uvm-tools 510:1 0660 7:44", "nvidia0 195:0 0660 7:44", "nvidiactl 195:255 0660 7:44"}, true, "nvidia_modeset missing"},
		{"nodes are not to be made", func(h host) {
			h.Write("proc/driver/nvidia/params", "ModifyDeviceFiles: 0\n")
			h.Node("nvidiactl", 195, 255, 0o666)
		}, nil, []string{"nvidiactl 195:255 0666 0:0"}, false, "nvidia0 missing"},
		{"MIG, whose nodes have parameters of their own", func(h host) {
			h.Write(caps+"mig/config", "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n")
			h.Write(caps+"gpu0/mig/gi1/access", "DeviceFileMinor: 12\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
			h.Write("proc/driver/nvidia/params", "ModifyDeviceFiles: 1\nDeviceFileMode: 438\n")
		}, nil, append([]string{"nvidia-caps/nvidia-cap1 511:1 0400 0:0", "nvidia-caps/nvidia-cap12 511:12 0444 0:0"}, usual...), true, "nvidia-cap12 made"},
		{"a capability whose file cannot be read", func(h host) {
			h.Write(caps+"mig/config", "DeviceFileMinor: many\n")
			h.Write(caps+"mig/monitor", "DeviceFileMinor: 2\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
		}, nil, append([]string{"nvidia-caps/nvidia-cap2 511:2 0444 0:0"}, usual...), true, "nvidia-cap2 made"},
		{"a capability whose node is not to be made", func(h host) {
			h.Write(caps+"mig/config", "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 0\n")
		}, nil, usual, false, "nvidia-cap1 missing"},
		{"nvidia_uvm is not loaded", func(h host) {
			h.Write("proc/devices", strings.ReplaceAll(devices, "510 nvidia-uvm\n", ""))
		}, nil, []string{"nvidia-modeset 195:254 0666 0:0", "nvidia0 195:0 0666 0:0", "nvidiactl 195:255 0666 0:0"}, false, "nvidia_uvm missing"},
		{"IMEX channels", func(host) {}, []int{0, 2047}, append(channels, usual...), true, "channel2047 made"},
		{"IMEX channels that the driver does not have", func(h host) {
			h.Write("proc/devices", strings.ReplaceAll(devices, "512 nvidia-caps-imex-channels\n", ""))
		}, []int{1}, usual, false, "channel1 missing"},
		{"no NVIDIA device", func(h host) { os.RemoveAll(h.path("sys/bus/pci/devices/" + gpu)) }, nil, []string{}, true, nothing},
		{"no PCI", func(h host) { os.RemoveAll(h.path("sys")) }, nil, []string{}, true, nothing},
		{"an audio function of NVIDIA's", func(h host) { h.Write("sys/bus/pci/devices/"+gpu+"/class", "0x040300\n") }, nil, []string{}, true, nothing},
		{"a GPU that a virtual machine has", func(h host) {
			os.Symlink("../../../../bus/pci/drivers/vfio-pci", h.path("sys/bus/pci/devices/"+gpu+"/driver"))
		}, nil, []string{}, true, nothing},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t)
			c.have(h)
			o := h.options()
			o.Channels = c.imex
			if c.says == nothing {
				os.RemoveAll(h.path("proc/driver"))
				o.LoadModules = true // nothing is executed: there is no modprobe
			}
			r := h.run(o)
			if got := h.nodes(); !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if r.Ready != c.ready || !strings.Contains(states(r), c.says) || o.LoadModules && len(r.Modules)+len(r.Nodes) > 0 {
				t.Errorf("ready %v, no %q in\n%s", r.Ready, c.says, states(r))
			}
			for _, n := range r.Nodes {
				if n.good() == (n.Fix != "") {
					t.Errorf("a state and its fix: %+v", n)
				}
			}
			if info, err := os.Stat(h.path("dev/nvidia-caps")); err == nil && info.Mode().Perm() != 0o755 {
				t.Errorf("the directory of capabilities has mode %v", info.Mode())
			}
		})
	}
}

func TestRunRefuses(t *testing.T) {
	h := newHost(t)
	o := h.options()
	o.Channels = []int{2048}
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "IMEX channel 2048: the driver has 0 to 2047") {
		t.Errorf("error %v", err)
	}
	h.Write("proc/driver/nvidia/version", "nonsense\n")
	if _, err := Run(t.Context(), h.options()); err == nil {
		t.Error("an unreadable driver is no error")
	}
}

func TestWrongNodesAreReplacedOnlyIfToldTo(t *testing.T) {
	for _, c := range []struct {
		name  string
		have  func(h host)
		says  string
		stays bool // it is not replaced even then
	}{
		{"a node of an earlier load of the module", func(h host) { h.Node("nvidia-uvm", 509, 0, 0o666) }, "nvidia-uvm wrong it is 509:0, but driver \"nvidia-uvm\" has 510:0", false},
		{"a node of another minor", func(h host) { h.Node("nvidia0", 195, 3, 0o666) }, "nvidia0 wrong it is 195:3", false},
		{"a link", func(h host) { os.Symlink("../secret", h.path("dev/nvidia0")) }, "nvidia0 wrong it is not a character device", false},
		{"a file", func(h host) { h.Write("dev/nvidiactl", "") }, "nvidiactl wrong it is not a character device", false},
		{"a directory", func(h host) { h.mkdir("dev/nvidia0/x") }, "nvidia0 wrong it is not a character device", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t)
			h.Write("secret", "text")
			c.have(h)
			r := h.run(h.options())
			if r.Ready || !strings.Contains(states(r), c.says) {
				t.Errorf("ready %v, no %q in\n%s", r.Ready, c.says, states(r))
			}
			o := h.options()
			o.Replace, o.DryRun = true, true
			before := h.nodes()
			if r := h.run(o); r.Ready == c.stays || !slices.Equal(h.nodes(), before) {
				t.Errorf("a dry run: ready %v, %q", r.Ready, h.nodes())
			}
			o.DryRun = false
			if r = h.run(o); r.Ready == c.stays {
				t.Errorf("with --replace: ready %v\n%s", r.Ready, states(r))
			}
			if got := h.nodes(); slices.Equal(got, usual) == c.stays {
				t.Errorf("got %q", got)
			}
			if text, err := os.ReadFile(h.path("secret")); err != nil || string(text) != "text" {
				t.Errorf("what the link led to: %q %v", text, err)
			}
		})
	}
}

func TestAnotherModeIsLeftAloneAndReported(t *testing.T) {
	h := newHost(t)
	h.Node("nvidia0", 195, 0, 0o660)
	if r := h.run(h.options()); !r.Ready || !strings.Contains(states(r), "nvidia0 present it has mode 0660") {
		t.Errorf("%s", states(r))
	}
	o := h.options()
	o.Replace = true
	if h.run(o); !slices.Equal(h.nodes(), usual) {
		t.Errorf("with --replace: %q", h.nodes())
	}
}

// A user who can change the directory could have root make a device somewhere else.
func TestADirectoryThatOthersCanChangeGetsNoNode(t *testing.T) {
	for _, c := range []struct {
		name string
		have func(h host)
	}{
		{"dev is a link", func(h host) { os.Remove(h.path("dev")); os.Symlink("elsewhere", h.path("dev")) }},
		{"dev is open to a group", func(h host) { os.Chmod(h.path("dev"), 0o775) }},
		{"dev is another user's", func(h host) { os.Chown(h.path("dev"), 1000, 0) }},
		{"nvidia-caps is a link", func(h host) { os.Symlink("../elsewhere", h.path("dev/nvidia-caps")) }},
		{"nvidia-caps is world-writable", func(h host) { h.mkdir("dev/nvidia-caps"); os.Chmod(h.path("dev/nvidia-caps"), 0o777) }},
		{"there is no dev", func(h host) { os.Remove(h.path("dev")) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t)
			h.mkdir("elsewhere")
			h.Write("proc/driver/nvidia/capabilities/mig/config", "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n")
			c.have(h)
			r := h.run(h.options())
			if r.Ready || !strings.Contains(states(r), "nvidia-cap1 failed") {
				t.Errorf("ready %v\n%s", r.Ready, states(r))
			}
			if made, err := os.ReadDir(h.path("elsewhere")); err != nil || len(made) > 0 {
				t.Errorf("made elsewhere: %v %v", made, err)
			}
		})
	}
}

func TestParseChannels(t *testing.T) {
	for text, want := range map[string][]int{"0": {0}, "0-3": {0, 1, 2, 3}, "7, 0-1,1": {0, 1, 7}} {
		if got, err := ParseChannels(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v %v", text, got, err)
		}
	}
	for _, text := range []string{"", "a", "3-1", "-1", "0,", "99999", "1-2-3", "0x1"} {
		if got, err := ParseChannels(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// FuzzParseChannels holds that a list is of channels' numbers, each once, in order.
func FuzzParseChannels(f *testing.F) {
	for _, text := range []string{"0-3,7", "65535", "7, 0-1,1", "-", "1-2-3", "18446744073709551616"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list, err := ParseChannels(text)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\x1b") {
				t.Errorf("%q", err)
			}
			return
		}
		for i, n := range list {
			if n < 0 || n > 65535 || i > 0 && n <= list[i-1] {
				t.Errorf("%q: %v", text, list)
			}
		}
	})
}

// On these hosts the nodes do not belong to the kernel module, or the host got them as a container.
func TestNodesOfOtherHostsAreNotOursToMake(t *testing.T) {
	for _, tt := range []struct {
		name, note string
		become     func(d *sim.Driver) error
	}{
		{"WSL2", "WSL2", func(d *sim.Driver) error { return d.BecomeWSL(t.Context()) }},
		{"a Tegra", "Tegra", func(d *sim.Driver) error { return d.BecomeTegra(t.Context()) }},
		{"a container", "is a container", func(d *sim.Driver) error {
			lib := filepath.Join(d.Root, d.Layout.LibDir(), "libcuda.so."+d.Version)
			if err := unix.Mount(lib, lib, "", unix.MS_BIND, ""); err != nil {
				return err
			}
			t.Cleanup(func() { unix.Unmount(lib, unix.MNT_DETACH) })
			return os.Remove(fmt.Sprintf("%s/dev/nvidia%d", d.DevRoot, d.GPUs[1].Minor))
		}},
		{"a container with the driver installed inside", "is a container", func(d *sim.Driver) error {
			node := d.DevRoot + "/dev/nvidiactl"
			t.Cleanup(func() { unix.Unmount(node, unix.MNT_DETACH) })
			return unix.Mount(node, node, "", unix.MS_BIND, "")
		}},
		{"a container without CAP_MKNOD", "is a container", func(d *sim.Driver) error {
			testtree.Root{TB: t, Dir: d.ProcRoot}.Write("1/status", "CapBnd:\t00000000000425fb\n")
			return nil
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := sim.New(t, sim.Options{GPUs: 2})
			h := host{testtree.Root{TB: t, Dir: d.DevRoot}}
			h.Check(tt.become(d))
			c, err := config.Load(d.ConfigPath)
			h.Check(err)
			before := h.nodes()
			r := h.run(Options{Host: c.Host, LoadModules: true})
			if !r.Ready || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], tt.note) || !slices.Equal(h.nodes(), before) {
				t.Errorf("%+v, nodes %v, before %v", r, h.nodes(), before)
			}
		})
	}
}
