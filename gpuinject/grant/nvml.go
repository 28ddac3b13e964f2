package grant

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

// This file keeps NVML's answer for the containers of one boot. The probe asks NVML in a process of
// its own, and rarely: an answer is good until the host boots, loads another driver, or its GPUs or
// MIG layout change. Only one process of the host asks at a time; the others take its answer.

// factsFile is where the state directory keeps the answer. factsLock is held while NVML is asked:
// after a boot, many containers want to know at once.
const (
	factsFile = "nvml.json"
	factsLock = "nvml.json.lock"
)

// factsWait bounds the wait for the answer to another container's question, which has a time limit of
// its own. A variable for the tests.
var factsWait = 15 * time.Second

// keptFacts is NVML's answer, with its conditions and time. The zero value is no answer.
type keptFacts struct {
	Key   string
	Asked time.Time
	Facts device.Facts
}

// loadFacts returns the kept answer if it is still valid for the host h. It does not create the state
// directory: the container may be refused.
func loadFacts(cfg config.Host, h host.Host) keptFacts {
	st, err := state.Open(cfg.StateDir, true)
	if err != nil {
		return keptFacts{} // the error returns when the driver's files are searched
	}
	var k keptFacts
	if !st.Load(factsFile, &k) || k.Key != factsKey(h.Inventory.Found()) { // guard: probe: NVML's answer of this boot
		return keptFacts{}
	}
	return k
}

// askFacts asks q, which includes the question to NVML, and keeps NVML's answer. If NVML was asked for
// another container since seen, that answer is used and only the other questions are asked. The
// error says why there are no facts; the other replies are valid nevertheless.
func askFacts(cfg config.Host, h host.Host, seen keptFacts, q question.Questions, ask question.Ask) (keptFacts, question.Answers, error) {
	others := q
	others.Facts = false
	st, err := state.Open(cfg.StateDir, cfg.ReadOnlyState)
	if err != nil {
		return keptFacts{}, ask(others), err
	}
	lock, err := st.Lock(factsLock, factsWait)
	if errors.Is(err, state.ErrBusy) { // guard: probe: a lock that another program holds, of answers
		lock, err = nil, nil // NVML has a lock of its own, whose holder is known
	}
	if err != nil {
		return keptFacts{}, ask(others), err
	}
	defer lock.Close()
	k := keptFacts{Key: factsKey(h.Inventory.Found())}
	var kept keptFacts
	if st.Load(factsFile, &kept) && kept.Key == k.Key && kept.Asked.After(seen.Asked) && kept.Asked.Before(time.Now()) {
		return kept, ask(others), nil
	}
	k.Asked = time.Now()
	reply := ask(q)
	if err := checkFacts(cfg, h, k.Key, reply); err != nil {
		return keptFacts{}, reply, err
	}
	k.Facts = *reply.Facts
	if !k.Facts.Complete(h.Inventory.Found()) {
		return k, reply, nil // a GPU that did not answer may do so later
	}
	if err := st.Store(factsFile, &k); err != nil {
		return keptFacts{}, reply, fmt.Errorf("keep NVML's answer: %w", err)
	}
	return k, reply, nil
}

// checkFacts returns why an answer of NVML cannot be used.
func checkFacts(cfg config.Host, h host.Host, before string, reply question.Answers) error {
	if reply.Facts == nil {
		return fmt.Errorf("NVML was asked: %s", reply.FactsError)
	}
	// guard: probe: NVML of the loaded driver
	if !reply.Facts.CUDAOnly && h.DriverVersion != "" && reply.Facts.Driver != h.DriverVersion {
		return fmt.Errorf("NVML belongs to driver %s, but the loaded kernel module is %s: install the driver's user space of that version, or reboot", reply.Facts.Driver, h.DriverVersion)
	}
	if after, err := host.Discover(cfg); err != nil || factsKey(after.Inventory) != before {
		return errors.New("MIG was being configured while NVML was asked: try again")
	}
	return nil
}

// factsKey identifies what NVML's answer depends on: boot, driver, GPUs and MIG layout. Without a boot
// id it matches no answer.
func factsKey(h device.Inventory) string {
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
