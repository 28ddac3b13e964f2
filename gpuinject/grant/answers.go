package grant

import (
	"errors"
	"fmt"
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/kubelet"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/question"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// answers holds the answers of NVML and the kubelet.
type answers struct {
	// kept holds NVML's answer, or the zero value if it is unknown. If NVML was asked, factsErr
	// says why.
	kept     keptFacts
	factsErr error
	kubelet  policy.KubeletAnswer
	// passedOver holds ids that the kubelet allocated but that name no GPU.
	passedOver []string
}

// selectIDs resolves device ids. The error is device.ErrFacts if only NVML can resolve an id and
// NVML gave no answer.
func selectIDs(h host.Host, ids []string, a answers) (device.Set, error) {
	set, err := h.Select(ids, a.kept.Facts)
	if errors.Is(err, device.ErrFacts) && a.factsErr != nil {
		err = fmt.Errorf("%w: %w", err, a.factsErr)
	}
	return set, err
}

// selectEach resolves ids that the container may have, one by one. missing is the first id that this
// host does not have or that NVML did not resolve.
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

// askAll collects every question that only the kubelet or NVML can answer and asks them at once.
// environment is the result of environmentDecides. inSpec is true if the specification itself has
// devices: by its nodes, or by the ids in named.
func askAll(c Container, h host.Host, environment string, inSpec bool, named []string, ask question.Ask) answers {
	who := c.Input.Container
	needsPod := !inSpec && policy.NeedsKubelet(who, environment)
	var pod kubelet.Pod
	if needsPod {
		pod = kubelet.Read(kubelet.CheckpointFile, c.Config.Policy.KubeletSocket, who)
	}
	allocated, _ := kubelet.FullIDs(h, pod.IDs())
	required := requirementsNeedFacts(c, h)
	var a answers
	// Only NVML knows some names of devices.
	names := len(h.MIG)+len(h.FaultyMIG)+len(h.Faulty) > 0 || h.LacksUUIDs()
	if names || required {
		a.kept = loadFacts(c.Config.Host, h)
	}
	// Ids need not be resolved if the container can get nothing.
	mayGet := inSpec || len(allocated) > 0 || pod.Question != nil || policy.MayHaveAll(c.Config.Policy, who, environment)
	unknown := a.kept.Asked.IsZero() && (required || pod.Question != nil && names)
	ids := slices.Concat(named, allocated, c.Request.Devices)
	q := question.Questions{Pod: pod.Question, Facts: mayGet && (unknown || h.NeedsFacts(ids, a.kept.Facts))}
	var reply question.Answers
	switch {
	case q.Facts:
		a.kept, reply, a.factsErr = askFacts(c.Config.Host, h, a.kept, q, ask)
	case q.Pod != nil:
		reply = ask(q)
	}
	if needsPod {
		a.kubelet = pod.Answer(h, c.Request.Devices, reply)
		a.selectAllocated(c, h, q.Facts, ask)
	}
	return a
}

// selectAllocated resolves the ids that the kubelet allocated to the container. asked reports
// whether NVML was asked before.
func (a *answers) selectAllocated(c Container, h host.Host, asked bool, ask question.Ask) {
	ids, _ := a.kubelet.Allocation.IDs(c.Input.Container.Name)
	ids, a.passedOver = kubelet.FullIDs(h, ids)
	if len(a.passedOver) > 0 {
		a.kubelet.PassedOver = a.passedOver[0]
	}
	if !asked && h.NeedsFacts(ids, a.kept.Facts) {
		// A MIG device was created with the instance ids of an earlier one, so NVML's kept answer
		// still has the earlier UUID. Only this case needs a second question.
		a.kept, _, a.factsErr = askFacts(c.Config.Host, h, a.kept, question.Questions{Facts: true}, ask)
	}
	set, missing, err := selectEach(h, ids, *a)
	if err != nil && !errors.Is(err, device.ErrFacts) && !isFault(err) {
		// This error appears in the pod's events, so it must not list the host's GPUs.
		err = errors.New("device " + request.Quote(missing))
	}
	a.kubelet.Set, a.kubelet.SetErr = set, err
}

func isFault(err error) bool {
	var fault *device.FaultError
	return errors.As(err, &fault)
}

func (g *Grant) choose(h host.Host, r request.Request, a answers) {
	g.Request, g.choices = r, nil
	for _, id := range r.Devices {
		x := choice{id: id}
		// Ids need not be resolved if the container can get nothing.
		if !g.May.Nothing() {
			x.set, x.err = selectIDs(h, []string{id}, a)
		}
		g.choices = append(g.choices, x)
	}
}
