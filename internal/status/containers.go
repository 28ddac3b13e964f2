package status

import (
	"cmp"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

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
	// cgroups are those of the first process by hierarchy, without those of its shim.
	cgroups map[string]string
	// pidNamespace is that of the first process; empty if it is this process' own.
	pidNamespace string
}

// Read lists the containers that were given GPUs: by the bundles of running shims, and by those
// in the state directories.
func Read(proc procfs.FS, stateDirs []string) []Container {
	var list []Container
	seen := map[[2]uint64]bool{}
	read := func(dir, namespace string, foreign bool) {
		var st unix.Stat_t
		if unix.Stat(dir, &st) != nil || seen[[2]uint64{uint64(st.Dev), st.Ino}] { //nolint:unconvert // Dev has 32 bits on some architectures
			return
		}
		seen[[2]uint64{uint64(st.Dev), st.Ino}] = true //nolint:unconvert // as above
		entries, err := os.ReadDir(dir)
		if err != nil {
			return
		}
		for _, e := range entries {
			if c, ok := readBundle(proc, dir+"/"+e.Name(), foreign); ok {
				// A record of an older shim has no names.
				c.ID, c.Namespace = cmp.Or(c.ID, e.Name()), cmp.Or(c.Namespace, namespace)
				list = append(list, c)
			}
		}
	}
	for _, p := range proc.Named(runtimeclass.ShimName) {
		if !proc.Administers(p.PID) {
			continue
		}
		cwd := proc.Path(p.PID, "cwd")
		bundle, err := os.Readlink(cwd)
		if err != nil {
			continue
		}
		_, foreign := proc.PIDNamespace(p.PID)
		// Read through /proc, because the daemon may have mounts of its own, as a node of kind
		// has. filepath.Join would remove "..".
		read(cwd+"/..", filepath.Base(filepath.Dir(bundle)), foreign)
	}
	for _, state := range stateDirs {
		found, err := filepath.Glob(filepath.Join(state, tasksDir, "*"))
		if err != nil {
			continue
		}
		for _, dir := range found {
			read(dir, filepath.Base(dir), false)
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
	if err != nil || json.Unmarshal(data, &c.Plan) != nil || !c.Plan.GPU {
		return c, false
	}
	if c.Plan.Container != nil {
		c.PlanContainer = *c.Plan.Container
	}
	text, err := os.ReadFile(bundle + "/init.pid")
	if err != nil || foreign {
		return c, true
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 1 {
		return c, true
	}
	if c.cgroups, err = proc.Cgroups(pid); err != nil {
		return c, true
	}
	c.PID = pid
	// A container need not have a cgroup in every hierarchy of cgroup v1. In the others it shares
	// that of its shim, in which half of the host may be.
	if shared, err := proc.Cgroups(proc.Parent(pid)); err == nil {
		maps.DeleteFunc(c.cgroups, func(hierarchy, path string) bool { return within(shared[hierarchy], path) })
	}
	if namespace, foreign := proc.PIDNamespace(pid); foreign {
		c.pidNamespace = namespace
	}
	return c, true
}

// within reports whether a cgroup is another one or below it.
func within(path, parent string) bool { return path == parent || strings.HasPrefix(path, parent+"/") }

// owner returns the index of the container that a process belongs to, or -1.
func owner(proc procfs.FS, list []Container, pid int) int {
	cgroups, err := proc.Cgroups(pid)
	if err != nil {
		return -1
	}
	// The innermost one: a container may run a daemon with containers.
	best, longest := -1, 0
	for i, c := range list {
		for hierarchy, path := range c.cgroups {
			if len(path) > longest && within(cgroups[hierarchy], path) {
				best, longest = i, len(path)
			}
		}
	}
	if best >= 0 {
		return best
	}
	// A container whose first process is unknown, by the name of its cgroup: <id>, or
	// <prefix>-<id>.scope of the systemd driver.
	for i, c := range list {
		for _, path := range cgroups {
			if c.PID == 0 && slices.ContainsFunc(strings.Split(path, "/"), func(part string) bool {
				return part == c.ID || strings.HasSuffix(part, "-"+c.ID+".scope")
			}) {
				return i
			}
		}
	}
	// A container without a cgroup of its own.
	namespace, _ := proc.PIDNamespace(pid)
	return slices.IndexFunc(list, func(c Container) bool { return namespace != "" && c.pidNamespace == namespace })
}
