package device

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// capabilitiesDir holds a file for each capability that exists now. The other place in procfs,
// nvidia-caps/mig-minors, lists every instance that could exist, even on a host without MIG.
const capabilitiesDir = "driver/nvidia/capabilities"

// Management returns the right to configure the MIG devices of the host, "config", or to monitor
// them all, "monitor".
func (inv Inventory) Management(name string) (Capability, error) {
	c, err := readCapability(inv.Config, "mig/"+name)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("this host has no MIG: %w", err)
	}
	return c, err
}

func readCapability(cfg config.Host, name string) (Capability, error) {
	file := filepath.Join(cfg.ProcRoot, capabilitiesDir, name)
	data, err := ReadFile(file)
	if err != nil {
		return Capability{}, fmt.Errorf("read MIG capability: %w", err)
	}
	fields := parseFields(data)
	minor, err := strconv.ParseUint(fields["DeviceFileMinor"], 10, 20) // the kernel's minors have 20 bits
	if err != nil {
		return Capability{}, fmt.Errorf("read MIG capability: %s has no usable line \"DeviceFileMinor:\"", file)
	}
	c := Capability{File: name, Minor: uint32(minor), mode: 0o400, modify: fields["DeviceFileModify"] != "0"}
	if mode, err := strconv.ParseUint(fields["DeviceFileMode"], 10, 32); err == nil {
		c.mode = os.FileMode(mode & 0o777)
	}
	return c, nil
}

type migDevices struct {
	usable []Instance
	faulty []MIGFault
	// rights are the capabilities of all instances, including those of GPU instances without a
	// compute instance.
	rights []Capability
}

// readMIG reads the MIG devices of a GPU. Instances that are destroyed while it reads are left out.
func readMIG(cfg config.Host, gpu GPU) (migDevices, error) {
	var m migDevices
	mig := fmt.Sprintf("gpu%d/mig", gpu.Minor)
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(cfg.ProcRoot, capabilitiesDir, mig), &st); err == nil && st.Nlink == 2 {
		return m, nil // procfs counts subdirectories: there are none
	}
	gis, err := numbered(filepath.Join(cfg.ProcRoot, capabilitiesDir, mig), "gi")
	if err != nil {
		return m, fmt.Errorf("list MIG devices: %w", err)
	}
	for _, gi := range gis {
		if err := m.readGPUInstance(cfg, gpu, gi, fmt.Sprintf("%s/gi%d", mig, gi)); err != nil {
			return m, err
		}
	}
	return m, nil
}

// readGPUInstance reads the MIG devices in dir, that of a GPU instance.
func (m *migDevices) readGPUInstance(cfg config.Host, gpu GPU, gi int, dir string) error {
	parent, gone, parentErr := readAccess(cfg, dir)
	if gone {
		return nil
	}
	if parentErr == nil {
		m.rights = append(m.rights, parent)
	}
	cis, err := numbered(filepath.Join(cfg.ProcRoot, capabilitiesDir, dir), "ci")
	if err != nil {
		return fmt.Errorf("list MIG devices: %w", err)
	}
	for _, ci := range cis {
		right, gone, err := readAccess(cfg, fmt.Sprintf("%s/ci%d", dir, ci))
		if gone {
			continue
		}
		in := Instance{
			GPU: gpu.Index, Minor: gpu.Minor, Parent: gpu.UUID, GI: gi, CI: ci,
			GIRight: parent, CIRight: right,
		}
		if err == nil {
			m.rights = append(m.rights, right)
		}
		if err := cmp.Or(parentErr, err); err != nil {
			m.faulty = append(m.faulty, MIGFault{in, err.Error()})
		} else {
			m.usable = append(m.usable, in)
		}
	}
	return nil
}

// readAccess reads the right to use the instance of dir. gone is true if the instance does not exist
// any more.
func readAccess(cfg config.Host, dir string) (c Capability, gone bool, err error) {
	c, err = readCapability(cfg, dir+"/access")
	if errors.Is(err, fs.ErrNotExist) {
		_, statErr := os.Lstat(filepath.Join(cfg.ProcRoot, capabilitiesDir, dir))
		gone = errors.Is(statErr, fs.ErrNotExist)
	}
	return c, gone, err
}

