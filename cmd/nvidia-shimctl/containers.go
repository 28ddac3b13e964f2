package main

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
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// tasksName is where containerd keeps the bundles of its tasks, by namespace and id,
// below its state directory.
const tasksName = "io.containerd.runtime.v2.task"

// stateDirs are the state directories that daemons have by default.
var stateDirs = []string{"/run/containerd", "/run/k3s/containerd", "/run/docker/containerd/daemon"}

// gpuContainer is a container that the shim gave something of the driver.
type gpuContainer struct {
	gpuinject.PlanContainer
	plan gpuinject.Plan
	// init is the container's first process; 0 where there is none, or where it is of
	// another PID namespace than this process.
	init int
	// paths are init's cgroups that its shim is not in, by hierarchy.
	paths map[string]string
	// pidNamespace is init's where it is not this process' own.
	pidNamespace string
}

// containers reads the records that the shim left in bundles: in those beside the
// working directory of every running shim, and in those of the state directories.
func (proc procfs) containers(states []string) []gpuContainer {
	type place struct {
		dir, namespace string
		// foreign: PIDs in there are of another PID namespace.
		foreign bool
	}
	var places []place
	seen := map[[2]uint64]bool{}
	add := func(dir, namespace string, foreign bool) {
		var st unix.Stat_t
		if unix.Stat(dir, &st) != nil || seen[[2]uint64{uint64(st.Dev), st.Ino}] { //nolint:unconvert // 32 bits on some architectures
			return
		}
		seen[[2]uint64{uint64(st.Dev), st.Ino}] = true //nolint:unconvert // as above
		places = append(places, place{dir, namespace, foreign})
	}
	own, _ := os.Readlink(proc.of("self", "ns/pid"))
	isShim := func(dir string) bool {
		program, err := executed(dir)
		return err == nil && filepath.Base(program) == runtimeclass.ShimName && proc.administers(dir)
	}
	for _, p := range proc.processes(isShim) {
		dir := proc.of(strconv.Itoa(p.pid), "")
		theirs, err := os.Readlink(filepath.Join(dir, "ns/pid"))
		// By way of the process: its daemon may have mounts of its own, as a node of
		// kind has. Not joined, because ".." is the parent of what the link leads to.
		bundle, _ := os.Readlink(dir + "/cwd")
		add(dir+"/cwd/..", filepath.Base(filepath.Dir(bundle)), err != nil || theirs != own)
	}
	for _, state := range states {
		found, _ := filepath.Glob(filepath.Join(state, tasksName, "*"))
		for _, dir := range found {
			add(dir, filepath.Base(dir), false)
		}
	}
	var list []gpuContainer
	for _, p := range places {
		entries, _ := os.ReadDir(p.dir)
		for _, e := range entries {
			if c, ok := proc.container(p.dir, e.Name(), p.foreign); ok {
				// A shim of an older build wrote no names.
				c.Namespace = cmp.Or(c.Namespace, p.namespace)
				list = append(list, c)
			}
		}
	}
	slices.SortFunc(list, func(a, b gpuContainer) int {
		return strings.Compare(a.Namespace+"\x00"+a.PodNamespace+"\x00"+a.Pod+"\x00"+a.Name+"\x00"+a.ID, b.Namespace+"\x00"+b.PodNamespace+"\x00"+b.Pod+"\x00"+b.Name+"\x00"+b.ID)
	})
	return list
}

// maxRecord bounds a record, in bytes. It is read as root, and lies where root alone
// writes.
const maxRecord = 4 << 20

// container reads one bundle, which may have gone meanwhile or have no record.
func (proc procfs) container(dir, id string, foreign bool) (c gpuContainer, ok bool) {
	bundle := dir + "/" + id
	info, err := os.Lstat(bundle + "/" + gpuinject.RecordName)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxRecord {
		return c, false
	}
	data, err := os.ReadFile(bundle + "/" + gpuinject.RecordName)
	if err != nil || json.Unmarshal(data, &c.plan) != nil || !c.plan.GPU {
		return c, false
	}
	c.PlanContainer = gpuinject.PlanContainer{ID: id}
	if c.plan.Container != nil {
		c.PlanContainer = *c.plan.Container
	}
	if foreign {
		return c, true
	}
	text, err := os.ReadFile(bundle + "/init.pid")
	if err != nil {
		return c, true
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 1 {
		return c, true
	}
	paths, err := proc.cgroups(pid)
	if err != nil {
		return c, true // ended
	}
	// Of cgroup v1 beside v2 the container need not have a cgroup in each hierarchy;
	// where it has not, it is where its shim is, with half of the host.
	if shared, err := proc.cgroups(proc.parent(pid)); err == nil {
		maps.DeleteFunc(paths, func(hierarchy, path string) bool {
			return shared[hierarchy] == path || strings.HasPrefix(shared[hierarchy], path+"/")
		})
	}
	c.init, c.paths = pid, paths
	namespace, _ := os.Readlink(proc.of(strconv.Itoa(pid), "ns/pid"))
	if own, _ := os.Readlink(proc.of("self", "ns/pid")); namespace != own {
		c.pidNamespace = namespace
	}
	return c, true
}

// owner is the container that a process belongs to; nil where it is none of list.
func (proc procfs) owner(list []gpuContainer, pid int) *gpuContainer {
	paths, err := proc.cgroups(pid)
	if err != nil {
		return nil
	}
	// The innermost: a container may run a daemon with containers.
	var best *gpuContainer
	longest := 0
	for i := range list {
		for hierarchy, path := range list[i].paths {
			theirs := paths[hierarchy]
			if len(path) > longest && (theirs == path || strings.HasPrefix(theirs, path+"/")) {
				best, longest = &list[i], len(path)
			}
		}
	}
	if best != nil {
		return best
	}
	// A container whose first process is not known, by the name of its cgroup.
	for i := range list {
		for _, path := range paths {
			if list[i].init == 0 && namesContainer(path, list[i].ID) {
				return &list[i]
			}
		}
	}
	// One without a cgroup of its own.
	namespace, err := os.Readlink(proc.of(strconv.Itoa(pid), "ns/pid"))
	for i := range list {
		if err == nil && namespace != "" && list[i].pidNamespace == namespace {
			return &list[i]
		}
	}
	return nil
}

// namesContainer tells whether a part of a cgroup's path is a container's: <id>, or
// <prefix>-<id>.scope of the systemd driver.
func namesContainer(path, id string) bool {
	for part := range strings.SplitSeq(path, "/") {
		scope, isScope := strings.CutSuffix(part, ".scope")
		if part == id || isScope && strings.HasSuffix(scope, "-"+id) {
			return true
		}
	}
	return false
}
