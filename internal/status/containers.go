package status

import (
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// StateDirs are the state directories that containerd, k3s and Docker have by default.
var StateDirs = []string{"/run/containerd", "/run/k3s/containerd", "/run/docker/containerd/daemon"}

// tasksDir is where containerd keeps the bundles of its tasks, by namespace and id, below its state
// directory.
const tasksDir = "io.containerd.runtime.v2.task"

// maxRecord is the largest record that is read, in bytes.
const maxRecord = 4 << 20

// Record holds what the shim's record and the bundle say about a container with GPUs.
type Record struct {
	gpuinject.PlanContainer
	// PID is the container's first process; 0 if it has ended or is in a PID namespace that this
	// process does not see.
	PID          int      `json:"pid,omitempty"`
	GPUs         []string `json:"gpus"`
	MIG          []string `json:"mig"`
	Capabilities []string `json:"capabilities"`
	Grant        string   `json:"grant"`
	// Suspended is the time since when the container has been paused without its GPUs.
	Suspended *time.Time `json:"suspended_since,omitempty"`
	// SuspendedMemory is its GPU memory in bytes that is on the host meanwhile.
	SuspendedMemory uint64 `json:"suspended_bytes,omitempty"`
	// SuspendsGPU is true if pausing releases the GPUs.
	SuspendsGPU bool   `json:"-"`
	Bundle      Bundle `json:"-"`

	plan gpuinject.Plan
}

// Bundle is the bundle of a container. containerd keeps it while the container has a task.
type Bundle struct {
	Dir string
	// Root is the daemon's root directory, as seen from here.
	Root string
	// Namespace and ID are containerd's.
	Namespace, ID string

	// foreign is true if its PIDs belong to another PID namespace.
	foreign bool
}

// Bundles lists the bundles beside the working directories of running shims, and those in the state
// directories.
func Bundles(proc procfs.FS, stateDirs []string) []Bundle {
	var list []Bundle
	var found []os.FileInfo
	read := func(root, dir string, foreign bool) {
		namespace, dir := filepath.Base(dir), root+dir
		entries, err := os.ReadDir(dir)
		if err != nil {
			return
		}
		for _, e := range entries {
			b := Bundle{Dir: filepath.Join(dir, e.Name()), Root: root, Namespace: namespace, ID: e.Name(), foreign: foreign}
			info, err := os.Lstat(b.Dir)
			// Most bundles are found in both ways.
			same := func(other os.FileInfo) bool { return os.SameFile(info, other) }
			if err == nil && info.IsDir() && !slices.ContainsFunc(found, same) {
				list, found = append(list, b), append(found, info)
			}
		}
	}
	for _, p := range proc.Named(runtimeclass.ShimName) {
		cwd, err := os.Readlink(proc.Path(p.PID, "cwd")) // the bundle of its first container
		if err == nil && proc.Administers(p.PID) {
			// Through /proc, because the daemon may have mounts of its own, as a node of kind has.
			read(proc.Path(p.PID, "root"), filepath.Dir(cwd), proc.InOtherPIDNamespace(p.PID))
		}
	}
	for _, state := range stateDirs {
		dirs, _ := filepath.Glob(filepath.Join(state, tasksDir, "*")) // a bad pattern matches nothing
		for _, dir := range dirs {
			read("", dir, false)
		}
	}
	return list
}

// Plan reads the shim's record. The error is fs.ErrNotExist if the bundle has none: the container
// gets no GPU, or another runtime made it.
func (b Bundle) Plan() (plan gpuinject.Plan, err error) {
	data, _, err := trusted.Read(filepath.Join(b.Dir, gpuinject.RecordName), maxRecord)
	if err == nil {
		err = json.Unmarshal(data, &plan)
	}
	return plan, err
}

// Container returns the identity of the container from its configuration.
func (b Bundle) Container() (who request.Container, err error) {
	raw, mode, err := bundle.Read(b.Dir)
	if err != nil {
		return who, err
	}
	parsed, err := bundle.Parse(b.Dir, raw, mode)
	if err != nil {
		return who, err
	}
	return request.Read(&parsed.Spec).Container, nil
}

// Read lists the containers that were given GPUs.
func Read(proc procfs.FS, stateDirs []string) []Record {
	var list []Record
	for _, b := range Bundles(proc, stateDirs) {
		if r, ok := b.record(proc); ok {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b Record) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.PodNamespace, b.PodNamespace),
			strings.Compare(a.Pod, b.Pod), strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID))
	})
	return list
}

// record reads the record. ok is false if there is none, or if it grants nothing.
func (b Bundle) record(proc procfs.FS) (r Record, ok bool) {
	plan, err := b.Plan()
	if err != nil || !plan.GPU || plan.Container == nil {
		return r, false
	}
	r = Record{
		PlanContainer: *plan.Container, GPUs: []string{}, MIG: []string{},
		Capabilities: plan.Capabilities, Grant: plan.Grant, plan: plan,
		SuspendsGPU: plan.SuspendsGPU, Bundle: b,
	}
	if text, info, err := trusted.Read(filepath.Join(b.Dir, gpuinject.SuspendedName), maxRecord); err == nil {
		since := time.Unix(info.Mtim.Unix())
		r.Suspended = &since
		r.SuspendedMemory, _ = strconv.ParseUint(string(text), 10, 64) // 0 if unknown
	}
	for _, g := range plan.GPUs {
		r.GPUs = append(r.GPUs, cmp.Or(g.UUID, g.PCI))
	}
	for _, m := range plan.MIG {
		r.MIG = append(r.MIG, cmp.Or(m.UUID, m.Name))
	}
	text, err := os.ReadFile(filepath.Join(b.Dir, "init.pid"))
	if err != nil || b.foreign {
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