// withholdSharedRights makes MIG devices faulty that have the node of a right in common with another
// right: a container with the one would have the other.
func (inv *Inventory) withholdSharedRights() {
	owner := map[uint32]string{1: "mig/config", 2: "mig/monitor"} // as nvidia-caps/mig-minors has them
	shared := map[uint32]bool{}
	for _, in := range inv.MIG {
		for _, c := range in.rights() {
			other, ok := owner[c.Minor]
			shared[c.Minor] = shared[c.Minor] || ok && other != c.File
			owner[c.Minor] = c.File
		}
	}
	for _, in := range slices.Clone(inv.MIG) {
		for _, c := range in.rights() {
			if shared[c.Minor] { // guard: devices: one right for a node
				inv.MIG = slices.DeleteFunc(inv.MIG, in.is)
				inv.FaultyMIG = append(inv.FaultyMIG, MIGFault{in, fmt.Sprintf("read MIG capability: %s: another one has the minor %d as well", filepath.Join(inv.Config.ProcRoot, capabilitiesDir, c.File), c.Minor)})
				break
			}
		}
	}
}

// OnlyPresent returns the inventory without the GPUs that have no node here, and with the MIG
// devices that lack one of their two capability nodes in WithheldMIG. It is for a host that is
// itself a container (kind), where an unmasked procfs shows everything on the machine. A faulty GPU
// without a known node is left out: nothing says that it was given to this host.
func (inv Inventory) OnlyPresent() Inventory {
	here := inv
	here.GPUs, here.MIG, here.WithheldMIG, here.Faulty, here.FaultyMIG = nil, nil, nil, nil, nil
	present := func(g GPU) bool { return inv.hasNode("nvidia" + strconv.Itoa(g.Minor)) }
	for _, f := range inv.Faulty {
		if f.GPU.Minor >= 0 && present(f.GPU) {
			here.Faulty = append(here.Faulty, f)
		}
	}
	for _, g := range inv.GPUs {
		if g.Minor < 0 || present(g) {
			here.GPUs = append(here.GPUs, g)
		}
	}
	before := func(g GPU) int { // how many GPUs are here with a lower index
		n := 0
		for _, x := range here.GPUs {
			if compareBusID(x, g) < 0 {
				n++
			}
		}
		for _, x := range here.Faulty {
			if compareBusID(x.GPU, g) < 0 {
				n++
			}
		}
		return n
	}
	for i, f := range here.Faulty {
		here.Faulty[i].GPU.Index = before(f.GPU)
	}
	for i, g := range here.GPUs {
		here.GPUs[i].Index = before(g)
		for _, in := range inv.InstancesOf(g) {
			in.GPU = here.GPUs[i].Index
			missing := func(c Capability) bool { return !inv.hasNode(c.node()) }
			if slices.ContainsFunc(in.rights(), missing) {
				here.WithheldMIG = append(here.WithheldMIG, in)
			} else {
				here.MIG = append(here.MIG, in)
			}
		}
		for _, f := range inv.faultyMIGOf(g) {
			f.Instance.GPU = here.GPUs[i].Index
			here.FaultyMIG = append(here.FaultyMIG, f)
		}
	}
	return here
}

func (inv Inventory) hasNode(name string) bool {
	_, err := os.Lstat(filepath.Join(inv.Config.DevRoot, "dev", name))
	return err == nil
}

// InstancesOf returns the MIG devices of a GPU.
func (inv Inventory) InstancesOf(gpu GPU) []Instance { return instancesOf(inv.MIG, gpu) }

// Withheld counts the MIG devices of a GPU that were not given to this host, which is a container.
// A GPU with such devices is not available as a whole, even if this host has none of its MIG
// devices: its node was given for a MIG device that is gone, or before the GPU was partitioned.
func (inv Inventory) Withheld(gpu GPU) int { return len(instancesOf(inv.WithheldMIG, gpu)) }

// FaultOf returns why MIG devices of a GPU cannot be used, or "".
func (inv Inventory) FaultOf(gpu GPU) string {
	for _, f := range inv.faultyMIGOf(gpu) {
		return f.Reason
	}
	return ""
}

func (inv Inventory) faultyMIGOf(gpu GPU) []MIGFault {
	return slices.DeleteFunc(slices.Clone(inv.FaultyMIG), func(f MIGFault) bool { return f.Instance.Minor != gpu.Minor })
}

// IsWhole reports whether the GPU is not MIG-partitioned, so that a container can use all of it.
func (inv Inventory) IsWhole(gpu GPU) bool {
	// guard: grant: no whole GPU whose MIG devices are faulty
	return len(inv.InstancesOf(gpu)) == 0 && inv.Withheld(gpu) == 0 && len(inv.faultyMIGOf(gpu)) == 0
}

func instancesOf(list []Instance, gpu GPU) []Instance {
	return slices.DeleteFunc(slices.Clone(list), func(in Instance) bool { return in.Minor != gpu.Minor })
}
