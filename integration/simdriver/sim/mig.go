package sim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// planMIG names MIG devices of the GPUs. NVML counts them in the order given, which
// need not be that of the instances' ids.
func (d *Driver) planMIG(devices []MIGDevice) ([]MIG, error) {
	var list []MIG
	for _, m := range devices {
		if m.GPU < 0 || m.GPU >= len(d.GPUs) || m.GI < 0 || m.GI >= gpuInstances || m.CI < 0 || m.CI >= computeInstances {
			return nil, fmt.Errorf("MIG device %d:%d:%d cannot exist", m.GPU, m.GI, m.CI)
		}
		g := d.GPUs[m.GPU]
		list = append(list, MIG{
			MIGDevice: m,
			UUID:      "MIG-" + uuid(fmt.Sprintf("%s gi%d ci%d", g.BusID, m.GI, m.CI)),
			GIMinor:   capMinor(g.Minor, m.GI, -1),
			CIMinor:   capMinor(g.Minor, m.GI, m.CI),
		})
	}
	return list, nil
}

// Reconfigure replaces the MIG devices, as an administrator does with nvidia-smi mig:
// the capability files and nodes of the old ones go, those of the new ones appear, and
// libnvidia-ml lists the new ones. Running containers keep what they have.
func (d *Driver) Reconfigure(ctx context.Context, devices []MIGDevice) error {
	list, err := d.planMIG(devices)
	if err != nil {
		return err
	}
	for _, g := range d.GPUs {
		if err := os.RemoveAll(filepath.Join(d.ProcRoot, fmt.Sprintf("driver/nvidia/capabilities/gpu%d/mig", g.Minor))); err != nil {
			return err
		}
	}
	old := d.MIG
	d.MIG = list
	if err := d.writeProc(); err != nil {
		return err
	}
	if err := d.installNVML(ctx); err != nil {
		return err
	}
	// Nodes are last: a process that waits for them then reads the rest.
	for _, m := range old {
		for _, minor := range []int{m.GIMinor, m.CIMinor} {
			// Two devices can be of one GPU instance, whose node is gone then.
			_ = os.Remove(filepath.Join(d.DevRoot, fmt.Sprintf("dev/nvidia-caps/nvidia-cap%d", minor)))
		}
	}
	for _, n := range d.migNodes() {
		if err := d.makeNode(n); err != nil {
			return err
		}
	}
	if err := d.save(); err != nil {
		return err
	}
	return d.openDirectories()
}

// installNVML compiles libnvidia-ml again: its table of MIG devices is compiled in.
func (d *Driver) installNVML(ctx context.Context) error {
	b, err := newBuilder(d.Dir)
	if err != nil {
		return err
	}
	defer b.close()
	l := libraryNamed("libnvidia-ml")
	object, err := b.object(ctx, d.libraryUnit(l))
	if err != nil {
		return err
	}
	in := &installer{d: d, p: layouts[d.Layout]}
	return in.library(l, object)
}

// migNodes are the capability nodes of the MIG devices.
func (d *Driver) migNodes() []node {
	var list []node
	for _, mig := range d.MIG {
		for _, minor := range []int{mig.GIMinor, mig.CIMinor} {
			n := node{fmt.Sprintf("nvidia-caps/nvidia-cap%d", minor), d.Majors.Caps, uint32(minor), accessMode, 0}
			if !slices.Contains(list, n) {
				list = append(list, n)
			}
		}
	}
	return list
}
