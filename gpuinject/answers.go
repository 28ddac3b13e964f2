package gpuinject

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/checkpoint"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/facts"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

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

// pod holds the kubelet's checkpoint of a container's pod.
type pod struct {
	containers map[string][]string
	// err is why there is no checkpoint to read.
	err error
	// question is for the kubelet's API; nil if the checkpoint answers.
	question *probe.Pod
}

// readPod reads the kubelet's checkpoint. It is bound to the pod's UID, but does not tell a
// container without a device from an ephemeral one, which shares what its pod has.
func readPod(c Container) (p pod) {
	who := c.Input.Container
	p.containers, p.err = checkpoint.Pod(checkpointFile, who.UID)
	if p.err == nil && len(p.containers) == 0 {
		p.containers = map[string][]string{who.Name: {}}
	}
	if _, listed := p.containers[who.Name]; !listed {
		p.question = &probe.Pod{Socket: c.Config.Policy.KubeletSocket, Namespace: who.Namespace, Name: who.Pod}
	}
	return p
}

// askAll collects every question that only the kubelet or NVML can answer and asks them at once.
// granted is true if the specification itself grants devices: by its nodes, or by named, the ids
// whose naming is a grant.
func askAll(c Container, h host.Host, granted bool, named []string, ask Ask) answers {
	who := c.Input.Container
	needsPod := !granted && policy.NeedsKubelet(c.Config.Policy, who)
	var p pod
	if needsPod {
		p = readPod(c)
	}
	allocated, _ := policy.Allocation{Containers: p.containers}.IDs(who.Name)
	allocated, _ = fullIDs(h, allocated)
	required := requirementsNeedFacts(c, h)
	var a answers
	if len(h.MIG) > 0 || required {
		a.kept = facts.Load(c.Config.Host, h)
	}
	// An id of which nothing can be granted need not be understood.
	mayGrant := granted || len(allocated) > 0 || p.question != nil || policy.GrantsAll(c.Config.Policy, who)
	unknown := a.kept.Asked.IsZero() && (required || p.question != nil && len(h.MIG) > 0)
	ids := slices.Concat(named, allocated, c.Request.Devices)
	q := probe.Questions{Pod: p.question, Facts: mayGrant && (unknown || h.NeedsFacts(ids, a.kept.Facts))}
	var reply probe.Answers
	switch {
	case q.Facts:
		a.kept, reply, a.factsErr = facts.Ask(c.Config.Host, h, a.kept, q, ask)
	case q.Pod != nil:
		reply = ask(q)
	}
	if needsPod {
		a.kubelet = p.answer(c, h, reply)
		a.selectAllocated(c, h, q.Facts, ask)
	}
	return a
}

// selectAllocated resolves what the kubelet allocated to the container. asked is true if NVML was
// asked.
func (a *answers) selectAllocated(c Container, h host.Host, asked bool, ask Ask) {
	ids, _ := a.kubelet.Allocation.IDs(c.Input.Container.Name)
	ids, a.passedOver = fullIDs(h, ids)
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

// answer holds the kubelet's answers for the pod: its checkpoint and, if asked for, its reply.
func (p pod) answer(c Container, h host.Host, reply probe.Answers) (k policy.KubeletAnswer) {
	socket := c.Config.Policy.KubeletSocket
	switch {
	case p.question == nil:
		k.Allocation = policy.Allocation{Found: true, Containers: p.containers}
	case reply.NoKubelet && errors.Is(p.err, fs.ErrNotExist):
		k.NoKubelet = true
	case reply.NoKubelet:
		k.Err = fmt.Errorf("there is no kubelet at %s (policy.kubelet-socket)", socket)
	case reply.Pod == nil:
		k.Err = fmt.Errorf("the kubelet at %s: %s", socket, reply.PodError)
	case p.err == nil && reply.Pod.Found:
		// The devices are those of the UID. The reply, of a pod of this name, adds which containers
		// without a device there are.
		for name := range reply.Pod.Containers {
			if _, ok := p.containers[name]; !ok {
				p.containers[name] = []string{}
			}
		}
		k.Allocation = policy.Allocation{Found: true, Containers: p.containers}
	default:
		k.Allocation = *reply.Pod
	}
	if p.err != nil && k.Err != nil {
		k.Err = fmt.Errorf("%w; %w", k.Err, p.err)
	}
	if p.err != nil && k.Err == nil {
		k.Err = checkByName(c, h, k.Allocation, p.err)
	}
	return k
}

// checkByName refuses an allocation that is bound to no UID, but to the name of a pod, unless the
// container names each of its devices in full, as NVIDIA's device plugin does in the environment. A
// pod that was deleted by force goes on creating containers while the next one of its name is
// there, and "all" in its image would be all that the next one has.
func checkByName(c Container, h host.Host, allocation policy.Allocation, why error) error {
	ids, _ := allocation.IDs(c.Input.Container.Name)
	if ids, _ = fullIDs(h, ids); len(ids) == 0 {
		return nil
	}
	if _, others := fullIDs(h, c.Request.Devices); len(others) == 0 {
		return nil
	}
	return fmt.Errorf("the kubelet's API has a pod of this name, but no UID, and the container does not name its GPUs by UUID: have the device plugin pass device specifications (PASS_DEVICE_SPECS=true): %w", why)
}

// fullIDs returns those of a list that are full names of devices, each once, without the numbers of
// time-slicing replicas ("GPU-…::3"). Resources of other plugins, network cards for example, have
// other ids: "2" or "all" is no GPU there.
func fullIDs(h host.Host, list []string) (ids, others []string) {
	for _, id := range list {
		name, replica, isReplica := strings.Cut(id, "::")
		if _, err := strconv.ParseUint(replica, 10, 31); isReplica && err != nil || !h.IsFull(name) {
			others = append(others, id)
		} else if !slices.Contains(ids, name) {
			ids = append(ids, name)
		}
	}
	return ids, others
}
