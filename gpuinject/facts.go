package gpuinject

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
)

// factsName is where the state directory keeps what the probe said.
const factsName = "nvml.json"

// knownFacts is what the probe said, with what it was true for.
type knownFacts struct {
	Key   string
	Facts device.Facts
}

// facts returns what only NVML knows: as it was kept, or by asking the probe. Only
// requests that need it get here, and an answer is good until the host boots, loads
// another driver, or its MIG layout changes.
func (j *Job) facts() (*device.Facts, error) {
	if j.known != nil {
		return j.known, nil
	}
	if err := j.openState(); err != nil {
		return nil, err
	}
	key, err := j.factsKey()
	if err != nil {
		return nil, err
	}
	var k knownFacts
	if j.state.Load(factsName, &k) && k.Key == key {
		j.known = &k.Facts
		return j.known, nil
	}
	if j.AskNVML == nil {
		return nil, errors.New("nobody is there to ask NVML")
	}
	facts, err := j.AskNVML()
	if err != nil {
		return nil, fmt.Errorf("NVML was asked: %w", err)
	}
	if facts.Driver != j.inv.DriverVersion {
		return nil, fmt.Errorf("NVML is of driver %s and the loaded kernel module %s: install the driver's user space of the same version, or reboot", facts.Driver, j.inv.DriverVersion)
	}
	if err := j.state.Store(factsName, &knownFacts{Key: key, Facts: facts}); err != nil {
		return nil, fmt.Errorf("keep what NVML said: %w", err)
	}
	j.known = &facts
	return j.known, nil
}

// factsKey is what the probe's answer depends on.
func (j *Job) factsKey() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	instances, err := j.inv.Instances()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", strings.TrimSpace(string(boot)), j.inv.DriverVersion)
	for _, g := range j.inv.GPUs {
		fmt.Fprintf(&b, " %s", g.BusID)
	}
	for _, in := range instances {
		fmt.Fprintf(&b, " %d:%d:%d", in.Minor, in.GI, in.CI)
	}
	return b.String(), nil
}

// openState opens the state directory, once.
func (j *Job) openState() error {
	if j.state != nil {
		return nil
	}
	state, err := view.OpenState(j.Config.Host.StateDir)
	if err != nil {
		return fail(Precondition, "%w", err)
	}
	j.state = state
	return nil
}
