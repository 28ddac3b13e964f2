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
	// GI and CI are the ids of the GPU instance and of the compute instance in it.
	GI, CI int
	// GINode and CINode are the minor numbers of the capability nodes that give access
	// to the two: /dev/nvidia-caps/nvidia-cap<minor>.
	GINode, CINode uint32
}

// capabilitiesDir is where the driver shows which MIG instances exist.
const capabilitiesDir = "driver/nvidia/capabilities"

// Instances lists the MIG devices that exist now, by GPU, GPU instance and compute
// instance. It reads the driver's capability files; mig-minors lists every instance
// that could exist, on a host without MIG as well.
func (inv *Inventory) Instances() ([]Instance, error) {
	var list []Instance
	for _, gpu := range inv.GPUs {
		dir := filepath.Join(inv.Roots.Proc, capabilitiesDir, "gpu"+strconv.Itoa(gpu.Minor), "mig")
		gis, err := numbered(dir, "gi")
		if err != nil {
			return nil, fmt.Errorf("list MIG devices: %w", err)
		}
		for _, gi := range gis {
			giDir := filepath.Join(dir, "gi"+strconv.Itoa(gi))
			cis, err := numbered(giDir, "ci")
			if err != nil {
				return nil, fmt.Errorf("list MIG devices: %w", err)
			}
			for _, ci := range cis {
				in := Instance{GPU: gpu.Index, Minor: gpu.Minor, GI: gi, CI: ci}
				if in.GINode, err = capabilityMinor(filepath.Join(giDir, "access")); err != nil {
					return nil, err
				}
				if in.CINode, err = capabilityMinor(filepath.Join(giDir, "ci"+strconv.Itoa(ci), "access")); err != nil {
					return nil, err
				}
				list = append(list, in)
			}
		}
	}
	slices.SortFunc(list, func(a, b Instance) int {
		return cmp.Or(cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.GI, b.GI), cmp.Compare(a.CI, b.CI))
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
	data, err := readBounded(file)
	if err != nil {
		return 0, fmt.Errorf("read MIG capability: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "DeviceFileMinor:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 20)
			if err != nil {
				return 0, fmt.Errorf("read MIG capability: %s: minor %q is not a number", file, cut(strings.TrimSpace(value)))
			}
			return uint32(n), nil
		}
	}
	return 0, fmt.Errorf("read MIG capability: %s has no line \"DeviceFileMinor:\"", file)
}
