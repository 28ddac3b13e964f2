package gpuinject

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/grant"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/memlimit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/place"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/semver"
)

// limitingDriver is the first driver that limits memory by cgroup.
const limitingDriver = 615

// limitMemory decides how much memory of its GPUs the container may use.
func limitMemory(c Container, h host.Host, g grant.Grant) (ch place.Changes, err error) {
	if _, ok := c.Input.Env["NVIDIA_GPU_MEMORY_LIMITS"]; ok {
		ch.Ignore("NVIDIA_GPU_MEMORY_LIMITS", "there is no such variable; NVIDIA's is "+memlimit.EnvLimit)
	}
	asked := c.Input.Memory
	if c.Config.Policy.MemoryLimits == config.HAMi {
		asked.AddHAMi(c.Input.Env)
	}
	if c.Config.Policy.MemoryLimits == config.Ignore {
		for _, name := range asked.Names() {
			ch.Ignore(name, "policy.memory-limits is \"ignore\"")
		}
		return ch, nil
	}
	var uuids []string
	for _, gpu := range g.Set.GPUs {
		uuids = append(uuids, gpu.UUID)
	}
	limits, log, err := memlimit.Decide(asked, memoryRules(c), uuids)
	ch.Join(log)
	if err == nil && len(g.Set.MIG) > 0 {
		err = withoutMIG(asked, &ch.Log)
	}
	if err != nil || len(limits) == 0 {
		return ch, err
	}
	if !driverLimits(h.DriverVersion, h.Platform) {
		return ch, cannotLimit(limits, h, &ch.Log)
	}
	for _, l := range limits {
		ch.Decide("memory of "+l.UUID, l.String(), "%s", l.From)
	}
	ch.Memory = limits
	return ch, nil
}

// driverLimits reports whether a driver limits memory. A version that cannot be parsed does not.
func driverLimits(version, platform string) bool {
	v, err := semver.Parse(version)
	return err == nil && v.Major >= limitingDriver && platform == ""
}

// CannotLimitMemory says why the driver of the host cannot limit the memory of GPUs, "" if it can.
func (p Plan) CannotLimitMemory() string {
	if driverLimits(p.DriverVersion, p.Platform) {
		return ""
	}
	return fmt.Sprintf("driver %s cannot limit GPU memory: use driver %d or newer", p.DriverVersion, limitingDriver)
}

// RecordMemory replaces the limits in the record of the container with the bundle dir.
func RecordMemory(dir string, limits []memlimit.Limit) error {
	data, err := os.ReadFile(filepath.Join(dir, RecordName))
	if err != nil {
		return err
	}
	var p Plan
	if err := json.Unmarshal(data, &p); err != nil {
		return err
	}
	p.Memory = limits
	return p.store(dir)
}

// memoryRules returns the operator's rules for a container. A parsed configuration has valid lists.
func memoryRules(c Container) memlimit.Rules {
	byDefault, _ := memlimit.Parse(c.Config.Container.MemoryLimit, 0)
	most, _ := memlimit.Parse(c.Config.Policy.MaxMemoryLimit, 0)
	who := c.Input.Container
	// guard: memory: an image only lowers
	return memlimit.Rules{Default: byDefault, Max: most, OnlyLower: who.Kubernetes && policy.EnvironmentDecides(c.Config.Policy, who) == ""}
}

// withoutMIG refuses a container with MIG devices that asks for a limit: the driver does not count
// what is allocated on a partitioned GPU.
func withoutMIG(asked memlimit.Asked, log *verdict.Log) error {
	for _, w := range []memlimit.Wish{asked.Annotations, asked.Environment} {
		switch {
		case len(w.Limit) > 0:
			return verdict.Invalid("%q limits GPU memory, and the container has MIG devices, which the driver cannot limit: remove it, or ask for a smaller MIG device", w.LimitFrom)
		case len(w.Request) > 0:
			log.Ignore(w.RequestFrom, "a MIG device has its own memory")
		}
	}
	return nil
}

// cannotLimit refuses a limit with a driver that has none; a request is ignored.
func cannotLimit(limits []memlimit.Limit, h host.Host, log *verdict.Log) error {
	ignored := map[string]bool{}
	for _, l := range limits {
		if l.Limit != 0 {
			return verdict.Precondition("%q limits GPU memory, which driver %s cannot: use driver %d or newer, remove it, or set policy.memory-limits = %q", l.From, h.DriverVersion, limitingDriver, config.Ignore)
		}
		if !ignored[l.From] {
			ignored[l.From] = true
			log.Ignore(l.From, "driver "+h.DriverVersion+" cannot reserve GPU memory")
		}
	}
	return nil
}
