package check

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/sockets"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/advisories"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cdispec"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/podresources"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/prepare"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/semver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

const (
	fixPrepare = "nvidia-shimctl prepare; for every boot: nvidia-shimctl install --prepare-unit"
	fixUnit    = "nvidia-shimctl install --prepare-unit"
)

func checkDriver(ctx context.Context, n *node) []Finding {
	switch {
	case n.gpus == nil:
		fix := "nvidia-shimctl prepare --load-modules"
		if host.IsContainer(n.config.Host, "") {
			fix = "load the driver on the machine: " + host.StartAgain
		} else if report, err := prepare.Run(ctx, prepare.Options{Host: n.config.Host, DryRun: true}); err == nil && len(report.PCI) == 0 {
			fix = "this host has no NVIDIA GPU on its PCI bus: keep GPU pods off this node by a node selector"
		}
		return problem(fix, "%v", n.hostErr)
	case len(n.gpus.GPUs) == 0:
		return problem("check the kernel log (dmesg) for NVRM", "driver %s is loaded but has no usable GPU (%d excluded)", n.gpus.DriverVersion, len(n.gpus.Excluded))
	case n.gpus.Platform != "":
		return fine("%s", n.gpus.Driver())
	}
	list := fine("driver %s with %d GPUs", n.gpus.DriverVersion, len(n.gpus.GPUs))
	for _, err := range n.gpus.Faults() {
		list = append(list, problem("check the kernel log (dmesg) for NVRM and Xid; containers with other devices start", "%v", err)...)
	}
	if v, err := semver.Parse(n.gpus.DriverVersion); err == nil {
		if compared := n.checkVersion(advisories.Driver, v); compared[0].Level != OK {
			list = append(list, compared...)
		}
	}
	return list
}

func checkLibraries(n *node) []Finding {
	if n.gpus == nil {
		return nil
	}
	err := n.hostErr
	if err == nil {
		err = n.files.Check(n.config.Container.DefaultCapabilities)
	}
	if err != nil && host.IsContainer(n.config.Host, n.gpus.DriverVersion) {
		return problem("install the driver's libraries in the version of the machine's kernel module here, or mount the machine's", "%v", err)
	}
	if err != nil && len(n.files.Others) > 0 {
		return problem("reboot, or reload the module; until then only containers start whose capabilities were in use before the upgrade", "%v", err)
	}
	if err != nil {
		return problem("install the driver's libraries in the version of the loaded kernel module, or reload the module", "%v", err)
	}
	list := fine("%d driver libraries of version %s", len(n.files.Libraries), cmp.Or(n.gpus.DriverVersion, "the platform"))
	for _, m := range n.files.Missing {
		if capability, name, _ := strings.Cut(m, ": "); slices.Contains(n.config.Container.DefaultCapabilities, capability) {
			const text = "containers with the capability %s get no %s: this host's driver has none"
			if name == "nvidia-smi" {
				list = append(list, warning("install it with the driver, at one of the places in docs/install.md", text, capability, name)...)
			} else {
				list = append(list, fine(text, capability, name)...)
			}
		}
	}
	for _, l := range n.files.LeftOut {
		list = append(list, fine("left out: %s: %s", l.Path, l.Reason)...)
	}
	for _, r := range n.files.Refused {
		fix := repair(r.Reason)
		if host.IsContainer(n.config.Host, n.gpus.DriverVersion) {
			fix = "install the file here, or mount one that belongs to root in this container"
		}
		list = append(list, warning(fix, "containers do not get %s: it %s", r.Path, r.Reason)...)
	}
	return list
}

// repair returns the advice for a file of the driver that was refused: that of the reason, if it has
// one.
func repair(reason string) string {
	const reinstall = "reinstall the driver's package"
	if _, advice, ok := strings.Cut(reason, ": "); ok {
		return advice + ", or " + reinstall
	}
	return reinstall
}

func checkNodes(ctx context.Context, n *node) []Finding {
	if n.gpus == nil || n.hostErr != nil && n.gpus.Platform != "" {
		return nil
	}
	nodes, err := n.gpus.Nodes(device.Set{GPUs: n.gpus.GPUs, MIG: n.gpus.MIG}, []string{config.Compute, config.Utility}, n.files)
	if err != nil && host.IsContainer(n.config.Host, n.gpus.DriverVersion) {
		return problem(host.StartAgain, "%v", err)
	}
	if err != nil {
		return problem(fixPrepare, "%v", err)
	}
	list := fine("%d device nodes, %d MIG devices", len(nodes), len(n.gpus.MIG))
	if n.gpus.Platform != "" {
		return list // the platform's own modules make them
	}
	report, err := prepare.Run(ctx, prepare.Options{Host: n.config.Host, DryRun: true})
	if err != nil {
		return append(list, problem("see the driver's files in procfs", "%v", err)...)
	}
	for _, p := range report.Nodes {
		switch p.State {
		case prepare.Present:
		case prepare.Made:
			list = append(list, warning(fixPrepare, "%s is missing: containers that ask for it do not get it", p.Path)...)
		default:
			list = append(list, warning(p.Fix, "%s: %s", p.Path, p.Message)...)
		}
	}
	return list
}

