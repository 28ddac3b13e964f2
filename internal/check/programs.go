package check

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/advisories"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/semver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

const fixInstall = "nvidia-shimctl install"

// checkShims checks the shim of each handler: it has to start, and only root may be able to replace
// it.
func checkShims(ctx context.Context, n *node) []Finding {
	var list []Finding
	for _, name := range n.shims() {
		p, known, err := n.lookPath(name)
		if err == nil {
			err = n.trust(p)
		}
		var text []byte
		if err == nil && known {
			text, err = run(ctx, n.real(p), "-v")
		}
		switch {
		case err != nil:
			list = append(list, problem(fixInstall, "%v", err)...)
		case !known:
			list = append(list, warning("move it to "+runtimeclass.DefaultBinDir, "%s", notExecuted(name, p))...)
		default:
			_, version, _ := strings.Cut(string(text), "Version:")
			version, _, _ = strings.Cut(version, "\n")
			list = append(list, fine("containerd finds %s %s", p, strings.TrimSpace(version))...)
		}
	}
	return list
}

// shims returns the names or paths by which the handlers start this shim.
func (n *node) shims() []string {
	return n.programs(func(r runtimeclass.Runtime) string {
		if filepath.IsAbs(r.Type) {
			return r.Type
		}
		return cmp.Or(r.Path, version.Shim)
	})
}

// programs returns the distinct results of name for the handlers, or for a handler without settings
// if there is none.
func (n *node) programs(name func(runtimeclass.Runtime) string) []string {
	names := map[string]bool{}
	for _, r := range n.handlers {
		names[name(r)] = true
	}
	if len(names) == 0 {
		names[name(runtimeclass.Runtime{})] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// trust returns an error unless p is a program that only root can change.
func (n *node) trust(p string) error {
	_, err := trusted.Program(n.real(p))
	return err
}

// runtimes returns the names or paths by which this shim starts runc.
func (n *node) runtimes() []string {
	return n.programs(func(r runtimeclass.Runtime) string {
		name, _ := r.Options["BinaryName"].(string)
		return cmp.Or(name, "runc")
	})
}

func checkRunc(ctx context.Context, n *node) []Finding {
	var list []Finding
	for _, name := range n.runtimes() {
		list = append(list, checkRuntime(ctx, n, name)...)
	}
	return list
}

func checkRuntime(ctx context.Context, n *node, name string) []Finding {
	p, known, err := n.lookPath(name)
	if err != nil {
		return problem("install "+name, "%v: no container can start", err)
	}
	if !known {
		return warning("name its path in the handler's BinaryName", "%s", notExecuted(name, p))
	}
	text, err := run(ctx, n.real(p), "--version")
	if err != nil {
		return problem("install a working "+name, "%v", err)
	}
	component, _, _ := strings.Cut(string(text), " version ")
	if component != advisories.Runc && component != advisories.Crun {
		return fine("%s is neither runc nor crun: its version is not checked", p)
	}
	v, err := semver.Parse(string(text))
	if err != nil {
		return warning("install a released "+component, "%s: its version is not checked: %v", p, err)
	}
	return n.checkVersion(component, v)
}

// checkCRIU looks for CRIU, which only checkpoints need.
func checkCRIU(ctx context.Context, n *node) []Finding {
	p, known, err := n.lookPath("criu")
	if err != nil {
		return fine("criu is not installed: containers cannot be checkpointed")
	}
	if !known {
		return fine("%s", notExecuted("criu", p))
	}
	text, err := run(ctx, n.real(p), "--version")
	if err != nil {
		return fine("containers cannot be checkpointed: %v", err)
	}
	if err := advisories.CheckCRIU(string(text)); err != nil {
		return fine("GPU containers cannot be checkpointed: %s: %v", p, err)
	}
	version, _, _ := strings.Cut(string(text), "\n")
	return fine("CRIU %s", strings.TrimPrefix(version, "Version: "))
}

// checkProbes checks the nvidia-shimctl beside each shim, which asks the kubelet and NVML on its
// behalf.
func checkProbes(ctx context.Context, n *node) []Finding {
	var list []Finding
	for _, name := range n.shims() {
		if shim, known, err := n.lookPath(name); err == nil && known { // checkShims reports the others
			list = append(list, checkProbe(ctx, n, filepath.Join(filepath.Dir(shim), version.Ctl))...)
		}
	}
	return list
}

func checkProbe(ctx context.Context, n *node, p string) []Finding {
	if err := n.trust(p); err != nil {
		return problem(fixInstall, "the shim cannot run its probe, and pods whose allocation has to be read from the kubelet do not start: %v", err)
	}
	if n.gpus == nil || n.gpus.Platform != "" {
		return fine("%s is beside the shim", p)
	}
	args := []string{"probe", "--timeout=" + (programTimeout * 8 / 10).String()}
	if n.Config != "" {
		args = append([]string{"--config=" + n.Config}, args...)
	}
	out, err := run(ctx, n.real(p), args...)
	if err != nil {
		return warning("check that nvidia-smi works on this host",
			"%v; without NVML, MIG devices by UUID, and images that require an architecture or a brand, are refused", err)
	}
	list := fine("%s asks NVML", p)
	var a probe.Answers
	if err := json.Unmarshal(out, &a); err == nil && a.Facts != nil { // a probe of another version may print something else
		for _, fault := range a.Facts.Faults() {
			list = append(list, warning("check the kernel log (dmesg) for NVRM and Xid", "%s", fault)...)
		}
	}
	return list
}
