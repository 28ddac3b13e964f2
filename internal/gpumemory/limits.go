package gpumemory

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/memlimit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/fault"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// Host is a host whose containers are limited.
type Host struct {
	State *state.State
	Ask   func(probe.Questions) probe.Answers
}

// record says that a cgroup has, or may have, limits.
type record struct {
	Cgroup
	// Namespace and ID are the container's in containerd.
	Namespace string `json:"namespace"`
	ID        string `json:"id"`
	// Requests are the highest requests that it had, in bytes, by the UUID of each GPU whose memory
	// is limited.
	Requests map[string]uint64 `json:"requests"`
	// Above are the cgroups above, the nearest first, without the root. Requests are in their sums.
	Above []Cgroup `json:"above"`
	// Root is the inode of the root of the hierarchy, in which Path is.
	Root uint64 `json:"root"`
	// Shim is the process that takes the limits back.
	Shim procfs.ID `json:"shim"`
}

func (r record) name() string { return fmt.Sprintf("gpu-memory-%d.json", r.Inode) }

func (h Host) records() (list []record) {
	names, _ := filepath.Glob(filepath.Join(h.State.Dir(), "gpu-memory-*.json"))
	for _, name := range names {
		var r record
		if h.State.Load(filepath.Base(name), &r) {
			list = append(list, r)
		}
	}
	return list
}

func (h Host) of(namespace, id string) []record {
	return slices.DeleteFunc(h.records(), func(r record) bool { return r.Namespace != namespace || r.ID != id })
}

// Set sets limits of a container's cgroup and reads them back. The error is ErrNotOwn if another
// container has limits there. After an error the cgroup has the limits that it had before. The limits are recorded first, also those that may not be set.
func (h Host) Set(c Cgroup, namespace, id string, limits []memlimit.Limit) error {
	if len(limits) == 0 {
		return nil
	}
	dir, err := c.Open()
	if err != nil {
		return err
	}
	defer dir.Close()
	self, err := procfs.Host.ID(os.Getpid())
	if err != nil {
		return err
	}
	r := record{Cgroup: c, Namespace: namespace, ID: id, Shim: self, Requests: map[string]uint64{}}
	if r.Above, err = c.above(); err != nil {
		return err
	}
	if r.Root, err = rootInode(); err != nil {
		return err
	}
	var known record
	if h.State.Load(r.name(), &known) {
		if (known.Namespace != namespace || known.ID != id) && hasShim(known) { // guard: memory: one container for a cgroup
			return fmt.Errorf("%w: %s has the limits of container %.256q", ErrNotOwn, c.Path, known.ID)
		}
		maps.Copy(r.Requests, known.Requests)
	}
	var wanted []probe.MemoryLimit
	for _, l := range limits {
		wanted = append(wanted, toProbe(l))
		r.Requests[l.UUID] = max(r.Requests[l.UUID], l.Request)
	}
	if err := h.State.Store(r.name(), r); err != nil {
		return err
	}
	if err := fault.Point("memory"); err != nil {
		return err
	}
	if err := probe.SetMemoryLimits(h.Ask, dir, wanted); err != nil {
		return err
	}
	return fault.Point("memory-set")
}

func toProbe(l memlimit.Limit) probe.MemoryLimit {
	p := probe.MemoryLimit{UUID: l.UUID, Soft: l.Request, Hard: l.Limit}
	if l.Limit == 0 {
		p.Hard = probe.NoMemoryLimit
	}
	return p
}

// Use returns what the container's cgroup uses of these GPUs, by UUID, where the driver counts it.
func (h Host) Use(c Cgroup, uuids []string) (map[string]uint64, error) {
	dir, err := c.Open()
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	list, err := probe.ReadMemoryLimits(h.Ask, dir, uuids)
	used := map[string]uint64{}
	for _, u := range list {
		used[u.UUID] = u.Used
	}
	return used, err
}

// TakeBack takes back the limits of a container, whose cgroup is about to be removed or was removed.
// Without a record it does nothing. After an error the record stays, and Sweep tries again.
func (h Host) TakeBack(namespace, id string) (err error) {
	for _, r := range h.of(namespace, id) {
		err = errors.Join(err, h.takeBack(r))
	}
	return err
}

// takeBack takes the limits of one cgroup back, and removes the record if nothing is left to do.
func (h Host) takeBack(r record) error {
	err := h.clear(r)
	if errors.Is(err, probe.ErrCgroupGone) {
		err = h.release(r)
	}
	if err != nil && !hopeless(err) {
		return fmt.Errorf("limits of GPU memory of %s are not taken back: %w", r.Path, err)
	}
	if err := fault.Point("memory-cleared"); err != nil {
		return err
	}
	_ = os.Remove(filepath.Join(h.State.Dir(), r.name()))
	return nil
}

func (h Host) clear(r record) error {
	dir, err := r.Open()
	if err != nil {
		return err
	}
	defer dir.Close()
	var none []probe.MemoryLimit
	for _, uuid := range slices.Sorted(maps.Keys(r.Requests)) {
		none = append(none, probe.MemoryLimit{UUID: uuid, Hard: probe.NoMemoryLimit})
	}
	return probe.SetMemoryLimits(h.Ask, dir, none)
}

// release releases what a cgroup requested that was removed: the kernel forgets its limits with it,
// but the cgroups above keep the sums to which the driver has added them.
func (h Host) release(r record) error {
	var requested []probe.MemoryLimit
	for _, uuid := range slices.Sorted(maps.Keys(r.Requests)) {
		if bytes := r.Requests[uuid]; bytes != 0 {
			requested = append(requested, probe.MemoryLimit{UUID: uuid, Soft: bytes, Hard: probe.NoMemoryLimit})
		}
	}
	for _, c := range r.Above {
		dir, err := c.Open()
		if err == nil {
			err = probe.ReleaseMemory(h.Ask, dir, requested)
			dir.Close()
		}
		if !errors.Is(err, probe.ErrCgroupGone) {
			return err
		}
	}
	return nil // with the last one above, its sum is gone
}

// hopeless reports whether a later call would fail as well, because nothing is limited.
func hopeless(err error) bool {
	return slices.ContainsFunc([]error{
		probe.ErrNoMemoryLimits, probe.ErrNotLimitable, probe.ErrNoController,
	}, func(cause error) bool { return errors.Is(err, cause) })
}

// Sweep takes back the limits of cgroups that are gone, and of those without processes whose shim has
// ended. It returns the error of each that is not taken back. A program in another cgroup namespace
// than containerd's, in which other cgroups have these paths, leaves them alone.
func (h Host) Sweep() (failed []error) {
	root, err := rootInode()
	if err != nil {
		return nil
	}
	for _, r := range h.records() {
		if r.Root != root { // guard: memory: not in another cgroup namespace
			continue
		}
		if dir, err := r.Open(); err == nil {
			busy := hasShim(r) || !r.isEmpty(dir) // the container may outlive its shim
			dir.Close()
			if busy {
				continue
			}
		}
		if err := h.takeBack(r); err != nil {
			failed = append(failed, err)
		}
	}
	return failed
}

func hasShim(r record) bool {
	now, err := procfs.Host.ID(r.Shim.PID)
	return err == nil && now == r.Shim || err != nil && !procfs.HasEnded(err)
}
