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
	if facts := j.keptFacts(); facts != nil {
		return facts, nil
	}
	return j.freshFacts()
}

// freshFacts asks the probe, whatever is known, and keeps the answer.
func (j *Job) freshFacts() (*device.Facts, error) {
	if j.AskNVML == nil {
		return nil, errors.New("nobody is there to ask NVML")
	}
	if err := j.openState(); err != nil {
		return nil, err
	}
	before, err := j.factsKey()
	if err != nil {
		return nil, err
	}
	facts, err := j.AskNVML()
	if err != nil {
		return nil, fmt.Errorf("NVML was asked: %w", err)
	}
	if facts.Driver != j.inv.DriverVersion {
		return nil, fmt.Errorf("NVML is of driver %s and the loaded kernel module %s: install the driver's user space of the same version, or reboot", facts.Driver, j.inv.DriverVersion)
	}
	j.known, j.asked = &facts, true
	// An answer from while MIG was being configured is of neither layout.
	if after, err := j.factsKey(); err != nil || after != before {
		return j.known, err
	}
	if err := j.state.Store(factsName, &knownFacts{Key: before, Facts: facts}); err != nil {
		return nil, fmt.Errorf("keep what NVML said: %w", err)
	}
	return j.known, nil
}

// askFacts is facts for device.Select.
func (j *Job) askFacts(again bool) (facts *device.Facts, fresh bool, err error) {
	if again {
		facts, err = j.freshFacts()
	} else {
		facts, err = j.facts()
	}
	return facts, j.asked, err
}

// keptFacts are the facts as far as they are known already; nil where they are not.
func (j *Job) keptFacts() *device.Facts {
	if j.known != nil {
		return j.known
	}
	var k knownFacts
	if err := j.openState(); err != nil || !j.state.Load(factsName, &k) {
		return nil
	}
	if key, err := j.factsKey(); err != nil || k.Key != key {
		return nil
	}
	j.known = &k.Facts
	return j.known
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
