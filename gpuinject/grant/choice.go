package grant

import (
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
)

// Grant holds the devices that a container may have and the devices that it gets, and why.
type Grant struct {
	verdict.Log
	// Without is true if the container starts without the driver.
	Without bool
	// Requirements of the image, all of them satisfied.
	Requirements []Requirement
	// MIGRights are the names of the rights in Set.
	MIGRights []string
	// May holds what the container may select from; enforced holds what it could select from in
	// mode "enforce".
	May, enforced policy.Allowed
	// Request is the container's request, without annotations that name devices it may not have.
	Request request.Request
	// choices holds the ids of the request with the devices that they name on this host.
	choices []choice
	// Set holds the devices that the container gets.
	Set device.Set
	// GPUs holds the GPUs that the container sees: whole GPUs and the GPUs of its MIG devices.
	GPUs []device.GPU
}

// choice is an id and the devices that it names on this host, granted or not.
type choice struct {
	id  string
	set device.Set
	err error
}

// Requirement is a requirement of the image that this host satisfies.
type Requirement struct {
	Variable   string `json:"variable"`
	Expression string `json:"expression"`
	// SatisfiedBy lists the alternatives that hold: several if the GPUs need different ones, none
	// if the expression is empty.
	SatisfiedBy []string `json:"satisfied_by"`
}
