//go:build cgo

package nvml

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// Suspend moves the GPU memory of the processes in q.Suspend that have a CUDA context to the host.
// It returns these processes and their memory. It locks all of them before it moves the memory of
// the first. It is an error if a process still uses a GPU afterwards, and if NVML does not say so
// for each GPU in q.GPUs. After an error some processes may be suspended: Resume continues them.
func Suspend(host config.Host, q probe.Questions) (moved []int, memory probe.Memory, err error) {
	memory = probe.Memory{}
	moved, err = withCheckpointer(host, q, func(c *checkpointer) ([]int, error) {
		list, err := c.processes(q.Suspend)
		defer closeAll(list)
		if err == nil {
			err = c.each(list, running, "Lock")
		}
		if err == nil {
			err = addUsed(host, q, memory)
		}
		if err == nil {
			err = reserveHostMemory(host, memory)
		}
		if err == nil {
			err = c.each(list, locked, "Checkpoint")
		}
		if err == nil {
			err = eachUse(host, q, func(d gpuDevice, p Process) error {
				isKnown := func(known cudaProcess) bool { return known.PID == p.PID }
				if _, rc := c.state(cudaProcess{procfs.ID{PID: p.PID}, -1}); rc == 0 && !slices.ContainsFunc(list, isKnown) {
					return nil // it has begun since: the caller tries again
				}
				return fmt.Errorf("process %d still uses GPU %d (type %s): only CUDA gives it back, graphics does not", p.PID, d.index, p.Type)
			})
		}
		return pids(list), err
	})
	return moved, memory, err
}

func addUsed(host config.Host, q probe.Questions, memory probe.Memory) error {
	return eachUse(host, q, func(d gpuDevice, p Process) error {
		if p.Memory == nil { // guard: probe: memory known
			return fmt.Errorf("NVML does not report how much memory process %d has on GPU %d", p.PID, d.index)
		}
		if memory[p.PID] == nil {
			memory[p.PID] = map[string]uint64{}
		}
		memory[p.PID][d.uuid] = *p.Memory
		return nil
	})
}

// Resume moves the GPU memory of the suspended processes in q.Resume back, if q.Needs is free, and
// lets them continue. It accepts processes in any state. If q.Wait is true they are frozen: it
// calls ready before it touches them, and fails before that if it can.
func Resume(host config.Host, q probe.Questions, ready func() error) ([]int, error) {
	return withCheckpointer(host, q, func(c *checkpointer) ([]int, error) {
		c.placement = q.Placement
		if q.Wait { // all of them are suspended
			if err := reserveGPUMemory(host, q, q.Resume); err != nil {
				return nil, err
			}
		}
		if err := ready(); err != nil {
			return nil, err
		}
		list, err := c.processes(q.Resume)
		defer closeAll(list)
		if err == nil && !q.Wait {
			err = reserveGPUMemory(host, q, c.suspended(list))
		}
		if err == nil {
			err = c.each(list, checkpointed, "Restore")
		}
		if err == nil {
			err = c.each(list, locked, "Unlock")
		}
		return pids(list), err
	})
}

// reserveGPUMemory returns an error if a device has less free memory than the suspended processes
// need, or is of another model than the one that they used. If the driver finds too little memory
// for a process, it cannot restore that process later either. The memory stays reserved until this
// process ends.
func reserveGPUMemory(host config.Host, q probe.Questions, suspended []procfs.ID) error {
	sum := map[string]uint64{}
	for _, id := range suspended {
		for uuid, bytes := range q.Needs[id.PID] {
			sum[cmp.Or(q.Placement[uuid], uuid)] += bytes
		}
	}
	if len(sum) == 0 {
		return nil
	}
	list, err := devices(host, q.GPUs)
	if err == nil {
		err = sameKind(list, q.Placement)
	}
	if err != nil {
		return err
	}
	others, err := inheritedReservation(host).take(sum)
	if err != nil {
		return err
	}
	for _, d := range list {
		need := sum[d.uuid]
		if need == 0 {
			continue
		}
		if d.err != nil {
			return d.err
		}
		// A GPU that shares the host's memory need not report how much is free.
		if free := d.Memory.Free; free != nil && *free-min(*free, others[d.uuid]) < need {
			return fmt.Errorf("%d MiB of GPU %d are free and %d MiB are needed: free memory, then resume again%s", *free>>20, d.index, need>>20, promised(others[d.uuid]))
		}
		delete(sum, d.uuid)
	}
	for _, uuid := range slices.Sorted(maps.Keys(sum)) {
		return fmt.Errorf("NVML does not list GPU %s, on which the processes had memory", uuid)
	}
	return nil
}

// gpuDevice is a GPU or a MIG device; index and address are those of the GPU.
type gpuDevice struct {
	State
	uuid, model, address string
	index                int
	// err says why NVML's answer is incomplete, if the processes may use the GPU.
	err error
}

