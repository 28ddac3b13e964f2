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

// Record holds what the shim's record and the bundle tell about a container with GPUs.
type Record struct {
	gpuinject.PlanContainer
	// PID is the container's first process; 0 if it has ended or is in a PID namespace that this
	// process does not see.
	PID          int      `json:"pid,omitempty"`
	GPUs         []string `json:"gpus"`
	MIG          []string `json:"mig"`
	Capabilities []string `json:"capabilities"`
	Grant        string   `json:"grant"`

	plan gpuinject.Plan
}

// Read lists the containers that were given GPUs: by the bundles of running shims, and by those
// in the state directories.
func Read(proc procfs.FS, stateDirs []string) []Record {
	var list []Record
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
		if proc.Administers(p.PID) {
			// Read through /proc, because the daemon may have mounts of its own, as a node of kind
			// has. filepath.Join would remove "..".
			read(proc.Path(p.PID, "cwd")+"/..", proc.InOtherPIDNamespace(p.PID))
		}
	}
	for _, state := range stateDirs {
		found, _ := filepath.Glob(filepath.Join(state, tasksDir, "*")) // a bad pattern matches nothing
		for _, dir := range found {
			read(dir, false)
		}
	}
	slices.SortFunc(list, func(a, b Record) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.PodNamespace, b.PodNamespace),
			strings.Compare(a.Pod, b.Pod), strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID))
	})
	return list
}

// readBundle reads the record in a bundle. ok is false if it has none, or grants nothing. foreign
// says that the PIDs in it are of another PID namespace.
func readBundle(proc procfs.FS, bundle string, foreign bool) (r Record, ok bool) {
	name := bundle + "/" + gpuinject.RecordName
	info, err := os.Lstat(name)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxRecord {
		return r, false
	}
	var plan gpuinject.Plan
	data, err := os.ReadFile(name)
	if err != nil || json.Unmarshal(data, &plan) != nil || !plan.GPU || plan.Container == nil {
		return r, false
	}
	r = Record{
		PlanContainer: *plan.Container, GPUs: []string{}, MIG: []string{},
		Capabilities: plan.Capabilities, Grant: plan.Grant, plan: plan,
	}
	for _, g := range plan.GPUs {
		r.GPUs = append(r.GPUs, cmp.Or(g.UUID, g.PCI))
	}
	for _, m := range plan.MIG {
		r.MIG = append(r.MIG, cmp.Or(m.UUID, m.Name))
	}
	text, err := os.ReadFile(bundle + "/init.pid")
	if err != nil || foreign {
		return r, true
	}
	if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && pid > 1 && proc.Comm(pid) != "" {
		r.PID = pid
	}
	return r, true
}

// owner returns the id of the container that a process belongs to, or "". Daemons name a
// container's cgroup by its id: <id>, or <prefix>-<id>.scope with the systemd driver.
func owner(proc procfs.FS, records []Record, pid int) (id string) {
	depth := -1
	for _, path := range proc.Cgroups(pid) {
		for i, part := range strings.Split(path, "/") {
			// The innermost one: a container may run a daemon with containers.
			found := slices.IndexFunc(records, func(r Record) bool {
				return part == r.ID || strings.HasSuffix(part, "-"+r.ID+".scope")
			})
			if found >= 0 && i > depth {
				id, depth = records[found].ID, i
			}
		}
	}
	return id
}
