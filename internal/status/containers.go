package status

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// StateDirs are the state directories that the containerds of the daemons have by default.
var StateDirs = stateDirs()

func stateDirs() (dirs []string) {
	for _, d := range runtimeclass.Daemons() {
		if d.State != "" && !slices.Contains(dirs, d.State) {
			dirs = append(dirs, d.State)
		}
	}
	return dirs
}

// tasksDir is where containerd keeps the bundles of its tasks, by namespace and id, below its state
// directory.
const tasksDir = "io.containerd.runtime.v2.task"

// Limits of what is read, because the root of a node of kind belongs to a container: bundles of a
// namespace and namespaces of a state directory, bytes of a file, and of all records.
const (
	maxBundles = 4096
	maxRecord  = 4 << 20
	maxRecords = 256 << 20
)

// Source says which containers are listed.
type Source struct {
	// Proc is the procfs of this host.
	Proc procfs.FS
	// Root is "/" for the containers of this host. Those of another root, such as that of a node of
	// kind, are listed only if the operator names it, because root of that container writes the records.
	Root string
	// StateDirs are state directories of containerd below Root.
	StateDirs []string
}

func (s Source) foreign() bool { return filepath.Clean(s.Root) != "/" }

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
	// cgroup is the directory of its cgroup, "" if the driver counts nothing for it.
	cgroup string
}

// Plan returns the shim's record.
func (r Record) Plan() gpuinject.Plan { return r.plan }

// Bundle is the bundle of a container. containerd keeps it while the container has a task.
type Bundle struct {
	// Dir is a path below the root of Tree.
	Dir  string
	Tree hosttree.Tree
	// Namespace and ID are containerd's.
	Namespace, ID string
}

// Bundles lists the bundles in the state directories, and, on this host, those beside the working
// directories of running shims.
func (s Source) Bundles() []Bundle {
	tree := hosttree.Tree{Root: s.Root}
	var dirs []string
	if !s.foreign() {
		for _, p := range s.Proc.Running(version.Shim) {
			if cwd, err := os.Readlink(s.Proc.Path(p.PID, "cwd")); err == nil { // the bundle of its first container
				dirs = append(dirs, filepath.Dir(cwd))
			}
		}
	}
	for _, state := range s.StateDirs {
		for _, namespace := range sortedNames(tree, filepath.Join(state, tasksDir)) {
			dirs = append(dirs, filepath.Join(state, tasksDir, namespace))
		}
	}
	var list []Bundle
	found := map[[2]uint64]bool{} // most bundles are found in both ways
	for _, dir := range dirs {
		for _, id := range sortedNames(tree, dir) {
			b := Bundle{Dir: filepath.Join(dir, id), Tree: tree, Namespace: filepath.Base(dir), ID: id}
			f, st, err := tree.OpenPath(b.Dir)
			if err != nil {
				continue
			}
			f.Close()
			key := [2]uint64{st.Dev, st.Ino}
			if st.Mode&unix.S_IFMT == unix.S_IFDIR && !found[key] {
				found[key], list = true, append(list, b)
			}
		}
	}
	return list
}

func sortedNames(tree hosttree.Tree, dir string) []string {
	names, _ := tree.ReadDir(dir, maxBundles) // there may be none
	slices.Sort(names)
	return names
}

// Read reads a file of the bundle.
func (b Bundle) Read(name string) ([]byte, unix.Stat_t, error) {
	return b.Tree.ReadRegular(filepath.Join(b.Dir, name), maxRecord)
}

// readOwned reads a file of the bundle that only root can change.
func (b Bundle) readOwned(name string) ([]byte, unix.Stat_t, error) {
	data, st, err := b.Read(name)
	if err == nil {
		if err = trusted.File(&st); err != nil { // guard: records: owner
			err = fmt.Errorf("%s %w", filepath.Join(b.Dir, name), err)
		}
	}
	return data, st, err
}

// Plan reads the shim's record. The error is fs.ErrNotExist if the bundle has none: the container
// gets no GPU, or another runtime made it.
func (b Bundle) Plan() (plan gpuinject.Plan, err error) {
	plan, _, err = b.readPlan()
	return plan, err
}

func (b Bundle) readPlan() (plan gpuinject.Plan, size int, err error) {
	data, _, err := b.readOwned(gpuinject.RecordName)
	if err == nil {
		err = json.Unmarshal(data, &plan)
	}
	return plan, len(data), err
}

