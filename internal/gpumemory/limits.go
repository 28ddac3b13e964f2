package gpumemory

import (
	"errors"
	"fmt"
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
	// UUIDs are those of the GPUs.
	UUIDs []string `json:"uuids"`
	// Shim is the process that takes the limits back.
	Shim procfs.ID `json:"shim"`
}

func (r record) name() string { return fmt.Sprintf("gpu-memory-%d.json", r.Inode) }

// records returns all records of this host.
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

// of returns the records of a container.
func (h Host) of(namespace, id string) []record {
	return slices.DeleteFunc(h.records(), func(r record) bool { return r.Namespace != namespace || r.ID != id })
}

// Set sets limits of a container's cgroup and reads them back. After an error the cgroup has the
// limits that it had before. The limits are recorded first, also those that may not be set.
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
	r := record{Cgroup: c, Namespace: namespace, ID: id, Shim: self}
	for _, known := range h.of(namespace, id) {
		if known.Cgroup == c {
			r.UUIDs = known.UUIDs
		}
	}
	var wanted []probe.MemoryLimit
	for _, l := range limits {
		wanted = append(wanted, toProbe(l))
		if !slices.Contains(r.UUIDs, l.UUID) {
			r.UUIDs = append(r.UUIDs, l.UUID)
		}
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

// TakeBack takes back the limits of a container, whose cgroup is about to be removed. Without a
// record it does nothing. The error is probe.ErrCgroupGone if the cgroup was removed before.
func (h Host) TakeBack(namespace, id string) (err error) {
	for _, r := range h.of(namespace, id) {
		err = errors.Join(err, h.takeBack(r))
	}
	return err
}

// takeBack takes the limits of one cgroup back, and removes the record if nothing is left to do.
func (h Host) takeBack(r record) error {
	dir, err := r.Open()
	if err == nil {
		defer dir.Close()
		var none []probe.MemoryLimit
		for _, uuid := range r.UUIDs {
			none = append(none, probe.MemoryLimit{UUID: uuid, Hard: probe.NoMemoryLimit})
		}
		err = probe.SetMemoryLimits(h.Ask, dir, none)
	}
	if err != nil && !hopeless(err) {
		return fmt.Errorf("limits of GPU memory of %s are not taken back: %w", r.Path, err)
	}
	_ = os.Remove(filepath.Join(h.State.Dir(), r.name()))
	if errors.Is(err, probe.ErrCgroupGone) {
		return fmt.Errorf("%w, before its limits of GPU memory were taken back: what it requested stays reserved until the cgroups above are removed", err)
	}
	return nil
}

// hopeless reports whether a later call would fail as well, because nothing is limited.
func hopeless(err error) bool {
	return slices.ContainsFunc([]error{
		probe.ErrCgroupGone, probe.ErrNoMemoryLimits, probe.ErrNotLimitable, probe.ErrNoController, probe.ErrNotCgroup2,
	}, func(cause error) bool { return errors.Is(err, cause) })
}

// Sweep takes back the limits of cgroups without processes whose shim has ended. It returns the
// error of each that is not taken back.
func (h Host) Sweep() (failed []error) {
	for _, r := range h.records() {
		if now, err := procfs.Host.ID(r.Shim.PID); err == nil && now == r.Shim || err != nil && !procfs.HasEnded(err) {
			continue
		}
		dir, err := r.Open()
		if err == nil {
			empty := r.isEmpty(dir)
			dir.Close()
			if !empty {
				continue // the container outlives its shim
			}
		}
		if err := h.takeBack(r); err != nil {
			failed = append(failed, err)
		}
	}
	return failed
}
