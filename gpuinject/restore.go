package gpuinject

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
)

// CheckRestore returns an error unless a container with this plan can be restored from the
// checkpoint in dir, where the shim stored the record of the checkpointed container. The restored
// processes have the driver's libraries in memory and expect the same device numbers in /dev. If
// the checkpointed container had no mask, they would run before they get one.
//
// In Kubernetes no container with GPUs is restored: the pod's author could have forged the
// checkpoint. A container that gets no GPU here but has nodes of the driver is not restored either:
// its mask is not in the checkpoint (T46).
func (p Plan) CheckRestore(c Container, dir string) error {
	const cannot = "the container cannot be restored from a checkpoint"
	if !p.GPU && p.Proc.Masked { // guard: shim: no mask by a checkpoint
		return verdict.Precondition("a container with nodes of the NVIDIA driver that were not granted here cannot be restored from a checkpoint: create it without one")
	}
	if !p.GPU {
		return nil
	}
	if c.Input.Container.Kubernetes { // guard: shim: no restores of pods
		return verdict.Precondition("%s in Kubernetes: create it without one", cannot)
	}
	if !c.Config.Policy.AllowCheckpoints { // guard: shim: restores allowed
		return verdict.Denied("%s: policy.allow-checkpoints is false in the shim's configuration", cannot)
	}
	data, _, err := trusted.Read(filepath.Join(dir, RecordName), 1<<20)
	var was Plan
	if err == nil {
		err = json.Unmarshal(data, &was)
	}
	if err != nil {
		return verdict.Precondition("%s that this shim did not make for a container with GPUs: %.256v", cannot, err)
	}
	switch {
	case was.DriverVersion != p.DriverVersion:
		return verdict.Precondition("%s of driver %s: this host has %s", cannot, request.Quote(was.DriverVersion), p.DriverVersion)
	case !slices.Equal(was.Names(), p.Names()):
		return verdict.Precondition("%s of a container with %s: it gets %s now", cannot, request.Quote(strings.Join(was.Names(), ", ")), strings.Join(p.Names(), ", "))
	case !slices.Equal(was.Devices, p.Devices) || was.Proc.Masked != p.Proc.Masked:
		return verdict.Precondition("%s of a container with other device nodes, capabilities or privileges", cannot)
	}
	return nil
}

// Names returns the names of the granted GPUs and MIG devices.
func (p Plan) Names() (list []string) {
	for _, g := range p.GPUs {
		list = append(list, g.UUID)
	}
	for _, m := range p.MIG {
		list = append(list, m.Name)
	}
	return list
}
