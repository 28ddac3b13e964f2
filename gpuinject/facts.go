package gpuinject

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
)

// factsName is where the state directory keeps what the probe said, and factsLock is
// held while it is asked.
const (
	factsName = "nvml.json"
	factsLock = "nvml.json.lock"
)

// factsWait is how long the answer to another container's question is waited for; that
// question has a time limit of its own. A variable for the tests.
var factsWait = 15 * time.Second

// knownFacts is what the probe said, with what it was true for.
type knownFacts struct {
	Key string
	// Asked is when the probe was started.
	Asked time.Time
	Facts device.Facts
}

// facts returns what only NVML knows: as it was kept, or by asking the probe. Only
// requests that need it get here, and an answer is good until the host boots, loads
// another driver, or its GPUs or MIG layout change.
func (j *Job) facts() (*device.Facts, error) {
	if facts := j.keptFacts(); facts != nil {
		return facts, nil
	}
	return j.ask(time.Time{})
}

// freshFacts asks the probe, whatever is known, and keeps the answer.
func (j *Job) freshFacts() (*device.Facts, error) { return j.ask(time.Now()) }

// ask starts the probe, unless another container has had it started after the given
// time: when a node has booted many want to know at once.
func (j *Job) ask(since time.Time) (*device.Facts, error) {
	if j.AskNVML == nil {
		return nil, errors.New("nobody is there to ask NVML")
	}
	if err := j.openState(); err != nil {
		return nil, err
	}
	lock, err := j.state.Lock(factsLock, factsWait)
	if errors.Is(err, view.ErrBusy) {
		return nil, fmt.Errorf("NVML is being asked for another container and has not answered within %s", factsWait)
	}
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	before, err := j.factsKey(j.inv.Instances)
	if err != nil {
		return nil, err
	}
	var k knownFacts
	if j.state.Load(factsName, &k) && k.Key == before && k.Asked.After(since) && k.Asked.Before(time.Now()) {
		j.known, j.asked = &k.Facts, true
		return j.known, nil
	}
	asked := time.Now()
	facts, err := j.AskNVML()
	if err != nil {
		// A failure is not kept: what made it may be gone the next moment.
		return nil, fmt.Errorf("NVML was asked: %w", err)
	}
	if j.inv.DriverVersion != "" && facts.Driver != j.inv.DriverVersion {
		return nil, fmt.Errorf("NVML is of driver %s and the loaded kernel module %s: install the driver's user space of the same version, or reboot", facts.Driver, j.inv.DriverVersion)
	}
	j.known, j.asked = &facts, true
	// An answer from while MIG was being configured is of neither layout.
	if after, err := j.factsKey(j.inv.Instances); err != nil || after != before {
		return j.known, err
	}
	// A GPU that did not answer may do so later, without a boot.
	if len(facts.GPUs) < len(j.inv.GPUs) {
		return j.known, nil
	}
	if err := j.state.Store(factsName, &knownFacts{Key: before, Asked: asked, Facts: facts}); err != nil {
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
	// The MIG devices are those that this container was shown: looking again would read
	// two files for each, and an answer for others would be of no use.
	if key, err := j.factsKey(j.inv.Seen); err != nil || k.Key != key {
		return nil
	}
	j.known = &k.Facts
	return j.known
}

// factsKey is what the probe's answer depends on; list lists the MIG devices.
func (j *Job) factsKey(list func() ([]device.Instance, error)) (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	instances, err := list()
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
	if state, _ := j.early.read(); state != nil {
		j.state = state
		return nil
	}
	state, err := view.OpenState(j.Config.Host.StateDir)
	if err != nil {
		return fail(Precondition, "%w", err)
	}
	j.state = state
	return nil
}
