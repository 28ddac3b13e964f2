package main

import (
	"context"
	"debug/elf"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/nvml"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// lookPath finds a program in containerd's PATH.
func (n *node) lookPath(name string) (string, error) {
	for _, dir := range filepath.SplitList(n.path) {
		p := filepath.Join(dir, name)
		st, err := os.Stat(filepath.Join(n.root, p))
		if err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s is not in containerd's PATH (%s)", name, n.path)
}

func checkShim(_ context.Context, n *node) []finding {
	p, err := n.lookPath(runtimeclass.ShimName)
	if err != nil {
		// A handler with runtime_path does not need it there.
		if n.registeredErr == nil {
			for _, r := range n.registered.Runtimes {
				if r.Ours() && filepath.IsAbs(r.Path) {
					return []finding{n.checkProgram(r.Path)}
				}
			}
		}
		return []finding{problem("nvidia-shimctl install, or put the program into one of these directories", "%v", err)}
	}
	return []finding{n.checkProgram(p)}
}

// checkProgram looks at a shim: a static program for this machine that root alone can
// replace.
func (n *node) checkProgram(p string) finding {
	const fix = "nvidia-shimctl install"
	real := filepath.Join(n.root, p)
	st, err := os.Stat(real)
	if err != nil {
		return problem(fix, "%v", err)
	}
	if st.Mode()&0o111 == 0 {
		return problem("chmod 0755 "+p, "%s is not executable (mode %04o)", p, st.Mode().Perm())
	}
	if st.Mode()&0o022 != 0 {
		return problem("chmod go-w "+p, "%s can be written by others than root (mode %04o)", p, st.Mode().Perm())
	}
	f, err := elf.Open(real)
	if err != nil {
		return problem(fix, "%s is not a program: %v", p, err)
	}
	// Reading needs no error of Close.
	defer func() { _ = f.Close() }()
	self, err := elf.Open("/proc/self/exe")
	if err == nil {
		defer func() { _ = self.Close() }()
		if self.Machine != f.Machine {
			return problem(fix, "%s is a program for %v, this host is %v", p, f.Machine, self.Machine)
		}
	}
	for _, s := range f.Progs {
		if s.Type == elf.PT_INTERP {
			return problem("install a release, or build it with CGO_ENABLED=0", "%s is not static: it would run the host's libraries in every pod's shim", p)
		}
	}
	return fine("%s is in containerd's reach", p)
}

func checkRunc(ctx context.Context, n *node) []finding {
	names := map[string]bool{}
	if n.registeredErr == nil {
		for _, r := range n.registered.Runtimes {
			if !r.Ours() {
				continue
			}
			name, _ := r.Options["BinaryName"].(string)
			if name == "" {
				name = "runc"
			}
			names[name] = true
		}
	}
	if len(names) == 0 {
		names["runc"] = true
	}
	var out []finding
	for _, name := range slices.Sorted(maps.Keys(names)) {
		out = append(out, n.checkRuntimeProgram(ctx, name))
	}
	return out
}

func (n *node) checkRuntimeProgram(ctx context.Context, name string) finding {
	p := name
	if !filepath.IsAbs(name) {
		var err error
		if p, err = n.lookPath(name); err != nil {
			return problem("install "+name, "%v: no container can start", err)
		}
	}
	text, err := n.execute(ctx, filepath.Join(n.root, p), "--version")
	if err != nil {
		return problem("install a working "+name, "%v", err)
	}
	first, _, _ := strings.Cut(text, "\n")
	if !strings.HasPrefix(first, "runc ") {
		return fine("%s", first)
	}
	v, err := runtimeclass.ParseVersion(first)
	if err != nil {
		return problem("install a released runc", "%v", err)
	}
	return belowFloor("runc", v, []floor{{1, 3, 6}, {1, 4, 3}, {1, 5, 0}})
}

// checkProbe looks at the program beside the shim that asks the kubelet and NVML for
// it, and has it ask NVML.
func checkProbe(ctx context.Context, n *node) []finding {
	shim, err := n.lookPath(runtimeclass.ShimName)
	if err != nil {
		return nil // the check of the shim says it
	}
	p := path.Join(path.Dir(shim), runtimeclass.CtlName)
	real := filepath.Join(n.root, p)
	var st unix.Stat_t
	if err := unix.Stat(real, &st); err != nil {
		return []finding{problem("nvidia-shimctl install", "%s is not beside the shim: pods whose allocation only the kubelet knows do not start: %v", p, err)}
	}
	if st.Uid != 0 || st.Mode&0o022 != 0 {
		return []finding{problem("chown root "+p+" and chmod go-w it", "%s can be changed by others than root, and the shim does not run it", p)}
	}
	if inv, _, _ := n.host(); inv == nil || inv.Platform != "" {
		return []finding{fine("%s is beside the shim", p)}
	}
	args := []string{"probe", "nvml", "--timeout=" + (versionTimeout * 8 / 10).String()}
	if n.configName != "" {
		args = append([]string{"--config=" + n.configName}, args...)
	}
	const needs = "what only NVML knows is not known: MIG devices by UUID, and images that require an architecture or a brand, are refused"
	switch _, err := n.execute(ctx, real, args...); {
	case err == nil:
		return []finding{fine("%s asks NVML", p)}
	case strings.Contains(err.Error(), nvml.ErrNoCgo.Error()):
		return []finding{warning("make build with CTL_CGO=1, on a host with the C library of this one or an older one", "%s was built without cgo: %s", p, needs)}
	default:
		return []finding{warning("see that nvidia-smi works on this host", "%s; %s", oneLine(err), needs)}
	}
}

// floor is the first safe version of a release line.
type floor struct{ major, minor, patch int }

// belowFloor compares a version with the floor of its line; lines after the last are
// safe, those before the first are not.
func belowFloor(name string, v runtimeclass.Version, floors []floor) finding {
	texts := make([]string, len(floors))
	for i, f := range floors {
		texts[i] = fmt.Sprintf("%d.%d.%d", f.major, f.minor, f.patch)
	}
	safe := strings.Join(texts, ", ")
	for i := len(floors) - 1; i >= 0; i-- {
		f := floors[i]
		// A pre-release of a line is not its release.
		inLine := v.Major == f.major && v.Minor == f.minor
		if inLine && v.AtLeast(f.major, f.minor, f.patch) || i == len(floors)-1 && !inLine && v.AtLeast(f.major, f.minor+1, 0) {
			return fine("%s %s", name, v)
		}
		if inLine {
			break
		}
	}
	message := fmt.Sprintf("%s %s has known ways out of a container; safe are %s and later", name, v, safe)
	fix := "update " + name
	if v.Distribution() {
		return warning("see whether the distribution's package carries the fixes, or "+fix, "%s", message)
	}
	return problem(fix, "%s", message)
}
