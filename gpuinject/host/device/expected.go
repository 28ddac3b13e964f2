package device

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Expected is a node that this host should have, whether it is there or not. Mode and
// owner are what the driver wants for it.
type Expected struct {
	Node
	// Driver has the node's major in <proc>/devices; Loaded says that it is listed, and
	// that Major therefore means something.
	Driver string
	Loaded bool
	// Managed is false where the driver says that nodes are not to be made or changed
	// (ModifyDeviceFiles, DeviceFileModify): somebody else's rules make them.
	Managed bool
}

// params is what is used of <proc>/driver/nvidia/params.
type params struct {
	modify   bool
	uid, gid uint32
	mode     os.FileMode
	// channels bounds the numbers of IMEX channels.
	channels int
}

// maxChannels is the driver's own default (NVreg_ImexChannelCount).
const maxChannels = 2048

// readParams reads the driver's parameters. What is not there has the values that
// nvidia-modprobe takes (init_device_file_parameters).
func readParams(proc string) (params, error) {
	p := params{modify: true, mode: 0o666, channels: maxChannels}
	file := filepath.Join(proc, "driver/nvidia/params")
	values, err := readNumbers(file)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return p, fmt.Errorf("read driver parameters: %w", err)
	}
	set := func(key string, apply func(uint32)) {
		if v, ok := values[key]; ok {
			apply(v)
		}
	}
	set("ModifyDeviceFiles", func(v uint32) { p.modify = v != 0 })
	set("DeviceFileUID", func(v uint32) { p.uid = v })
	set("DeviceFileGID", func(v uint32) { p.gid = v })
	set("DeviceFileMode", func(v uint32) { p.mode = os.FileMode(v & 0o777) })
	set("ImexChannelCount", func(v uint32) { p.channels = int(min(v, 1<<20)) })
	return p, nil
}

// readNumbers reads the lines "Key: 123" of a file of the driver's procfs.
func readNumbers(file string) (map[string]uint32, error) {
	data, err := readBounded(file)
	if err != nil {
		return nil, err
	}
	values := map[string]uint32{}
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(line, ":")
		if n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 32); err == nil {
			values[strings.TrimSpace(key)] = uint32(n)
		}
	}
	return values, nil
}

// Expected lists the nodes that the loaded modules have devices for: nvidiactl, one for
// each GPU, nvidia-uvm and nvidia-uvm-tools, nvidia-modeset where that module is loaded,
// the capability nodes of MIG and of its instances that exist, and the IMEX channels
// asked for. DRM nodes are not among them: the kernel makes those.
func (inv *Inventory) Expected(channels []int) ([]Expected, error) {
	majors, err := readMajors(filepath.Join(inv.Roots.Proc, "devices"))
	if err != nil {
		return nil, err
	}
	p, err := readParams(inv.Roots.Proc)
	if err != nil {
		return nil, err
	}
	var list []Expected
	add := func(name, driver string, minor uint32, mode os.FileMode, managed bool) {
		major, loaded := majors[driver]
		list = append(list, Expected{
			Node: Node{
				Path: "/dev/" + name, HostPath: filepath.Join(inv.Roots.Dev, "dev", name),
				Major: major, Minor: minor, Mode: mode, UID: p.uid, GID: p.gid,
			},
			Driver: driver, Loaded: loaded, Managed: managed,
		})
	}
	for _, w := range inv.wanted(Set{GPUs: inv.GPUs}, []string{"compute"}, majors) {
		add(w.name, w.driver, w.minor, p.mode, p.modify)
	}
	if inv.modeset(majors) {
		// 195 like the GPUs', whatever the module is called in /proc/devices.
		add("nvidia-modeset", list[0].Driver, minorModeset, p.mode, p.modify)
	}
	caps, err := inv.capabilityNodes()
	if err != nil {
		return nil, err
	}
	for _, c := range caps {
		add("nvidia-caps/nvidia-cap"+strconv.FormatUint(uint64(c.minor), 10), "nvidia-caps", c.minor, c.mode, p.modify && c.modify)
		// These belong to root whatever the parameters say (nvidia_cap_mknod).
		list[len(list)-1].UID, list[len(list)-1].GID = 0, 0
	}
	for _, n := range channels {
		if n < 0 || n >= p.channels {
			return nil, fmt.Errorf("IMEX channel %d: the driver has 0 to %d", n, p.channels-1)
		}
		add("nvidia-caps-imex-channels/channel"+strconv.Itoa(n), "nvidia-caps-imex-channels", uint32(n), p.mode, p.modify)
	}
	return list, nil
}

