package gpuinject

import (
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// Programs that NVIDIA's CDI specifications have as hooks: nvidia-cdi-hook <what>, or
// nvidia-ctk hook <what>.
const (
	cdiHook = "nvidia-cdi-hook"
	ctkHook = "nvidia-ctk"
)

func isCDIHook(h specs.Hook) bool {
	return hookIs(h, cdiHook) || hookIs(h, ctkHook) && slices.Contains(h.Args, "hook")
}

// editedByCDI tells whether a CDI specification of NVIDIA's was applied to the
// container: by containerd for CDIDevices of CRI, by docker or ctr for --device, for a
// claim of the DRA driver. Its hooks are there, and nodes of the driver. Without
// hooks, whoever wrote the specification needs nothing done.
func editedByCDI(spec *bundle.Spec) bool {
	return spec.Linux != nil && findHook(spec.Hooks, isCDIHook) != nil &&
		slices.ContainsFunc(spec.Linux.Devices, func(d specs.LinuxDevice) bool {
			return (d.Type == "c" || d.Type == "u") && isDriverNode(path.Clean(d.Path))
		})
}

// driverNodes begin the names of the driver's nodes: of PCI GPUs, of WSL2, and of a
// Tegra, which need not have one of the first.
var driverNodes = []string{"/dev/nvidia", "/dev/dxg", "/dev/nvhost-", "/dev/nvmap", "/dev/nvgpu/"}

func isDriverNode(name string) bool {
	return slices.ContainsFunc(driverNodes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// takeOver makes the devices that CDI put into the specification request and grant.
// Nodes count by their numbers, whatever they are called.
func (j *Job) takeOver() error {
	if err := j.checkMemoryLimit(); err != nil {
		return err
	}
	set, err := j.inv.Given(j.Container.Nodes)
	if err != nil {
		return fail(Precondition, "%s: %w", j.Request.Reason, err)
	}
	if j.inv.Platform == device.Tegra {
		if set, err = j.givenTegra(); err != nil {
			return err
		}
	}
	for _, name := range []string{"config", "monitor"} {
		// A host without MIG has no such right.
		if c, err := j.inv.Management(name); err == nil && j.hasCapability(c) {
			set.Manage = append(set.Manage, c)
			j.Plan.MIGRights = append(j.Plan.MIGRights, name)
		}
	}
	j.set = set
	j.nameMIG()
	j.gpus = j.inv.Visible(j.set)
	names := j.set.Names()
	j.Request.Devices, j.Plan.Asked = names, names
	j.Plan.Grant = "taken over from CDI: no GPU"
	if len(names) > 0 {
		j.Plan.Grant = "taken over from CDI: " + strings.Join(names, ",")
	}
	j.grant = policy.Grant{Set: set, Reason: j.Plan.Grant}
	j.explainGrant()
	j.explainDevices()
	return nil
}

// givenTegra is the GPU of a Tegra where the specification has nodes of its lists.
func (j *Job) givenTegra() (set device.Set, err error) {
	if err := j.findFiles(); err != nil {
		return set, err
	}
	nodes, err := j.inv.NodesAt(j.files.Nodes)
	if err != nil {
		return set, fail(Precondition, "%s: %w", j.Request.Reason, err)
	}
	if slices.ContainsFunc(nodes, j.has) {
		set.GPUs = j.inv.GPUs
	}
	return set, nil
}

// hasCapability tells whether the specification has the node of a right.
func (j *Job) hasCapability(c device.Capability) bool {
	nodes, err := j.inv.Nodes(device.Set{Manage: []device.Capability{c}}, nil)
	return err == nil && slices.ContainsFunc(nodes, func(n device.Node) bool {
		return strings.HasPrefix(n.Path, "/dev/nvidia-caps/") && j.has(n)
	})
}

// has tells whether the specification that containerd handed over has a node.
func (j *Job) has(n device.Node) bool {
	return slices.Contains(j.Container.Nodes, policy.Number{Major: int64(n.Major), Minor: int64(n.Minor)})
}

// keptClasses are the classes whose nodes NVIDIA's CDI specifications have. RDMA
// adapters are handed out by plugins of other vendors as well: whose they are cannot
// be told, and they need nothing done.
var keptClasses = []string{request.IMEX, request.GDS, request.GDRCopy, request.NVSwitch}

// keepClasses enters the nodes of other classes that CDI put into the specification.
// Their files are mounted already.
func (j *Job) keepClasses() {
	for _, class := range keptClasses {
		// What is not as it should be on this host is not ours to give; it stays as it is.
		nodes, _ := j.inv.Others(class, nil)
		nodes = slices.DeleteFunc(nodes, func(n device.Other) bool { return !j.has(n.Node) })
		if len(nodes) > 0 {
			j.explain(class, "given", "CDI put its nodes into the specification")
			j.enterClass(class, nodes)
		}
	}
}
