package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
	cdi "tags.cncf.io/container-device-interface/specs-go"
)

// nodesKind is the CDI kind of the device nodes alone.
const nodesKind = "benchmark.invalid/nodes"

// nodesOnly gives each case the variant bare: the stock shim, with the device nodes that
// ours gives and nothing else. runc makes them all the same, so that no shim that edits a
// specification can be faster. The nodes are in a CDI specification that goes at the end.
func (b *bench) nodesOnly(ctx context.Context) error {
	spec := cdi.Spec{Version: "0.6.0", Kind: nodesKind}
	for i := range b.result.Cases {
		c := &b.result.Cases[i]
		if c.Name != caseOne && c.Name != caseAll {
			continue
		}
		nodes, err := b.nodesOf(ctx, variant(b.result.Cases, c.Name, ours))
		if err != nil {
			return err
		}
		d := cdi.Device{Name: fmt.Sprint("case", i)}
		v := variant(b.result.Cases, c.Name, stock)
		v.Name, v.extra = bare, []string{"--device", nodesKind + "=" + d.Name}
		for _, n := range nodes {
			v.nodes = append(v.nodes, n.Path)
			d.ContainerEdits.DeviceNodes = append(d.ContainerEdits.DeviceNodes, &cdi.DeviceNode{
				Path: n.Path, Type: n.Type, Major: n.Major, Minor: n.Minor, FileMode: n.FileMode, Permissions: "rw", UID: n.UID, GID: n.GID,
			})
		}
		spec.Devices = append(spec.Devices, d)
		c.Variants = append(c.Variants, v)
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return writeCDI(b.Lifetime, "nvidia-shim-bench-nodes.json", data)
}

// nodesOf are the device nodes that our shim puts into a container's configuration.
func (b *bench) nodesOf(ctx context.Context, v Variant) ([]specs.LinuxDevice, error) {
	t, err := b.started(ctx, v)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(filepath.Join(t.env.BundleDir(t.id), "config.json"))
	if err != nil {
		return nil, err
	}
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		return nil, err
	}
	return spec.Linux.Devices, t.remove(ctx)
}
