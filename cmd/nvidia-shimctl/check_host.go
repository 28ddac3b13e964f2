package main

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/prepare"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// host looks at the GPUs and the driver's files. The inventory is there where only the
// files cannot be looked for.
func (n *node) host() (*device.Inventory, *driver.Files, error) {
	return gpuinject.FindHost(n.cfg.Host)
}

func checkDriver(_ context.Context, n *node) []finding {
	inv, _, err := n.host()
	if inv == nil {
		return []finding{problem("nvidia-shimctl prepare --load-modules, or keep GPU pods off this node by a node selector", "%v", err)}
	}
	if len(inv.GPUs) == 0 {
		return []finding{problem("look at the kernel's log (dmesg) for NVRM", "driver %s is loaded but has no usable GPU (%d excluded)", inv.DriverVersion, len(inv.Excluded))}
	}
	if inv.Platform != "" {
		return []finding{fine("the driver of %s", inv.Platform)}
	}
	return []finding{fine("driver %s with %d GPUs", inv.DriverVersion, len(inv.GPUs))}
}

func checkLibraries(_ context.Context, n *node) []finding {
	inv, files, err := n.host()
	if inv == nil {
		return nil
	}
	if err == nil {
		err = files.Check(n.cfg.Container.DefaultCapabilities)
	}
	if err != nil {
		return []finding{problem("install the driver's libraries in the version of the loaded kernel module, or reload the module", "%v", err)}
	}
	out := []finding{fine("%d driver libraries of version %s", len(files.Libraries), cmp.Or(inv.DriverVersion, "the platform"))}
	for _, r := range files.Refused {
		out = append(out, warning("reinstall the driver's package", "%s is not given to containers: it %s", r.Path, r.Reason))
	}
	return out
}

func checkState(_ context.Context, n *node) []finding {
	dir := n.cfg.Host.StateDir
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return []finding{fine("%s is made by the first GPU container", dir)}
	}
	if _, err := view.OpenState(dir); err != nil {
		return []finding{problem("chown it to root and chmod it 0700, or remove it when no GPU container runs", "%v", err)}
	}
	return []finding{fine("%s belongs to root alone", dir)}
}

const fixPrepare = "nvidia-shimctl prepare; for every boot: nvidia-shimctl install --prepare-unit"

// checkNodes looks at the nodes that every GPU container gets, which is a problem, and
// at the others that the loaded driver has, those of MIG among them.
func checkNodes(ctx context.Context, n *node) []finding {
	inv, files, err := n.host()
	if inv == nil || err != nil && inv.Platform != "" {
		return nil
	}
	var nodes []device.Node
	if inv.Platform == device.Tegra {
		nodes, err = inv.NodesAt(files.Nodes)
	} else {
		nodes, err = inv.Nodes(device.Set{GPUs: inv.GPUs}, []string{"compute", "utility"})
	}
	if err != nil {
		return []finding{problem(fixPrepare, "%v", err)}
	}
	out := []finding{fine("%d device nodes", len(nodes))}
	if inv.Platform != "" {
		return out // the platform's own modules make them
	}
	report, err := prepare.Run(ctx, prepare.Options{Host: n.cfg.Host, DryRun: true})
	if err != nil {
		return append(out, problem("look at the driver's files in procfs", "%v", err))
	}
	for _, p := range report.Nodes {
		switch p.State {
		case prepare.Present:
		case prepare.Made:
			out = append(out, warning(fixPrepare, "%s is missing: containers that are to have it do not get it", p.Path))
		default:
			out = append(out, warning(p.Fix, "%s: %s", p.Path, p.Message))
		}
	}
	return out
}

// checkPrepare looks at what makes the nodes at boot, as far as that is ours.
func checkPrepare(_ context.Context, n *node) []finding {
	const fix = "nvidia-shimctl install --prepare-unit"
	text, err := os.ReadFile(filepath.Join(n.root, runtimeclass.UnitPath))
	if errors.Is(err, fs.ErrNotExist) {
		if n.cfg.Host.LoadKernelModules {
			return []finding{warning(fix, "host.load-kernel-modules is for nvidia-shimctl prepare, and nothing runs that at boot")}
		}
		return []finding{fine("no unit of ours makes the device nodes at boot: that is left to the driver's own tools")}
	}
	if err != nil {
		return []finding{problem("look at that file", "%v", err)}
	}
	for line := range strings.Lines(string(text)) {
		program, ok := strings.CutPrefix(line, "ExecStart=")
		if !ok {
			continue
		}
		program, _, _ = strings.Cut(strings.TrimSpace(program), " ")
		if _, err := os.Stat(filepath.Join(n.root, program)); err != nil {
			return []finding{problem(fix, "%s: %v: the device nodes are not made at boot", runtimeclass.UnitName, err)}
		}
	}
	if _, err := os.Lstat(filepath.Join(n.root, runtimeclass.UnitLink)); err != nil {
		return []finding{warning("systemctl enable "+runtimeclass.UnitName, "%s is there and not enabled: the device nodes are not made at boot", runtimeclass.UnitName)}
	}
	return []finding{fine("%s runs at boot", runtimeclass.UnitName)}
}

// checkSockets looks at the daemons whose sockets the operator wants containers to have.
func checkSockets(_ context.Context, n *node) []finding {
	names := slices.Sorted(slices.Values(n.cfg.Container.Sockets))
	if len(names) == 0 {
		return []finding{fine("no sockets of daemons are given to containers")}
	}
	var out []finding
	for _, name := range names {
		dir, err := gpuinject.DaemonSocket(n.cfg, name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			out = append(out, warning("start it, or take it out of container.sockets", "%s does not run on this host: containers start without its socket", name))
		case err != nil:
			out = append(out, warning("correct that, or take it out of container.sockets", "%s: containers start without its socket: %v", name, err))
		default:
			out = append(out, fine("containers get the socket of %s in %s", name, dir))
		}
	}
	return out
}

// checkMIGDevices says what MIG devices there are, for whoever asks for them.
func checkMIGDevices(_ context.Context, n *node) []finding {
	inv, _, _ := n.host()
	if inv == nil || inv.Platform != "" {
		return nil
	}
	instances, err := inv.Instances()
	if err != nil {
		return []finding{problem("look at the driver's files below /proc/driver/nvidia/capabilities", "%v", err)}
	}
	if len(instances) == 0 {
		return []finding{fine("no GPU is divided")}
	}
	// The nodes of each, as a container would get them.
	for _, in := range instances {
		if _, err := inv.Nodes(device.Set{MIG: []device.Instance{in}}, nil); err != nil {
			return []finding{problem(fixPrepare, "MIG device %s: %v", in.Name(), err)}
		}
	}
	return []finding{fine("%d MIG devices, with their nodes", len(instances))}
}
