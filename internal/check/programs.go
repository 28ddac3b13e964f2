package check

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/go-runc"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/nvml"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

const fixInstall = "nvidia-shimctl install"

func checkShim(ctx context.Context, n *node) []Finding {
	p, err := n.lookPath(runtimeclass.ShimName)
	if err == nil {
		return one(checkProgram(ctx, n, p))
	}
	for _, r := range n.handlers() {
		// A handler with runtime_path does not need it in PATH.
		if filepath.IsAbs(r.Path) {
			return one(checkProgram(ctx, n, r.Path))
		}
	}
	return one(problem("nvidia-shimctl install, or put the program into one of these directories", "%v", err))
}

// checkProgram checks a shim: it has to start, and root alone may be able to replace it.
func checkProgram(ctx context.Context, n *node, p string) Finding {
	st, err := os.Stat(n.real(p))
	if err != nil {
		return problem(fixInstall, "%v", err)
	}
	if st.Mode()&0o022 != 0 {
		return problem("chmod go-w "+p, "%s can be written by others than root (mode %04o)", p, st.Mode().Perm())
	}
	if _, err := output(ctx, n.real(p), "-v"); err != nil {
		return problem(fixInstall, "%v", err)
	}
	return fine("%s is in containerd's reach", p)
}

// checkRunc checks the runc of each handler.
func checkRunc(ctx context.Context, n *node) []Finding {
	names := map[string]bool{}
	for _, r := range n.handlers() {
		name, _ := r.Options["BinaryName"].(string)
		names[cmp.Or(name, "runc")] = true
	}
	if len(names) == 0 {
		names["runc"] = true
	}
	var list []Finding
	for _, name := range slices.Sorted(maps.Keys(names)) {
		list = append(list, checkRuntime(ctx, n, name))
	}
	return list
}

func checkRuntime(ctx context.Context, n *node, name string) Finding {
	p := name
	if !filepath.IsAbs(name) {
		var err error
		if p, err = n.lookPath(name); err != nil {
			return problem("install "+name, "%v: no container can start", err)
		}
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
	v, err := runtimeclass.ParseVersion(text.Runc)
	if err != nil {
		return problem("install a released runc", "%s: %v", p, err)
	}
	return checkFloor("runc", v, []floor{{1, 3, 6}, {1, 4, 3}, {1, 5, 0}})
}

// checkProbe checks the nvidia-shimctl beside the shim, which asks the kubelet and NVML for it.
func checkProbe(ctx context.Context, n *node) []Finding {
	shim, err := n.lookPath(runtimeclass.ShimName)
	if err != nil {
		return nil // checkShim reports it
	}
	p := filepath.Join(filepath.Dir(shim), runtimeclass.CtlName)
	var st unix.Stat_t
	if err := unix.Stat(n.real(p), &st); err != nil {
		return one(problem(fixInstall, "%s is not beside the shim: pods whose allocation only the kubelet knows do not start: %v", p, err))
	}
	if st.Uid != 0 || st.Mode&0o022 != 0 {
		return one(problem("chown root "+p+" and chmod go-w it", "%s can be changed by others than root, and the shim does not run it", p))
	}
	if n.gpus == nil || n.gpus.Platform != "" {
		return one(fine("%s is beside the shim", p))
	}
	args := []string{"probe", "--timeout=" + (programTimeout * 8 / 10).String()}
	if n.Config != "" {
		args = append([]string{"--config=" + n.Config}, args...)
	}
	_, err = output(ctx, n.real(p), args...)
	const refused = "MIG devices by UUID, and images that require an architecture or a brand, are refused"
	switch {
	case err == nil:
		return one(fine("%s asks NVML", p))
	case strings.Contains(err.Error(), nvml.ErrNoCgo.Error()):
		return one(warning("make build with CTL_CGO=1, on a host with the C library of this one or an older one", "%s was built without cgo and cannot ask NVML: %s", p, refused))
	}
	return one(warning("check that nvidia-smi works on this host", "%v; without NVML, %s", err, refused))
}

// floor is the first safe version of a release line.
type floor struct{ major, minor, patch int }

// checkFloor compares a version with the floor of its line. Lines after the last one are safe,
// lines between and before them are not.
func checkFloor(name string, v runtimeclass.Version, floors []floor) Finding {
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
	message := fmt.Sprintf("%s %s has known ways out of a container; %s and later are safe", name, v, strings.Join(texts, ", "))
	if v.Distribution() {
		return warning("check whether the distribution's package has the fixes, or update "+name, "%s", message)
	}
	return problem("update "+name, "%s", message)
}
