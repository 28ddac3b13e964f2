package main

import (
	"encoding/json"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// nodesKind is the CDI kind of the device nodes alone.
const nodesKind = "benchmark.invalid/nodes"

// nodesOnly gives each case the variant bare: the stock shim, with the device nodes that
// ours gives and nothing else. runc makes them all the same, so that no shim that edits a
// specification can be faster. The nodes are in a CDI specification that goes at the end.
func nodesOnly(h *testenv.Lifetime, cfg *config.Config, cases []Case) error {
	spec := cdi.Spec{Version: "0.6.0", Kind: nodesKind}
	for i := range cases {
		c := &cases[i]
		if c.Name != caseOne && c.Name != caseAll {
			continue
		}
		nodes, err := nodesOf(cfg, variant(cases, c.Name, ours).env)
		if err != nil {
			return err
		}
		d := cdi.Device{Name: fmt.Sprint("case", i)}
		v := variant(cases, c.Name, stock)
		v.Name, v.skipRun, v.extra = bare, true, []string{"--device", nodesKind + "=" + d.Name}
		for _, n := range nodes {
			v.nodes = append(v.nodes, n.Path)
			mode := n.Mode.Perm()
			d.ContainerEdits.DeviceNodes = append(d.ContainerEdits.DeviceNodes, &cdi.DeviceNode{
				Path: n.Path, HostPath: n.HostPath, Type: "c", Major: int64(n.Major), Minor: int64(n.Minor),
				FileMode: &mode, Permissions: "rw", UID: &n.UID, GID: &n.GID,
			})
		}
		spec.Devices = append(spec.Devices, d)
		c.Variants = append(c.Variants, v)
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return writeCDI(h, "nvidia-shim-bench-nodes.json", data)
}

// nodesOf are the device nodes of a container with this environment.
func nodesOf(cfg *config.Config, env []string) ([]device.Node, error) {
	spec := &specs.Spec{
		Version: specs.Version, Root: &specs.Root{Path: "rootfs"}, Process: &specs.Process{Env: env},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.MountNamespace}}, Resources: &specs.LinuxResources{}},
	}
	job, err := gpuinject.ExamineSpec(spec, func() (*config.Config, error) { return cfg, nil })
	if err == nil {
		err = job.Resolve()
	}
	if err != nil {
		return nil, fmt.Errorf("the device nodes of a container with %q: %w", env, err)
	}
	return job.Standalone().Nodes, nil
}