// Suspended returns since when the container has been paused without its GPUs, nil if it is not, and
// its GPU memory in bytes that is on the host meanwhile, 0 if that is unknown.
func (b Bundle) Suspended() (since *time.Time, memory uint64) {
	text, st, err := b.readOwned(gpuinject.SuspendedName)
	if err != nil {
		return nil, 0
	}
	when := time.Unix(st.Mtim.Unix())
	memory, _ = strconv.ParseUint(string(text), 10, 64)
	return &when, memory
}

// Container returns the identity of the container from its configuration.
func (b Bundle) Container() (who request.Container, err error) {
	dir, _, err := b.Tree.OpenPath(b.Dir)
	if err != nil {
		return who, err
	}
	defer dir.Close()
	raw, mode, err := bundle.Read(hosttree.Path(dir))
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
func (s Source) Read() []Record {
	var list []Record
	total := 0
	for _, b := range s.Bundles() {
		plan, size, err := b.readPlan()
		if total += size; total > maxRecords {
			break
		}
		if err == nil && plan.GPU && plan.Container != nil {
			list = append(list, s.record(b, plan))
		}
	}
	slices.SortFunc(list, func(a, b Record) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.PodNamespace, b.PodNamespace),
			strings.Compare(a.Pod, b.Pod), strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID))
	})
	return list
}

// record returns what the bundle of a container with GPUs says.
func (s Source) record(b Bundle, plan gpuinject.Plan) Record {
	r := Record{
		PlanContainer: *plan.Container, GPUs: []string{}, MIG: []string{},
		Capabilities: plan.Capabilities, Grant: plan.Grant, plan: plan,
		SuspendsGPU: plan.SuspendsGPU, Bundle: b,
	}
	r.Suspended, r.SuspendedMemory = b.Suspended()
	for _, g := range plan.GPUs {
		r.GPUs = append(r.GPUs, cmp.Or(g.UUID, g.PCI))
	}
	for _, m := range plan.MIG {
		r.MIG = append(r.MIG, cmp.Or(m.UUID, m.Name))
	}
	text, _, err := b.Read("init.pid")
	if err != nil || s.foreign() {
		return r
	}
	if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && pid > 1 && s.Proc.Comm(pid) != "" {
		r.PID, r.cgroup = pid, cgroupOf(s.Proc.Cgroups(pid)[""], r.ID)
	}
	return r
}

// cgroupRoot is the hierarchy of cgroup v2. A variable for the tests.
var cgroupRoot = "/sys/fs/cgroup"

// cgroupOf returns the directory of the cgroup that is named by the id of a container, if path is that
// of a process in it, or "". Without the files of the kernel's controller dmem, where the kernel has
// it, the driver would return what a cgroup above uses.
func cgroupOf(path, id string) (dir string) {
	parts := strings.Split(path, "/")
	i := slices.IndexFunc(parts, func(part string) bool { return isCgroupOf(part, id) })
	if i < 0 || slices.Contains(parts, "..") {
		return ""
	}
	dir = filepath.Join(cgroupRoot, filepath.Join(parts[:i+1]...))
	_, has := os.Lstat(filepath.Join(cgroupRoot, "dmem.capacity"))
	if _, err := os.Lstat(filepath.Join(dir, "dmem.max")); has == nil && err != nil {
		return ""
	}
	return dir
}

// isCgroupOf reports whether a cgroup has the name that daemons give that of a container.
func isCgroupOf(name, id string) bool { return name == id || strings.HasSuffix(name, "-"+id+".scope") }

// Cgroups returns the directories of the containers' cgroups, for which Join needs what NVML says.
func Cgroups(records []Record) (dirs []string) {
	for _, r := range records {
		if r.cgroup != "" {
			dirs = append(dirs, r.cgroup)
		}
	}
	return dirs
}

// Owner returns the id of the container that a process belongs to, or "". Daemons name a
// container's cgroup by its id: <id>, or <prefix>-<id>.scope with the systemd driver.
func Owner(proc procfs.FS, records []Record, pid int) (id string) {
	depth := -1
	for _, path := range proc.Cgroups(pid) {
		for i, part := range strings.Split(path, "/") {
			// The innermost one: a container may run a daemon with containers.
			found := slices.IndexFunc(records, func(r Record) bool { return isCgroupOf(part, r.ID) })
			if found >= 0 && i > depth {
				id, depth = records[found].ID, i
			}
		}
	}
	return id
}
