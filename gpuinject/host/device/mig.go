package device

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Instance is a MIG device: a compute instance of a GPU instance.
type Instance struct {
	// GPU is the index of the GPU, and Minor the number of its node.
	GPU, Minor int
	// Parent is the GPU's UUID, empty while the driver does not know it.
	Parent string
	// GI and CI are the ids of the GPU instance and of the compute instance in it.
	GI, CI int
	// GINode and CINode are the minor numbers of the capability nodes that give access
	// to the two: /dev/nvidia-caps/nvidia-cap<minor>.
	GINode, CINode uint32

	// UUID, Index and Profile are what NVML calls it: "MIG-…", the number behind the
	// colon of "0:1", "1g.18gb". UUID is empty where NVML was not asked, and then the
	// other two say nothing.
	UUID    string
	Index   int
	Profile string
}

// Name is what a container can ask for: the UUID, or where that is not known the
// older name, MIG-GPU-<uuid>/<gi>/<ci>, which needs no NVML.
func (in Instance) Name() string {
	switch {
	case in.UUID != "":
		return in.UUID
	case in.Parent != "":
		return fmt.Sprintf("MIG-%s/%d/%d", in.Parent, in.GI, in.CI)
	}
	return fmt.Sprintf("%d/%d of GPU %d", in.GI, in.CI, in.GPU)
}

// is tells whether both are the same compute instance, whatever is known of it.
func (in Instance) is(x Instance) bool {
	return in.Minor == x.Minor && in.GI == x.GI && in.CI == x.CI
}

// graphics tells a MIG device that can draw: its profile is "1g.24gb+gfx". Only NVML
// knows, and most cannot.
func (in Instance) graphics() bool { return strings.Contains(in.Profile, "gfx") }

func (in Instance) capabilities() []Capability {
	gi := fmt.Sprintf("gpu%d/mig/gi%d", in.Minor, in.GI)
	return []Capability{{gi + "/access", in.GINode}, {fmt.Sprintf("%s/ci%d/access", gi, in.CI), in.CINode}}
}

// Capability is a right that the driver gives to whoever can open a node: to use a GPU
// instance or a compute instance, to configure MIG, to watch it.
type Capability struct {
	// File is below <proc>/driver/nvidia/capabilities: "gpu0/mig/gi1/access".
	File string
	// Minor is the number of the node, /dev/nvidia-caps/nvidia-cap<minor>.
	Minor uint32
}

// CapabilityFile is the path of a capability's file on this host.
func (inv *Inventory) CapabilityFile(c Capability) string {
	return filepath.Join(inv.Roots.Proc, capabilitiesDir, c.File)
}

// Management returns the right to configure the MIG devices of the host, "config", or
// to watch them all, "monitor".
func (inv *Inventory) Management(name string) (Capability, error) {
	c := Capability{File: "mig/" + name}
	minor, err := capabilityMinor(inv.CapabilityFile(c))
	if errors.Is(err, fs.ErrNotExist) {
		return c, fmt.Errorf("this host has no MIG: %w", err)
	}
	c.Minor = minor
	return c, err
}

// capabilitiesDir is where the driver shows which MIG instances exist.
const capabilitiesDir = "driver/nvidia/capabilities"

// node is the name of the capability's node below /dev.
func (c Capability) node() string {
	return "nvidia-caps/nvidia-cap" + strconv.FormatUint(uint64(c.Minor), 10)
}

// Instances lists the MIG devices that exist now, by GPU, GPU instance and compute
// instance. It reads the driver's capability files; mig-minors lists every instance
// that could exist, on a host without MIG as well.
func (inv *Inventory) Instances() ([]Instance, error) {
	var all []Instance
	for _, gpu := range inv.GPUs {
		l, err := inv.readLayout(gpu)
		if err != nil {
			return nil, err
		}
		all = append(all, l.here...)
	}
	return all, nil
}

// InstancesOf lists the MIG devices of a GPU as they were when this inventory was
// first asked for them: a container is given what was there at one time.
func (inv *Inventory) InstancesOf(gpu GPU) ([]Instance, error) {
	l, err := inv.layoutOf(gpu)
	return l.here, err
}