// modeset tells whether nvidia-modeset is loaded. Drivers from 550.40 on list it in
// <proc>/devices; the module's directory in sysfs is there with every one.
func (inv *Inventory) modeset(majors map[string]uint32) bool {
	if _, ok := majors["nvidia-modeset"]; ok {
		return true
	}
	_, err := os.Stat(filepath.Join(inv.Roots.Sys, "module/nvidia_modeset"))
	return err == nil
}

// capabilityNode is what a capability file says of its node.
type capabilityNode struct {
	minor  uint32
	mode   os.FileMode
	modify bool
}

// capabilityNodes are those of MIG as a whole, where the driver knows MIG, and of the
// instances that exist. A GPU instance without a compute instance has one as well: it
// takes it to make the first.
func (inv *Inventory) capabilityNodes() ([]capabilityNode, error) {
	top := filepath.Join(inv.Roots.Proc, capabilitiesDir)
	var files []string
	for _, name := range []string{"config", "monitor"} {
		file := filepath.Join(top, "mig", name)
		if _, err := os.Lstat(file); err == nil {
			files = append(files, file)
		}
	}
	for _, gpu := range inv.GPUs {
		mig := filepath.Join(top, "gpu"+strconv.Itoa(gpu.Minor), "mig")
		gis, err := numbered(mig, "gi")
		if err != nil {
			return nil, fmt.Errorf("list MIG capabilities: %w", err)
		}
		for _, gi := range gis {
			dir := filepath.Join(mig, "gi"+strconv.Itoa(gi))
			files = append(files, filepath.Join(dir, "access"))
			cis, err := numbered(dir, "ci")
			if err != nil {
				return nil, fmt.Errorf("list MIG capabilities: %w", err)
			}
			for _, ci := range cis {
				files = append(files, filepath.Join(dir, "ci"+strconv.Itoa(ci), "access"))
			}
		}
	}
	var list []capabilityNode
	for _, file := range files {
		values, err := readNumbers(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // an instance that was destroyed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("read MIG capability: %w", err)
		}
		minor, ok := values["DeviceFileMinor"]
		if !ok || minor >= 1<<20 { // the kernel's minors have 20 bits
			return nil, fmt.Errorf("read MIG capability: %s has no usable line \"DeviceFileMinor:\"", file)
		}
		c := capabilityNode{minor: minor, mode: 0o400, modify: true}
		if v, ok := values["DeviceFileMode"]; ok {
			c.mode = os.FileMode(v & 0o777)
		}
		if v, ok := values["DeviceFileModify"]; ok {
			c.modify = v != 0
		}
		if !slices.ContainsFunc(list, func(o capabilityNode) bool { return o.minor == c.minor }) {
			list = append(list, c)
		}
	}
	return list, nil
}

// Modules of the driver that have to do with nodes. nvidia_drm is not among them: it
// takes over the console, and loading it is for who sets up the display.
const (
	ModuleNVIDIA  = "nvidia"
	ModuleUVM     = "nvidia_uvm"
	ModuleModeset = "nvidia_modeset"
)

// ModuleLoaded tells whether a module of the driver is loaded and ready.
func (r Roots) ModuleLoaded(name string) bool {
	switch name {
	case ModuleNVIDIA:
		_, err := os.Lstat(filepath.Join(r.Proc, "driver/nvidia/version"))
		return err == nil
	case ModuleUVM:
		majors, err := readMajors(filepath.Join(r.Proc, "devices"))
		_, ok := majors["nvidia-uvm"]
		return err == nil && ok
	}
	_, err := os.Lstat(filepath.Join(r.Sys, "module", path.Base(name)))
	return err == nil
}

// Display are the bus ids of NVIDIA's GPUs among the PCI devices of this host, whether
// a driver is loaded or not: vendor 10de, class 03. Those that vfio-pci holds are a
// virtual machine's and left out.
func (r Roots) Display() ([]string, error) {
	dir := filepath.Join(r.Sys, "bus/pci/devices")
	names, err := readNames(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // no PCI
	}
	if err != nil {
		return nil, fmt.Errorf("list PCI devices: %w", err)
	}
	slices.Sort(names)
	var gpus []string
	for _, name := range names {
		// A device may be unplugged meanwhile.
		vendor, err1 := readBounded(filepath.Join(dir, name, "vendor"))
		class, err2 := readBounded(filepath.Join(dir, name, "class"))
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