// checkPrepareUnit checks the unit that makes the device nodes at boot.
func checkPrepareUnit(n *node) []Finding {
	switch {
	case n.exists(runtimeclass.UnitLink): // systemctl enable links to the package's unit, too
		return fine("%s runs at boot", runtimeclass.UnitName)
	case n.exists(runtimeclass.UnitPath):
		return warning("systemctl enable "+runtimeclass.UnitName, "%s is not enabled: the device nodes are not made at boot", runtimeclass.UnitName)
	case n.config.Host.LoadKernelModules:
		return warning(fixUnit, "host.load-kernel-modules is for nvidia-shimctl prepare, and nothing runs that at boot")
	}
	return fine("the driver's own tools make the device nodes at boot, not a unit of nvidia-shimctl")
}

// checkCDI checks a CDI specification that nvidia-shimctl wrote.
func checkCDI(n *node) []Finding {
	const fix = "nvidia-shimctl prepare --cdi"
	have, err := cdispec.Read(n.real(cdispec.Path))
	if err != nil {
		return nil
	}
	var dirs []string
	for _, dir := range cdispec.Dirs {
		dirs = append(dirs, n.real(dir))
	}
	if err := cdispec.CheckConflicts(n.real(cdispec.Path), have, dirs...); err != nil {
		return problem("remove or move one of them", "%v", err)
	}
	want, err := n.CDI()
	switch {
	case err != nil:
		return warning(fix, "%s cannot be checked: %v", cdispec.Path, err)
	case !bytes.Equal(have, want):
		return warning(fix, "%s does not match this driver, these GPUs and this configuration: other runtimes fail with it", cdispec.Path)
	}
	return fine("%s is up to date", cdispec.Path)
}

func checkSockets(n *node) []Finding {
	if len(n.config.Container.Sockets) == 0 {
		return fine("containers get no sockets of daemons")
	}
	var list []Finding
	for _, daemon := range sockets.Daemons {
		name := daemon.Name
		if !slices.Contains(n.config.Container.Sockets, name) {
			continue
		}
		dir, err := daemon.Locate(n.config.Host)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			list = append(list, warning("start it, or remove it from container.sockets", "%s does not run on this host: containers start without its socket", name)...)
		case err != nil:
			list = append(list, warning("correct that, or remove it from container.sockets", "%s: containers start without its socket: %v", name, err)...)
		default:
			list = append(list, fine("containers get the socket of %s in %s", name, dir)...)
		}
	}
	return list
}

func checkState(n *node) []Finding {
	dir := n.config.Host.StateDir
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return fine("the first GPU container makes %s", dir)
	}
	if _, err := state.Open(dir, true); err != nil {
		return problem("chown it to root and chmod it 0700, or remove it when no GPU container runs", "%v", err)
	}
	return fine("%s belongs to root alone", dir)
}

func checkKubelet(ctx context.Context, n *node) []Finding {
	const fix = "set policy.kubelet-socket to pod-resources/kubelet.sock in its --root-dir"
	socket := n.config.Policy.KubeletSocket
	dir := filepath.Dir(filepath.Dir(socket)) // the kubelet's --root-dir
	theirs := runtimeclass.KubeletSocket(runtimeclass.Host{Tree: hosttree.Tree{Root: n.Root}}, n.Proc)
	switch {
	case theirs != "" && theirs != socket && !n.exists(socket):
		return problem("nvidia-shimctl install, or set policy.kubelet-socket to that",
			"the kubelet's socket is %s, but policy.kubelet-socket is %s", theirs, socket)
	case !n.exists(socket) && !n.exists(dir):
		return fine("there is no %s: not a Kubernetes node", dir)
	case !n.exists(socket):
		return warning("start the kubelet, or "+fix,
			"there is a kubelet's %s, but no socket %s: containers whose allocation is not in the kubelet's checkpoint are refused", dir, socket)
	}
	ctx, cancel := context.WithTimeout(ctx, probe.KubeletTimeout)
	defer cancel()
	pods, err := podresources.Pods(ctx, n.real(socket))
	if err != nil {
		return problem("check that the kubelet runs (systemctl status kubelet) and see its log, or "+fix, "the kubelet does not answer at %s: %v", socket, err)
	}
	return fine("the kubelet answers at %s, with %d pods", socket, len(pods))
}
