package sim

import (
	"fmt"
	"os"
	"path/filepath"
)

// writeSys writes what the shim and its tools read of sysfs: the GPUs among the
// PCI devices with their DRM nodes, and the loaded module.
func (d *Driver) writeSys() error {
	files := map[string]string{
		"module/nvidia/version":   d.KernelVersion + "\n",
		"module/nvidia/initstate": "live\n",
		// Loaded by udev where nvidia-drm is, and its node is there.
		"module/nvidia_modeset/initstate": "live\n",
		// The display of the management controller: a VGA device of another vendor.
		"bus/pci/devices/0000:02:00.0/vendor": "0x1a03\n",
		"bus/pci/devices/0000:02:00.0/device": "0x2000\n",
		"bus/pci/devices/0000:02:00.0/class":  "0x030000\n",
	}
	// Firmware outside /lib/firmware: the kernel is told where it is.
	if p := layouts[d.Layout].firmwareParameter; p != "" {
		files["module/firmware_class/parameters/path"] = p + "\n"
	}
	dirs := []string{"bus/pci/devices/0000:02:00.0/drm/card0"}
	for _, g := range d.GPUs {
		dir := "bus/pci/devices/" + g.BusID + "/"
		for name, content := range map[string]string{
			"vendor": "0x10de", "device": "0x2335", "class": "0x030200",
			"subsystem_vendor": "0x10de", "subsystem_device": "0x18be", "numa_node": "-1",
		} {
			files[dir+name] = content + "\n"
		}
		if d.Layout.hasDRM() {
			dirs = append(dirs, fmt.Sprintf("%sdrm/card%d", dir, cardNumber(g)), fmt.Sprintf("%sdrm/renderD%d", dir, renderNumber(g)))
		}
	}
	for name, content := range files {
		if err := writeFile(filepath.Join(d.SysRoot, name), content, 0o444); err != nil {
			return err
		}
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(filepath.Join(d.SysRoot, dir), 0o755); err != nil {
			return err
		}
	}
	return nil
}
