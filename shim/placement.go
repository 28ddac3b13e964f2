package shim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/api/types/task"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// exchangeable returns the GPUs among which Resume can move a container's memory. The driver
// requires a destination for exactly the GPUs that a process sees (580.159.04). So exchangeable
// returns none for a privileged container, which sees GPUs that it was not granted, and for MIG
// devices, which the driver's list cannot contain.
func exchangeable(p gpuinject.Plan) []gpuinject.PlanGPU {
	if !p.Proc.Masked || len(p.MIG) > 0 {
		return nil
	}
	return p.GPUs
}

// place makes the next Resume move the container's GPU memory to other GPUs of its grant. text is
// the value of gpuinject.AnnotationResumeGPU.
func (s *Service) place(ctx context.Context, id, text string) error {
	s.pausing.Lock()
	defer s.pausing.Unlock()
	c := s.get(id)
	_, err := c.permit(callPlace, id)
	if err == nil && s.status(ctx, id) != task.Status_PAUSED {
		err = notSuspended(id)
	}
	if err != nil {
		return err
	}
	to, err := placement(text, c.gpus, c.held)
	if err != nil {
		return verdict.Invalid("container %s: GPU %s: %w", id, request.Quote(text), err)
	}
	c.placement = to
	s.update(id, c)
	return nil
}

// placement maps each GPU to the GPU that its memory moves to, by UUID. text is "[OLD=]NEW,...",
// with GPUs by index or UUID; OLD may be omitted if held is on one GPU. Each GPU is once a source
// and once a destination. Memory on GPUs that text does not name stays if its place is free, and
// otherwise moves to a GPU that is left.
func placement(text string, gpus []gpuinject.PlanGPU, held probe.Memory) (map[string]string, error) {
	if len(gpus) == 0 {
		return nil, errors.New("the driver exchanges whole GPUs, and those of containers without privileges")
	}
	find := func(name string) (string, error) {
		i := slices.IndexFunc(gpus, func(g gpuinject.PlanGPU) bool {
			return strings.EqualFold(g.UUID, name) || strconv.Itoa(g.Index) == name
		})
		if i < 0 {
			return "", fmt.Errorf("%s is not one of its GPUs: %s", request.Quote(name), names(gpus))
		}
		return gpus[i].UUID, nil
	}
	used := usedGPUs(held)
	to, taken := map[string]string{}, map[string]bool{}
	for part := range strings.SplitSeq(text, ",") {
		before, after, ok := strings.Cut(part, "=")
		if !ok && len(used) != 1 {
			return nil, fmt.Errorf("its memory is on %d GPUs: name each as OLD=NEW", len(used))
		}
		if !ok {
			before, after = used[0], part
		}
		from, err := find(before)
		if err != nil {
			return nil, err
		}
		goal, err := find(after)
		if err != nil {
			return nil, err
		}
		if to[from] != "" || taken[goal] {
			return nil, errors.New("a GPU is named twice")
		}
		to[from], taken[goal] = goal, true
	}
	for _, stays := range []bool{true, false} {
		for _, g := range gpus {
			i := slices.IndexFunc(gpus, func(other gpuinject.PlanGPU) bool {
				return !taken[other.UUID] && (other.UUID == g.UUID || !stays)
			})
			if to[g.UUID] == "" && i >= 0 {
				to[g.UUID], taken[gpus[i].UUID] = gpus[i].UUID, true
			}
		}
	}
	return to, nil
}

// usedGPUs returns the UUIDs of the GPUs on which suspended processes had memory.
func usedGPUs(held probe.Memory) []string {
	used := map[string]bool{}
	for _, memory := range held {
		for uuid := range memory {
			used[uuid] = true
		}
	}
	return slices.Sorted(maps.Keys(used))
}

func names(gpus []gpuinject.PlanGPU) string {
	var list []string
	for _, g := range gpus {
		list = append(list, fmt.Sprintf("%d (%s)", g.Index, g.UUID))
	}
	return strings.Join(list, ", ")
}
