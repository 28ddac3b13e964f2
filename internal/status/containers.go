package status

import (
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// StateDirs are the state directories that containerd, k3s and Docker have by default.
var StateDirs = []string{"/run/containerd", "/run/k3s/containerd", "/run/docker/containerd/daemon"}

// tasksDir is where containerd keeps the bundles of its tasks, by namespace and id, below its state
// directory.
const tasksDir = "io.containerd.runtime.v2.task"

// maxRecord is the largest record that is read, in bytes.
const maxRecord = 4 << 20

// Container is a container that was given GPUs.
type Container struct {
	gpuinject.PlanContainer
	// Plan is the record of the shim.
	Plan gpuinject.Plan
	// PID is the container's first process; 0 if it has ended or is in a PID namespace that this
	// process does not see.
	PID int
}

// Read lists the containers that were given GPUs: by the bundles of running shims, and by those
// in the state directories.
func Read(proc procfs.FS, stateDirs []string) []Container {
	var list []Container
	// Most are found in two ways.
	seen := map[string]bool{}
	read := func(dir string, foreign bool) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return
		}
		for _, e := range entries {
			c, ok := readBundle(proc, dir+"/"+e.Name(), foreign)
			if ok && !seen[c.Namespace+"/"+c.ID] {
				seen[c.Namespace+"/"+c.ID] = true
				list = append(list, c)
			}
		}
	}
	for _, p := range proc.Named(runtimeclass.ShimName) {
		if !proc.Administers(p.PID) {
			continue
		}
		cwd := proc.Path(p.PID, "cwd")
		// Read through /proc, because the daemon may have mounts of its own, as a node of kind
		// has. filepath.Join would remove "..".
		read(cwd+"/..", proc.InOtherPIDNamespace(p.PID))
	}
	for _, state := range stateDirs {
		found, err := filepath.Glob(filepath.Join(state, tasksDir, "*"))
		if err != nil {
			continue
		}
		for _, dir := range found {
			read(dir, false)
		}
	}
	slices.SortFunc(list, func(a, b Container) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.PodNamespace, b.PodNamespace),
			strings.Compare(a.Pod, b.Pod), strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID))
	})
	return list
}

// readBundle reads the record in a bundle. ok is false if it has none, or grants nothing. foreign
// says that the PIDs in it are of another PID namespace.
func readBundle(proc procfs.FS, bundle string, foreign bool) (c Container, ok bool) {
	name := bundle + "/" + gpuinject.RecordName
	info, err := os.Lstat(name)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxRecord {
		return c, false
	}
	data, err := os.ReadFile(name)
	if err != nil || json.Unmarshal(data, &c.Plan) != nil || !c.Plan.GPU || c.Plan.Container == nil {
		return c, false
	}
	c.PlanContainer = *c.Plan.Container
	text, err := os.ReadFile(bundle + "/init.pid")
	if err != nil || foreign {
		return c, true
	}
	if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && pid > 1 && proc.Comm(pid) != "" {
		c.PID = pid
	}
	return c, true
}

// owner returns the index of the container that a process belongs to, or -1. Daemons name a
// container's cgroup by its id: <id>, or <prefix>-<id>.scope with the systemd driver.
func owner(proc procfs.FS, list []Container, pid int) int {
	best, depth := -1, -1
	for _, path := range proc.Cgroups(pid) {
		for i, part := range strings.Split(path, "/") {
			// The innermost one: a container may run a daemon with containers.
			found := slices.IndexFunc(list, func(c Container) bool {
				return part == c.ID || strings.HasSuffix(part, "-"+c.ID+".scope")
			})
			if found >= 0 && i > depth {
				best, depth = found, i
			}
		}
	}
	return best
}
