package facts

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/question"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
)

// Name is where the state directory keeps NVML's answer. lockName is held while NVML is asked:
// after a boot, many containers want to know at once.
const (
	Name     = "nvml.json"
	lockName = "nvml.json.lock"
)

// wait bounds the wait for the answer to another container's question, which has a time limit of
// its own. A variable for the tests.
var wait = 15 * time.Second

// Kept is NVML's answer, with its conditions and time. The zero value is no answer.
type Kept struct {
	Key   string
	Asked time.Time
	Facts device.Facts
}

// Load returns the kept answer if it is still valid for the host h. It does not create the state
// directory: the container may be refused.
func Load(cfg config.Host, h host.Host) Kept {
	st, err := state.Open(cfg.StateDir, true)
	if err != nil {
		return Kept{} // the error returns when the driver's files are searched
	}
	var k Kept
	if !st.Load(Name, &k) || k.Key != key(h.Inventory.Found()) { // guard: probe: NVML's answer of this boot
		return Kept{}
	}
	return k
}

// Ask asks q, which includes the question to NVML, and keeps NVML's answer. If NVML was asked for
// another container since seen, that answer is used and only the other questions are asked. The
// error says why there are no facts; the other replies are valid nevertheless.
func Ask(cfg config.Host, h host.Host, seen Kept, q question.Questions, ask question.Ask) (Kept, question.Answers, error) {
	others := q
	others.Facts = false
	st, err := state.Open(cfg.StateDir, cfg.ReadOnlyState)
	if err != nil {
		return Kept{}, ask(others), err
	}
	lock, err := st.Lock(lockName, wait)
	if errors.Is(err, state.ErrBusy) {
		err = fmt.Errorf("NVML is being asked for another container and has not answered within %s", wait)
	}
	if err != nil {
		return Kept{}, ask(others), err
	}
	defer lock.Close()
	k := Kept{Key: key(h.Inventory.Found())}
	var kept Kept
	if st.Load(Name, &kept) && kept.Key == k.Key && kept.Asked.After(seen.Asked) && kept.Asked.Before(time.Now()) {
		return kept, ask(others), nil
	}
	k.Asked = time.Now()
	reply := ask(q)
	if err := check(cfg, h, k.Key, reply); err != nil {
		return Kept{}, reply, err
	}
	k.Facts = *reply.Facts
	if !k.Facts.Complete(h.Inventory.Found()) {
		return k, reply, nil // a GPU that did not answer may do so later
	}
	if err := st.Store(Name, &k); err != nil {
		return Kept{}, reply, fmt.Errorf("keep NVML's answer: %w", err)
	}
	return k, reply, nil
}

// check returns why an answer of NVML cannot be used.
func check(cfg config.Host, h host.Host, before string, reply question.Answers) error {
	if reply.Facts == nil {
		return fmt.Errorf("NVML was asked: %s", reply.FactsError)
	}
	// guard: probe: NVML of the loaded driver
	if !reply.Facts.CUDAOnly && h.DriverVersion != "" && reply.Facts.Driver != h.DriverVersion {
		return fmt.Errorf("NVML belongs to driver %s, but the loaded kernel module is %s: install the driver's user space of that version, or reboot", reply.Facts.Driver, h.DriverVersion)
	}
	if after, err := host.Discover(cfg); err != nil || key(after.Inventory) != before {
		return errors.New("MIG was being configured while NVML was asked: try again")
	}
	return nil
}

// key identifies what NVML's answer depends on: boot, driver, GPUs and MIG layout. Without a boot
// id it matches no answer.
func key(h device.Inventory) string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	key := strings.TrimSpace(string(boot)) + " " + h.DriverVersion
	for _, g := range h.GPUs {
		key += " " + g.BusID
	}
	for _, in := range h.MIG {
		key += fmt.Sprintf(" %d:%d:%d", in.Minor, in.GI, in.CI)
	}
	return key
}