// devices returns NVML's devices. It is an error if there is none of the GPUs with these PCI
// addresses, or of any GPU if there are no addresses.
func devices(host config.Host, addresses []string) (list []gpuDevice, err error) {
	path, err := libraryPath(host, nvmlName)
	if err != nil {
		return nil, err
	}
	s, err := withLibrary(path, true, nil)
	if err == nil && len(addresses) == 0 && s.Error != "" {
		err = errors.New(s.Error)
	}
	if err != nil {
		return nil, err
	}
	for _, g := range s.GPUs {
		d := gpuDevice{g.State, g.Facts.UUID, g.Facts.Name, g.Facts.BusID, g.Facts.Index, nil}
		mayUse := len(addresses) == 0 || slices.Contains(addresses, d.address)
		switch {
		case mayUse && g.Error != "":
			d.err = fmt.Errorf("GPU %d: %s", d.index, g.Error)
		case mayUse && d.unlisted != "": // guard: probe: processes listed
			d.err = fmt.Errorf("NVML does not list the %s of GPU %d: this GPU or driver does not support it", d.unlisted, d.index)
		}
		list = append(list, d)
		for i, state := range g.Instances {
			d.State, d.uuid, d.model = state, g.Facts.Instances[i].UUID, g.Facts.Instances[i].Name
			if d.err == nil && mayUse && d.unlisted != "" {
				d.err = fmt.Errorf("NVML does not list the %s of a MIG device of GPU %d: this driver does not support it", d.unlisted, d.index)
			}
			list = append(list, d)
		}
	}
	for _, address := range addresses {
		// guard: probe: GPUs listed
		if !slices.ContainsFunc(list, func(d gpuDevice) bool { return d.address == address }) {
			return nil, fmt.Errorf("NVML does not list GPU %s: %s", address, cmp.Or(s.Error, "it may be lost, or unbound from the driver"))
		}
	}
	return list, nil
}

// eachUse calls fn for each device that one of the processes uses. A GPU about which NVML does not
// say everything may be in use: that is an error.
func eachUse(host config.Host, q probe.Questions, fn func(gpuDevice, Process) error) error {
	list, err := devices(host, q.GPUs)
	if err != nil {
		return err
	}
	for _, d := range list {
		if d.err != nil {
			return d.err
		}
		for _, p := range d.Processes {
			id, err := procfs.Host.ID(p.PID)
			if err != nil && !procfs.HasEnded(err) {
				return err
			}
			if err != nil || !slices.Contains(q.Suspend, id) {
				continue
			}
			if err := fn(d, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// sameKind returns an error if memory would move to another model of GPU.
func sameKind(devices []gpuDevice, placement map[string]string) error {
	for _, from := range devices {
		for _, to := range devices {
			if to.uuid == placement[from.uuid] && to.model != from.model {
				return fmt.Errorf("GPU %d is a %s and GPU %d a %s: memory moves between GPUs of one model only", from.index, from.model, to.index, to.model)
			}
		}
	}
	return nil
}

// withCheckpointer calls fn with libcuda loaded, in a process that Confine has confined. It returns
// the ids that fn returns.
func withCheckpointer(host config.Host, q probe.Questions, fn func(*checkpointer) ([]int, error)) ([]int, error) {
	path, err := libraryPath(host, cudaName)
	if err != nil {
		return nil, err
	}
	if !IsConfined(q) { // guard: probe: confined when it suspends
		return nil, errors.New("this program is not confined: only nvidia-shimctl probe may start it")
	}
	if err := limitCalls(); err != nil {
		return nil, err
	}
	defer inheritedReservation(host).release()
	c, err := openCheckpointer(path)
	if err != nil {
		return nil, err
	}
	return fn(c)
}

// processes returns the processes that have a CUDA context.
func (c *checkpointer) processes(ids []procfs.ID) (list []cudaProcess, err error) {
	for _, id := range ids {
		fd, err := unix.PidfdOpen(id.PID, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return list, fmt.Errorf("process %d: %w", id.PID, err)
		}
		p := cudaProcess{id, fd}
		now, err := procfs.Host.ID(id.PID)
		if err != nil && !procfs.HasEnded(err) {
			unix.Close(fd)
			return list, err
		}
		ended := err != nil || now != id // another process may have its PID
		if !ended {
			_, rc := c.state(p)
			ended = rc == invalidValue || rc == notInitialized // it has no CUDA context
		}
		if ended {
			unix.Close(fd)
			continue
		}
		list = append(list, p)
	}
	return list, nil
}

// suspended returns the processes that are suspended.
func (c *checkpointer) suspended(list []cudaProcess) (ids []procfs.ID) {
	for _, p := range list {
		if state, rc := c.state(p); rc == 0 && state == checkpointed {
			ids = append(ids, p.ID)
		}
	}
	return ids
}

func closeAll(list []cudaProcess) {
	for _, p := range list {
		unix.Close(p.fd)
	}
}

// pids is not nil: in JSON, null would mean no answer.
func pids(list []cudaProcess) []int {
	pids := []int{}
	for _, p := range list {
		pids = append(pids, p.PID)
	}
	return pids
}

// reserveHostMemory reserves memory of the host for GPU memory, if there is enough.
func reserveHostMemory(host config.Host, memory probe.Memory) error {
	const root = "/sys/fs/cgroup"
	needs := hostNeeds(procfs.Host, root, memory)
	others, err := inheritedReservation(host).take(needs)
	if err != nil {
		return err
	}
	return checkHostMemory(procfs.Host, root, needs, others)
}
