package gpuinject

import (
	"errors"
	"fmt"
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/facts"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// answers are those of NVML and the kubelet.
type answers struct {
	// kept is NVML's; the zero value if it is not known. factsErr says why, if NVML was asked.
	kept     facts.Kept
	factsErr error
	kubelet  policy.KubeletAnswer
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

// askAll collects every question that only the kubelet or NVML can answer and asks them at once.
// notInSpec is true if no device is in the specification; named are ids that are a grant by being
// named.
func askAll(c Container, h host.Host, notInSpec bool, named []string, ask Ask) answers {
	cfg, who := c.Config, c.Said.Container
	var a answers
	required := requirementsNeedFacts(c, h)
	if len(h.MIG) > 0 || required {
		a.kept = facts.Load(cfg.Host, h)
	}
	var q probe.Questions
	if notInSpec && policy.NeedsKubelet(cfg.Policy, who) {
		q.Pod = &probe.Pod{Socket: cfg.Policy.KubeletSocket, Namespace: who.Namespace, Name: who.Pod}
	}
	// An id of which nothing can be granted need not be understood.
	possible := policy.EnvironmentGrants(cfg.Policy, who) != "" || !notInSpec || q.Pod != nil ||
		who.Kubernetes && cfg.Policy.Kubernetes == config.Audit
	unknown := a.kept.Asked.IsZero() && (required || q.Pod != nil && len(h.MIG) > 0)
	q.Facts = possible && (unknown || h.NeedsFacts(slices.Concat(named, c.Request.Devices), a.kept.Facts))
	var reply probe.Answers
	switch {
	case q.Facts:
		a.kept, reply, a.factsErr = facts.Ask(cfg.Host, h, a.kept, q, ask)
	case q.Pod != nil:
		reply = ask(q)
	}
	if q.Pod == nil {
		return a
	}
	switch {
	case reply.NoKubelet:
		a.kubelet.NoKubelet = true
	case reply.Pod == nil:
		a.kubelet.Err = errors.New(reply.PodError)
	default:
		a.kubelet.Allocation = *reply.Pod
		allocated, _ := reply.Pod.IDs(who.Name)
		if !q.Facts && h.NeedsFacts(allocated, a.kept.Facts) {
			// A MIG device was made again with the ids of an earlier one, so that NVML's kept
			// answer still has the earlier UUID. Only here is a second question needed.
			a.kept, _, a.factsErr = facts.Ask(cfg.Host, h, a.kept, probe.Questions{Facts: true}, ask)
		}
		a.kubelet.Set, a.kubelet.SetErr = selectIDs(h, allocated, a)
	}
	return a
}
