package gpuinject

import (
	"errors"
	"fmt"
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/allocation"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/checkpoint"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/facts"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// Ask puts questions to the probe, all at once.
type Ask func(probe.Questions) probe.Answers

// answers holds the answers of NVML and the kubelet.
type answers struct {
	// kept is NVML's; the zero value if it is not known. factsErr says why, if NVML was asked.
	kept     facts.Kept
	factsErr error
	kubelet  policy.KubeletAnswer
	// passedOver are ids that the kubelet allocated and that name no GPU.
	passedOver []string
}

// selectIDs resolves device ids. The error is device.ErrFacts if only NVML can resolve one, and it
// gave no answer.
func selectIDs(h host.Host, ids []string, a answers) (device.Set, error) {
	set, err := h.Select(ids, a.kept.Facts)
	if errors.Is(err, device.ErrFacts) && a.factsErr != nil {
		err = fmt.Errorf("%w: %w", err, a.factsErr)
	}
	return set, err
}

// selectEach is selectIDs for ids that are a grant. missing is the first one that this host does
// not have, or that NVML did not resolve.
func selectEach(h host.Host, ids []string, a answers) (set device.Set, missing string, err error) {
	for _, id := range ids {
		one, err := selectIDs(h, []string{id}, a)
		if err != nil {
			return device.Set{}, id, err
		}
		set.Add(one)
	}
	return set, "", nil
}

// checkpointFile is the kubelet's. A variable for the tests.
var checkpointFile = checkpoint.File

// askAll collects every question that only the kubelet or NVML can answer and asks them at once.
// granted is true if the specification itself grants devices: by its nodes, or by named, the ids
// whose naming is a grant.
func askAll(c Container, h host.Host, granted bool, named []string, ask Ask) answers {
	who := c.Input.Container
	needsPod := !granted && policy.NeedsKubelet(c.Config.Policy, who)
	var pod allocation.Pod
	if needsPod {
		pod = allocation.Read(checkpointFile, c.Config.Policy.KubeletSocket, who)
	}
	allocated, _ := allocation.FullIDs(h, pod.IDs())
	required := requirementsNeedFacts(c, h)
	var a answers
	if len(h.MIG) > 0 || required {
		a.kept = facts.Load(c.Config.Host, h)
	}
	// An id of which nothing can be granted need not be understood.
	mayGrant := granted || len(allocated) > 0 || pod.Question != nil || policy.GrantsAll(c.Config.Policy, who)
	unknown := a.kept.Asked.IsZero() && (required || pod.Question != nil && len(h.MIG) > 0)
	ids := slices.Concat(named, allocated, c.Request.Devices)
	q := probe.Questions{Pod: pod.Question, Facts: mayGrant && (unknown || h.NeedsFacts(ids, a.kept.Facts))}
	var reply probe.Answers
	switch {
	case q.Facts:
		a.kept, reply, a.factsErr = facts.Ask(c.Config.Host, h, a.kept, q, ask)
	case q.Pod != nil:
		reply = ask(q)
	}
	if needsPod {
		a.kubelet = pod.Answer(h, c.Request.Devices, reply)
		a.selectAllocated(c, h, q.Facts, ask)
	}
	return a
}

// selectAllocated resolves what the kubelet allocated to the container. asked is true if NVML was
// asked.
func (a *answers) selectAllocated(c Container, h host.Host, asked bool, ask Ask) {
	ids, _ := a.kubelet.Allocation.IDs(c.Input.Container.Name)
	ids, a.passedOver = allocation.FullIDs(h, ids)
	if !asked && h.NeedsFacts(ids, a.kept.Facts) {
		// A MIG device was made again with the ids of an earlier one, so that NVML's kept answer
		// still has the earlier UUID. Only here is a second question needed.
		a.kept, _, a.factsErr = facts.Ask(c.Config.Host, h, a.kept, probe.Questions{Facts: true}, ask)
	}
	set, missing, err := selectEach(h, ids, *a)
	if err != nil && !errors.Is(err, device.ErrFacts) {
		// A pod's events have this error: it does not list the GPUs of the host.
		err = errors.New("device " + request.Quote(missing))
	}
	a.kubelet.Set, a.kubelet.SetErr = set, err
}