func (inv *Inventory) layoutOf(gpu GPU) (layout, error) {
	if l, ok := inv.layouts[gpu.Minor]; ok {
		return l, nil
	}
	l, err := inv.readLayout(gpu)
	if err != nil {
		return layout{}, err
	}
	if inv.layouts == nil {
		inv.layouts = map[int]layout{}
	}
	inv.layouts[gpu.Minor] = l
	return l, nil
}

// Seen lists the MIG devices as InstancesOf does, of all GPUs.
func (inv *Inventory) Seen() ([]Instance, error) {
	var all []Instance
	for _, gpu := range inv.GPUs {
		list, err := inv.InstancesOf(gpu)
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}

// migDir is where the driver shows the GPU instances of the GPU with that minor number.
func (inv *Inventory) migDir(minor int) string {
	return filepath.Join(inv.Roots.Proc, capabilitiesDir, "gpu"+strconv.Itoa(minor), "mig")
}

func (inv *Inventory) readLayout(gpu GPU) (layout, error) {
	gis, err := numbered(inv.migDir(gpu.Minor), "gi")
	if err != nil {
		return layout{}, fmt.Errorf("list MIG devices: %w", err)
	}
	all, err := inv.readInstances(gpu, gis)
	if err != nil {
		return layout{}, err
	}
	l := inv.divide(all)
	l.gis = gis
	return l, nil
}

// readInstances reads the compute instances of the GPU instances gis.
func (inv *Inventory) readInstances(gpu GPU, gis []int) ([]Instance, error) {
	dir := inv.migDir(gpu.Minor)
	var list []Instance
	for _, gi := range gis {
		giDir := filepath.Join(dir, "gi"+strconv.Itoa(gi))
		cis, err := numbered(giDir, "ci")
		if err != nil {
			return nil, fmt.Errorf("list MIG devices: %w", err)
		}
		for _, ci := range cis {
			in := Instance{GPU: gpu.Index, Minor: gpu.Minor, Parent: gpu.UUID, GI: gi, CI: ci}
			if in.GINode, err = capabilityMinor(filepath.Join(giDir, "access")); err == nil {
				in.CINode, err = capabilityMinor(filepath.Join(giDir, "ci"+strconv.Itoa(ci), "access"))
			}
			if errors.Is(err, fs.ErrNotExist) {
				continue // it was destroyed while we looked
			}
			if err != nil {
				return nil, err
			}
			list = append(list, in)
		}
	}
	slices.SortFunc(list, func(a, b Instance) int {
		return cmp.Or(cmp.Compare(a.GI, b.GI), cmp.Compare(a.CI, b.CI))
	})
	return list, nil
}

// numbered lists the directories <prefix><number> of dir; none where dir is missing.
func numbered(dir, prefix string) ([]int, error) {
	names, err := readNames(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []int
	for _, name := range names {
		digits, ok := strings.CutPrefix(name, prefix)
		if n, err := strconv.ParseUint(digits, 10, 16); ok && err == nil {
			list = append(list, int(n))
		}
	}
	slices.Sort(list)
	return list, nil
}

// capabilityMinor reads "DeviceFileMinor: 12" of a capability file.
func capabilityMinor(file string) (uint32, error) {
	minor, _, err := readCapability(file)
	return minor, err
}

// readCapability is capabilityMinor, with the bytes of the file.
func readCapability(file string) (uint32, []byte, error) {
	data, err := readBounded(file)
	if err != nil {
		return 0, nil, fmt.Errorf("read MIG capability: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "DeviceFileMinor:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 20)
			if err != nil {
				return 0, nil, fmt.Errorf("read MIG capability: %s: minor %q is not a number", file, cut(strings.TrimSpace(value)))
			}
			return uint32(n), data, nil
		}
	}
	return 0, nil, fmt.Errorf("read MIG capability: %s has no line \"DeviceFileMinor:\"", file)
}
