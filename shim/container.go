package shim

import (
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/memlimit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/procmask"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/gpumemory"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// gpuContainer is what Create keeps for the calls that follow.
type gpuContainer struct {
	// generation tells the container from an earlier one with its id.
	generation uint64
	state      containerState
	// rootfs is the mount that Create made and Delete removes. It is empty if containerd's
	// client made the mount.
	rootfs string
	// hasGPU reports whether GPUs were granted.
	hasGPU bool
	// checkpoints reports whether the container may be written to a checkpoint.
	checkpoints bool
	// suspendsGPU reports whether Pause gives the GPUs back.
	suspendsGPU bool
	// restoration is what Start restores the container with.
	restoration restoration
	bundle      string
	// addresses are the PCI addresses of the GPUs that it sees. There are none if it sees all.
	addresses []string
	// memory has its limits of GPU memory.
	memory gpuMemory
	// held is the GPU memory of the processes when they were suspended, while pausing is held.
	held probe.Memory
	// gpus are those among which Resume can move it.
	gpus []gpuinject.PlanGPU
	// placement is where the next Resume moves it: UUIDs by the UUID of the GPU that it was on. It
	// is nil if it stays.
	placement map[string]string
}

// permit returns what this service does with a call for the container c with this id. The error of
// a call that is denied has the class FailedPrecondition, or AlreadyExists for Create.
func (c gpuContainer) permit(what call, id string) (rule, error) {
	does := rules[what][c.state]
	if does != deny {
		return does, nil
	}
	text := "container %s was not created completely: no process can be started in it; delete it"
	switch {
	case what == callCreate:
		return deny, fmt.Errorf("container %s: %w", id, errdefs.ErrAlreadyExists)
	case c.state == deleting:
		text = "nvidia: container %s is being deleted: nothing can be done with it but that"
	case what == callPlace:
		return deny, notSuspended(id)
	case what == callLimit:
		text = "container %s has no GPU, or is not created completely: its GPU memory cannot be limited"
	case c.state == restoring:
		text = "container %s is not restored yet: no process can be started in it"
	case c.state == notRestored:
		text = "container %s could not be restored: create it again"
	}
	return deny, verdict.Precondition(text, id)
}

// notSuspended is the error of a call that sends the memory of a suspended container elsewhere.
func notSuspended(id string) error {
	return verdict.Precondition("container %s is not suspended, so its GPU memory cannot go to another GPU", id)
}

// restoration is what Create keeps for Start, which restores the container from a checkpoint.
type restoration struct {
	mask *procmask.Mask // nil if the container gets none
	// view is the view's path on this host, viewDir its place in the container.
	view, viewDir string
}

// gpuMemory is what is kept about the limits of a container's GPU memory.
type gpuMemory struct {
	// cannot says why its memory cannot be limited, "" if it can.
	cannot    string
	stateDir  string
	namespace string
	cgroup    gpumemory.Cgroup
	// uuids are those of its GPUs, in the container's order.
	uuids  []string
	limits []memlimit.Limit
	// max bounds what an update may ask for.
	max memlimit.Amounts
}
