package device

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/devnode"
)

// Expected is a node that this host should have, with the mode and owner that the driver wants.
type Expected struct {
	Node
	// Driver has the node's major in <proc>/devices. Loaded reports whether it is listed there; if
	// not, Major means nothing.
	Driver string
	Loaded bool
	// Managed is false if the driver's parameters forbid making or changing nodes
	// (ModifyDeviceFiles, DeviceFileModify): other software makes them.
	Managed bool
}

// readParams returns what the driver's parameters say about every node, and the number of IMEX
// channels. A missing parameter gets nvidia-modprobe's default (init_device_file_parameters).
func readParams(cfg config.Host) (e Expected, channels int, err error) {
	data, err := ReadFile(filepath.Join(cfg.ProcRoot, "driver/nvidia/params"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return e, 0, fmt.Errorf("read driver parameters: %w", err)
	}
	fields := parseFields(data)
	number := func(key string, missing uint32) uint32 {
		n, err := strconv.ParseUint(fields[key], 10, 32)
		if err != nil {
			return missing
		}
		return uint32(n)
	}
	e.Managed = number("ModifyDeviceFiles", 1) != 0
	e.UID, e.GID = number("DeviceFileUID", 0), number("DeviceFileGID", 0)
	e.Mode = os.FileMode(number("DeviceFileMode", 0o666) & 0o777)
	return e, int(min(number("ImexChannelCount", 2048), 1<<20)), nil
}

// Expected lists the nodes that the loaded modules have devices for: nvidiactl, one for each GPU,
// nvidia-uvm and nvidia-uvm-tools, nvidia-modeset if that module is loaded, the capability nodes of
// MIG and of its instances that exist, and the IMEX channels asked for. DRM nodes are not included:
// the kernel makes those.
func (inv Inventory) Expected(channels []int) ([]Expected, error) {
	majors, err := readMajors(inv.Config)
	if err != nil {
		return nil, err
	}
	every, maxChannels, err := readParams(inv.Config)
	if err != nil {
		return nil, err
	}
	var list []Expected
	add := func(name, driver string, minor uint32) *Expected {
		e := every
		e.Path, e.HostPath = "/dev/"+name, filepath.Join(inv.Config.DevRoot, "dev", name)
		e.Driver, e.Minor = driver, minor
		if have := majors[driver]; len(have) > 0 {
			e.Major, e.Loaded = have[0], true
		}
		list = append(list, e)
		return &list[len(list)-1]
	}
	for _, w := range inv.wanted(Set{GPUs: inv.GPUs}, []string{config.Compute}, majors) {
		add(w.name, w.driver, w.minors[0])
	}
	if len(majors["nvidia-modeset"]) > 0 || ModuleLoaded(inv.Config, ModuleModeset) {
		// 195, like the GPUs' nodes, whatever name the module has in /proc/devices.
		add("nvidia-modeset", gpuDriver(majors), minorModeset)
	}
	caps, err := inv.capabilities()
	if err != nil {
		return nil, err
	}
	for _, c := range caps {
		e := add(c.node(), capsDriver, c.Minor)
		// These belong to root, whatever the parameters say (nvidia_cap_mknod).
		e.Mode, e.UID, e.GID, e.Managed = c.mode, 0, 0, e.Managed && c.modify
	}
	for _, n := range channels {
		if n < 0 || n >= maxChannels {
			return nil, fmt.Errorf("IMEX channel %d: the driver has 0 to %d", n, maxChannels-1)
		}
		add(devnode.IMEXDriver+"/channel"+strconv.Itoa(n), devnode.IMEXDriver, uint32(n))
	}
	return list, nil
}

// capabilities returns those of MIG as a whole, if the driver knows MIG, and of the instances that
// exist, without those whose files cannot be read: only their own nodes are not known.
func (inv Inventory) capabilities() ([]Capability, error) {
	var list []Capability
	for _, name := range []string{"mig/config", "mig/monitor"} {
		if c, err := readCapability(inv.Config, name); err == nil {
			list = append(list, c)
		}
	}
	for _, gpu := range inv.GPUs {
		mig, err := readMIG(inv.Config, gpu)
		if err != nil {
			return nil, err
		}
		list = append(list, mig.rights...)
	}
	return list, nil
}

// The driver's modules that concern nodes. nvidia_drm is not included: it takes over the console,
// so loading it is part of setting up the display.
const (
	ModuleNVIDIA  = "nvidia"
	ModuleUVM     = "nvidia_uvm"
	ModuleModeset = "nvidia_modeset"
)

// ModuleLoaded reports whether a module of the driver is loaded and ready.
func ModuleLoaded(cfg config.Host, name string) bool {
	switch name {
	case ModuleNVIDIA:
		_, err := os.Lstat(filepath.Join(cfg.ProcRoot, "driver/nvidia/version"))
		return err == nil
	case ModuleUVM:
		majors, err := readMajors(cfg)
		return err == nil && len(majors[uvmDriver]) > 0
	}
	// Drivers before 550.40 do not list nvidia-modeset in <proc>/devices.
	_, err := os.Stat(filepath.Join(cfg.SysRoot, "module", path.Base(name)))
	return err == nil
}

// Display returns the bus ids of NVIDIA GPUs among the PCI devices of this host (vendor 10de, class
// 03), whether a driver is loaded or not. GPUs bound to vfio-pci belong to a virtual machine and
// are left out.
func Display(cfg config.Host) ([]string, error) {
	dir := filepath.Join(cfg.SysRoot, "bus/pci/devices")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // no PCI
	}
	if err != nil {
		return nil, fmt.Errorf("list PCI devices: %w", err)
	}
	var gpus []string
	for _, e := range entries {
		name := e.Name()
		// A device may be unplugged meanwhile.
		vendor, err1 := ReadFile(filepath.Join(dir, name, "vendor"))
		class, err2 := ReadFile(filepath.Join(dir, name, "class"))
		if err1 != nil || err2 != nil || strings.TrimSpace(string(vendor)) != "0x10de" || !strings.HasPrefix(string(class), "0x03") {
			continue
		}
		if bound, err := os.Readlink(filepath.Join(dir, name, "driver")); err == nil && path.Base(bound) == "vfio-pci" {
			continue
		}
		gpus = append(gpus, name)
	}
	return gpus, nil
}
