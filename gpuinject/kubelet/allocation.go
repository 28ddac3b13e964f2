package kubelet

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/question"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// Pod holds the kubelet's checkpoint of a container's pod.
type Pod struct {
	// Question is for the kubelet's API; nil if the checkpoint answers.
	Question *question.Pod

	name       string // of the container
	socket     string
	containers map[string][]string
	err        error // why the checkpoint could not be read
}

// Read reads the kubelet's checkpoint. It is bound to the pod's UID, but cannot distinguish a
// container without a device from an ephemeral container, which shares the devices of its pod.
func Read(file, socket string, who request.Container) Pod {
	p := Pod{name: who.Name, socket: socket}
	p.containers, p.err = readPod(file, who.UID)
	if p.err == nil && len(p.containers) == 0 {
		p.containers = map[string][]string{who.Name: {}}
	}
	if _, listed := p.containers[who.Name]; !listed {
		p.Question = &question.Pod{Socket: socket, Namespace: who.Namespace, Name: who.Pod}
	}
	return p
}

// IDs returns the ids that the checkpoint has for the container.
func (p Pod) IDs() []string {
	ids, _ := policy.Allocation{Containers: p.containers}.IDs(p.name)
	return ids
}

// Answer combines the kubelet's answers for the pod: its checkpoint and, if asked for, its reply.
// named are the devices that the container asks for.
func (p Pod) Answer(h host.Host, named []string, reply question.Answers) (k policy.KubeletAnswer) {
	switch {
	case p.Question == nil:
		k.Allocation = policy.Allocation{Found: true, Containers: p.containers}
	case reply.NoKubelet && errors.Is(p.err, fs.ErrNotExist):
		k.NoKubelet = true
	case reply.NoKubelet:
		k.Err = fmt.Errorf("there is no kubelet at %s (policy.kubelet-socket)", p.socket)
	case reply.Pod == nil:
		k.Err = fmt.Errorf("the kubelet at %s: %s", p.socket, reply.PodError)
	case p.err == nil && reply.Pod.Found:
		// The devices come from the checkpoint, by UID. The reply, for a pod with this name, adds
		// the containers without a device.
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
		k.Err = p.checkByName(h, named, k.Allocation)
	}
	return k
}

// checkByName refuses an allocation that is bound to a pod's name instead of its UID, unless the
// container names each of its devices in full, as NVIDIA's device plugin does in the environment. A
// pod that was deleted by force can still create containers while the next pod with its name
// exists, and "all" in its image would mean all devices of that next pod.
func (p Pod) checkByName(h host.Host, named []string, allocation policy.Allocation) error {
	ids, _ := allocation.IDs(p.name)
	if ids, _ = FullIDs(h, ids); len(ids) == 0 {
		return nil
	}
	if _, others := FullIDs(h, named); len(others) == 0 { // guard: grant: UUIDs if by pod's name
		return nil
	}
	return fmt.Errorf("the kubelet's API has a pod of this name, but no UID, and the container does not name its GPUs by UUID: have the device plugin pass device specifications (PASS_DEVICE_SPECS=true): %w", p.err)
}

// FullIDs returns the ids that are full names of devices, each once and without the number of a
// time-slicing replica ("GPU-…::3"), and the others. Resources of other plugins, for example
// network cards, have other ids: "2" or "all" is not a GPU there.
func FullIDs(h host.Host, list []string) (ids, others []string) {
	for _, id := range list {
		name, replica, isReplica := strings.Cut(id, "::")
		// guard: grant: exact device ids
		if _, err := strconv.ParseUint(replica, 10, 31); isReplica && err != nil || !h.IsFull(name) {
			others = append(others, id)
		} else if !slices.Contains(ids, name) {
			ids = append(ids, name)
		}
	}
	return ids, others
}
