package sim

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// params is what the 580 open module prints with default parameters.
const params = `ResmanDebugLevel: 4294967295
RmLogonRC: 1
ModifyDeviceFiles: 1
DeviceFileUID: 0
DeviceFileGID: 0
DeviceFileMode: 438
InitializeSystemMemoryAllocations: 1
UsePageAttributeTable: 4294967295
EnableMSI: 1
EnablePCIeGen3: 0
MemoryPoolSize: 0
KMallocHeapMaxSize: 0
VMallocHeapMaxSize: 0
IgnoreMMIOCheck: 0
EnableStreamMemOPs: 0
EnableUserNUMAManagement: 1
NvLinkDisable: 0
RmProfilingAdminOnly: 1
PreserveVideoMemoryAllocations: 0
EnableS0ixPowerManagement: 0
S0ixPowerManagementVideoMemoryThreshold: 256
DynamicPowerManagement: 3
DynamicPowerManagementVideoMemoryThreshold: 200
RegisterPCIDriver: 1
EnablePCIERelaxedOrderingMode: 0
EnableResizableBar: 0
EnableGpuFirmware: 18
EnableGpuFirmwareLogs: 2
RmNvlinkBandwidthLinkCount: 0
EnableDbgBreakpoint: 0
OpenRmEnableUnsupportedGpus: 1
DmaRemapPeerMmio: 1
ImexChannelCount: 2048
CreateImexChannel0: 0
GrdmaPciTopoCheckOverride: 0
CoherentGPUMemoryMode: ""
RegistryDwords: ""
RegistryDwordsPerDevice: ""
RmMsg: ""
GpuBlacklist: ""
TemporaryFilePath: ""
ExcludedGpus: "%s"
`

const power = `Runtime D3 status:          Disabled by default
Video Memory:               Active

GPU Hardware Support:
 Video Memory Self Refresh: Not Supported
 Video Memory Off:          Not Supported

Power Limits:
 Default:                   N/A milliwatts
 GPU Boost:                 N/A milliwatts
`

const registry = "Binary: \"\"\n"

// Modes of the capability nodes, printed in decimal by the module.
const (
	configMode = 0o400
	accessMode = 0o444
)

// entry is one file of procfs.
type entry struct {
	name, content string
	mode          fs.FileMode
}

