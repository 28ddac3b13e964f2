package sim

import (
	"fmt"
	"path/filepath"
)

// maxIMEX is the number of channels that params says (ImexChannelCount).
const maxIMEX = 2048

// rdmaMinor is what the kernel gave rdma_cm among the misc devices.
const rdmaMinor = 122

// otherNodes are the nodes of Others, with the names, minors and modes that the
// modules and udev give them.
func (d *Driver) otherNodes() []node {
	m, o := d.Majors, d.Others
	var all []node
	for n := range o.IMEX {
		all = append(all, node{fmt.Sprintf("nvidia-caps-imex-channels/channel%d", n), m.IMEX, uint32(n), 0o666, 0})
	}
	if o.GDS {
		all = append(all, node{"nvidia-fs0", m.FS, 0, 0o666, 0}, node{"nvidia-fs1", m.FS, 1, 0o666, 0})
	}
	if o.MOFED {
		all = append(all,
			node{"infiniband/uverbs0", m.Verbs, 192, 0o666, 0}, node{"infiniband/uverbs1", m.Verbs, 193, 0o666, 0},
			node{"infiniband/rdma_cm", m.Misc, rdmaMinor, 0o666, 0})
	}
	if o.GDRCopy {
		all = append(all, node{"gdrdrv", m.GDR, 0, 0o666, 0})
	}
	if o.NVSwitch {
		all = append(all, node{"nvidia-nvswitchctl", m.Switch, 255, 0o666, 0},
			node{"nvidia-nvswitch0", m.Switch, 0, 0o666, 0}, node{"nvidia-nvswitch1", m.Switch, 1, 0o666, 0})
	}
	return all
}

// otherDrivers are the lines of /proc/devices for Others. The driver has majors for
// channels and switches whether there are any or not. The second "misc" stands for
// the kernel's own (10), where an unknown minor would have it look for a module.
func (d *Driver) otherDrivers() []deviceDriver {
	m, o := d.Majors, d.Others
	all := []deviceDriver{{m.IMEX, "nvidia-caps-imex-channels"}, {m.Switch, "nvidia-nvswitch"}}
	if o.GDS {
		all = append(all, deviceDriver{m.FS, "nvidia-fs0"})
	}
	if o.MOFED {
		all = append(all, deviceDriver{m.Verbs, "infiniband_verbs"}, deviceDriver{m.Misc, "misc"})
	}
	if o.GDRCopy {
		all = append(all, deviceDriver{m.GDR, "gdrdrv"})
	}
	return all
}

// writeOthers writes what Others have besides nodes and /proc/devices.
func (d *Driver) writeOthers() error {
	files := map[string]string{}
	if d.Others.MOFED {
		files[filepath.Join(d.ProcRoot, "misc")] = fmt.Sprintf("%3d rdma_cm\n200 tun\n", rdmaMinor)
	}
	if d.Others.GDS {
		for name, content := range map[string]string{"version": "version: 2.27\n", "devcount": "2\n", "bridges": "", "modules": "nvme: 1.0\n"} {
			files[filepath.Join(d.ProcRoot, "driver/nvidia-fs", name)] = content
		}
		files[filepath.Join(d.DevRoot, "run/udev/data/b259:0")] = "S:disk/by-id/nvme-simulated\n"
		files[filepath.Join(d.Root, "etc/cufile.json")] = "{\"properties\": {\"allow_compat_mode\": true}}\n"
	}
	for name, content := range files {
		if err := writeFile(name, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
