package check

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/go-runc"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/semver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

const fixInstall = "nvidia-shimctl install"

// checkShims checks the shim of each handler: it has to start, and only root may be able to replace
// it.
func checkShims(ctx context.Context, n *node) []Finding {
	var list []Finding
	for _, name := range n.shims() {
		p, err := n.lookPath(name)
		if err == nil {
			err = n.trust(p)
		}
		var text []byte
		if err == nil {
			text, err = run(ctx, n.real(p), "-v")
		}
		if err != nil {
			list = append(list, problem(fixInstall, "%v", err)...)
		} else {
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
		return cmp.Or(r.Path, runtimeclass.ShimName)
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
	var st unix.Stat_t
	err := unix.Stat(n.real(p), &st)
	if err == nil {
		err = trusted.RootFile(&st)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", p, err)
	}
	return nil
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
	p, err := n.lookPath(name)
	if err != nil {
		return problem("install "+name, "%v: no container can start", err)
	}
	ctx, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	text, err := (&runc.Runc{Command: n.real(p)}).Version(ctx)
	if err != nil {
		return problem("install a working "+name, "%s: %v", p, err)
	}
	if text.Runc == "" {
		return fine("%s is not runc: its version is not checked", p)
	}
	v, err := semver.Parse(text.Runc)
	if err != nil {
		return warning("install a released runc", "%s: its version is not checked: %v", p, err)
	}
	return checkFloor("runc", v, []floor{{1, 3, 6}, {1, 4, 3}, {1, 5, 0}})
}

// checkCRIU looks for CRIU, which only checkpoints need.
func checkCRIU(ctx context.Context, n *node) []Finding {
	p, err := n.lookPath("criu")
	if err != nil {
		return fine("criu is not installed: containers cannot be checkpointed")
	}
	text, err := run(ctx, n.real(p), "--version")
	if err != nil {
		return fine("containers cannot be checkpointed: %v", err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(string(text), "Version: %d.%d", &major, &minor); err != nil || major < 4 {
		return fine("GPU containers cannot be checkpointed: they need CRIU 4.0 or later; %s is %q", p, bytes.TrimSpace(text))
	}
	return fine("CRIU %d.%d", major, minor)
}

// checkProbes checks the nvidia-shimctl beside each shim, which asks the kubelet and NVML on its
// behalf.
func checkProbes(ctx context.Context, n *node) []Finding {
	var list []Finding
	for _, name := range n.shims() {
		if shim, err := n.lookPath(name); err == nil { // checkShims reports an error
			list = append(list, checkProbe(ctx, n, filepath.Join(filepath.Dir(shim), runtimeclass.CtlName))...)
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
	if _, err := run(ctx, n.real(p), args...); err != nil {
		return warning("check that nvidia-smi works on this host",
			"%v; without NVML, MIG devices by UUID, and images that require an architecture or a brand, are refused", err)
	}
	return fine("%s asks NVML", p)
}

// floor is the first safe version of a release line.
type floor struct{ major, minor, patch int }

// checkFloor compares a version with the floor of its line. Lines after the last one are safe,
// lines between and before them are not.
func checkFloor(name string, v semver.Version, floors []floor) []Finding {
	var texts []string
	last := floors[len(floors)-1]
	safe := v.AtLeast(last.major, last.minor+1, 0)
	for _, f := range floors {
		texts = append(texts, fmt.Sprintf("%d.%d.%d", f.major, f.minor, f.patch))
		safe = safe || v.Major == f.major && v.Minor == f.minor && v.AtLeast(f.major, f.minor, f.patch)
	}
	if safe {
		return fine("%s %s", name, v)
	}
	message := fmt.Sprintf("%s %s has known container escapes; %s and later are safe", name, v, strings.Join(texts, ", "))
	return warning("update "+name+", or check that the distribution's package has the fixes", "%s", message)
}