// writeProc writes what the modules of the driver add to /proc.
func (d *Driver) writeProc() error {
	devices, err := d.procDevices()
	if err != nil {
		return err
	}
	entries := []entry{
		{"devices", devices, 0o444},
		{"driver/nvidia/version", d.procVersion(), 0o444},
		{"driver/nvidia/params", fmt.Sprintf(params, d.excludedIDs()), 0o444},
		{"driver/nvidia/registry", registry, 0o644},
		{"driver/nvidia/suspend", "suspend hibernate resume\n", 0o644},
		{"driver/nvidia/suspend_depth", "default modeset uvm\n", 0o644},
		{"driver/nvidia/patches/README", "Patches of the kernel interface files are described here.\n", 0o444},
		{"driver/nvidia/warnings/README", "Warnings about the host system are logged here.\n", 0o444},
		{"driver/nvidia/capabilities/mig/config", capability(1, configMode), 0o444},
		{"driver/nvidia/capabilities/mig/monitor", capability(2, accessMode), 0o444},
		{"driver/nvidia/capabilities/fabric-imex-mgmt", capability(imexMinor, configMode), 0o444},
		{"driver/nvidia-caps/mig-minors", migMinors(), 0o444},
		{"driver/nvidia-caps/nvlink-minors", "fabric-mgmt 0\n", 0o444},
		{"driver/nvidia-caps/sys-minors", fmt.Sprintf("fabric-imex-mgmt %d\n", imexMinor), 0o444},
		{"driver/nvidia-nvlink/capabilities/fabric-mgmt", capability(0, configMode), 0o444},
	}
	for _, g := range d.GPUs {
		dir := "driver/nvidia/gpus/" + g.BusID + "/"
		entries = append(entries,
			entry{dir + "information", d.information(g), 0o444},
			entry{dir + "registry", registry, 0o644},
			entry{dir + "power", power, 0o444})
	}
	for _, m := range d.MIG {
		gi := fmt.Sprintf("driver/nvidia/capabilities/gpu%d/mig/gi%d/", d.GPUs[m.GPU].Minor, m.GI)
		entries = append(entries,
			entry{gi + "access", capability(m.GIMinor, accessMode), 0o444},
			entry{fmt.Sprintf("%sci%d/access", gi, m.CI), capability(m.CIMinor, accessMode), 0o444})
	}
	for _, e := range entries {
		if err := writeFile(filepath.Join(d.ProcRoot, e.name), e.content, e.mode); err != nil {
			return err
		}
	}
	for _, g := range d.GPUs {
		if err := os.MkdirAll(filepath.Join(d.ProcRoot, fmt.Sprintf("driver/nvidia/capabilities/gpu%d/mig", g.Minor)), 0o755); err != nil {
			return err
		}
	}
	for _, dir := range []string{"driver/nvidia-uvm", "driver/nvidia-nvswitch"} {
		if err := os.MkdirAll(filepath.Join(d.ProcRoot, dir), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// procDevices is this host's /proc/devices with the driver's major numbers.
func (d *Driver) procDevices() (string, error) {
	chars, rest, err := hostDevices()
	if err != nil {
		return "", err
	}
	chars = append(chars,
		deviceDriver{d.Majors.GPU, "nvidia"}, deviceDriver{d.Majors.GPU, "nvidiactl"},
		deviceDriver{d.Majors.UVM, "nvidia-uvm"}, deviceDriver{d.Majors.Caps, "nvidia-caps"})
	if d.Layout.hasDRM() {
		chars = append(chars, deviceDriver{d.Majors.DRM, "drm"})
	}
	chars = append(chars, d.otherDrivers()...)
	// No node has it, so it only appears where the number is free.
	if nvlink := uint32(240); !slices.ContainsFunc(chars, func(c deviceDriver) bool { return c.major == nvlink }) {
		chars = append(chars, deviceDriver{nvlink, "nvidia-nvlink"})
	}
	slices.SortStableFunc(chars, func(a, b deviceDriver) int { return int(a.major) - int(b.major) })
	return devicesText(chars, rest), nil
}

// devicesText is /proc/devices with the rest that hostDevices returned.
func devicesText(chars []deviceDriver, rest string) string {
	var b strings.Builder
	b.WriteString("Character devices:\n")
	for _, c := range chars {
		fmt.Fprintf(&b, "%3d %s\n", c.major, c.name)
	}
	return b.String() + "\n" + rest
}

func (d *Driver) procVersion() string {
	return fmt.Sprintf("NVRM version: NVIDIA UNIX Open Kernel Module for %s  %s  Release Build  (simulated)\nGCC version:  gcc version 13.3.0 (simulated)\n", machine, d.KernelVersion)
}

// information keeps the module's separators: colon, space, tab, space, and two
// tabs after the shortest names, no space in the last line.
func (d *Driver) information(g GPU) string {
	excluded := "No"
	if g.Excluded {
		excluded = "Yes"
	}
	return "Model: \t\t " + g.Name + "\n" +
		fmt.Sprintf("IRQ:   \t\t %d\n", 100+g.Index) +
		"GPU UUID: \t " + g.UUID + "\n" +
		"Video BIOS: \t 96.00.e8.00.01\n" +
		"Bus Type: \t PCIe\n" +
		"DMA Size: \t 52 bits\n" +
		"DMA Mask: \t 0xfffffffffffff\n" +
		"Bus Location: \t " + g.BusID + "\n" +
		fmt.Sprintf("Device Minor: \t %d\n", g.Minor) +
		"GPU Firmware: \t " + d.KernelVersion + "\n" +
		"GPU Excluded:\t " + excluded + "\n"
}

func (d *Driver) excludedIDs() string {
	var ids []string
	for _, g := range d.GPUs {
		if g.Excluded {
			ids = append(ids, g.UUID)
		}
	}
	return strings.Join(ids, ",")
}

// imexMinor is the last of the table, behind every MIG instance.
var imexMinor = capMinor(capGPUs, 0, -1)

// capability is what a capability file holds.
func capability(minor, mode int) string {
	return fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: %d\nDeviceFileModify: 1\n", minor, mode)
}

// migMinors lists every capability that the module has a minor number for: 32
// GPUs with 15 GPU instances of 8 compute instances, whatever the host has.
func migMinors() string {
	var b strings.Builder
	b.WriteString("config 1\nmonitor 2\n")
	for gpu := range capGPUs {
		for gi := range gpuInstances {
			fmt.Fprintf(&b, "gpu%d/gi%d/access %d\n", gpu, gi, capMinor(gpu, gi, -1))
			for ci := range computeInstances {
				fmt.Fprintf(&b, "gpu%d/gi%d/ci%d/access %d\n", gpu, gi, ci, capMinor(gpu, gi, ci))
			}
		}
	}
	return b.String()
}
