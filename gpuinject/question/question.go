package question

import (
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
)

// Ask sends all questions at once.
type Ask func(Questions) Answers

// Questions are everything that is asked for one container.
type Questions struct {
	// Facts asks NVML for the facts about the GPUs.
	Facts bool
	// Pod asks the kubelet what it allocated to a pod.
	Pod *Pod
}

// Pod is a pod of the kubelet behind a PodResources socket. Its names come from containerd, not
// from a container.
type Pod struct {
	Socket    string `json:"socket"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Answers has an answer or an error text for each question that was asked.
type Answers struct {
	Facts      *device.Facts
	FactsError string
	Pod        *policy.Allocation
	PodError   string
	// NoKubelet is true if the kubelet's socket did not exist for a second.
	NoKubelet bool
}
