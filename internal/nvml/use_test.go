//go:build cgo

package nvml

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// newIdle returns a driver with a GPU that a process has and that does nothing, and a function that
// returns the next observation of it for which wanted holds.
func newIdle(t *testing.T, o sim.Options) (d *sim.Driver, quiet sim.Answer, next func(wanted func(probe.GPUUse) bool) probe.GPUUse) {
	d = sim.New(t, o)
	uuid := d.GPUs[0].UUID
	quiet = sim.Answer{Function: "nvmlDeviceGetUtilizationRates", UUID: uuid, Value: "0"}
	check(t, d.Answers(quiet))
	check(t, d.Place(sim.Process{UUID: uuid, PID: 10, Memory: 5 << 20}))
	observed := watchFor(t, d, "use")
	return d, quiet, func(wanted func(probe.GPUUse) bool) probe.GPUUse {
		t.Helper()
		return *observed(func(o probe.Observation) bool { return o.Clock > 0 && wanted(*o.GPUs[0].Use) }).GPUs[0].Use
	}
}

func isIdle(u probe.GPUUse) bool { return u.Unknown == "" && !u.Busy }

func TestAGPUThatDoesNothingIsIdle(t *testing.T) {
	_, _, next := newIdle(t, sim.Options{GPUs: 1})
	if u := next(func(probe.GPUUse) bool { return true }); u.Unknown != "it was not observed before" {
		t.Errorf("the first observation: %+v", u)
	}
	if u := next(func(u probe.GPUUse) bool { return u.Unknown == "" }); u.Busy || !slices.Equal(u.Processes, []int{10}) {
		t.Errorf("%+v", u)
	}
}

func TestAGPUThatWorksIsBusy(t *testing.T) {
	d, quiet, next := newIdle(t, sim.Options{GPUs: 1})
	uuid := d.GPUs[0].UUID
	one := sim.Process{UUID: uuid, PID: 10, Memory: 5 << 20}
	for name, work := range map[string]func() error{
		"a kernel runs":            func() error { return d.Utilize(sim.Busy{UUID: uuid, PID: 10, Percent: 1}) },
		"the present rate":         func() error { return d.Answers(sim.Answer{Function: quiet.Function, UUID: uuid, Value: "1"}) },
		"a process comes and goes": func() error { return d.Place(one, sim.Process{UUID: uuid, PID: 11, Memory: 1}) },
		"a process takes memory":   func() error { one.Memory++; return d.Place(one) },
	} {
		next(isIdle)
		check(t, work())
		next(func(u probe.GPUUse) bool { return u.Unknown == "" && u.Busy })
		check(t, d.Utilize())
		check(t, d.Answers(quiet))
		check(t, d.Place(one))
		t.Log(name)
	}
	next(isIdle)
}

// Without a complete answer nothing is known.
func TestUseThatCannotBeJudged(t *testing.T) {
	d, quiet, next := newIdle(t, sim.Options{GPUs: 1})
	uuid := d.GPUs[0].UUID
	for _, tc := range []struct {
		name, want string
		set        func() error
	}{
		{"no samples", "NVML has no samples of its utilization since the previous observation",
			func() error {
				return d.Answers(quiet, sim.Answer{Function: "nvmlDeviceGetSamples", UUID: uuid, Value: "0"})
			}},
		{"no samples on this GPU", "NVML does not report the samples of the utilization: this GPU or driver does not support it",
			func() error { return d.Unsupport("nvmlDeviceGetSamples") }},
		{"no utilization of processes", "NVML does not report the utilization of processes: this GPU or driver does not support it",
			func() error { return d.Unsupport("nvmlDeviceGetProcessUtilization") }},
		{"no processes", "NVML does not list its compute processes", func() error { return d.Unsupport("nvmlDeviceGetComputeRunningProcesses") }},
		{"an error", "NVML does not report the samples of the utilization: Unknown Error",
			func() error { return d.Faults(sim.Fault{Function: "nvmlDeviceGetSamples", UUID: uuid, Code: 999}) }},
		{"MPS", "it is used through MPS",
			func() error {
				return d.Place(sim.Process{UUID: uuid, PID: 10, Memory: 5 << 20}, sim.Process{UUID: uuid, PID: 12, Memory: 1, MPS: true})
			}},
	} {
		next(isIdle)
		check(t, tc.set())
		next(func(u probe.GPUUse) bool { return u.Unknown == tc.want })
		check(t, d.Answers(quiet))
		check(t, d.Unsupport())
		check(t, d.Faults())
		check(t, d.Place(sim.Process{UUID: uuid, PID: 10, Memory: 5 << 20}))
	}
	d, _, next = newIdle(t, sim.Options{GPUs: 1, MIG: []sim.MIGDevice{{GPU: 0, GI: 1}}})
	next(func(u probe.GPUUse) bool { return u.Unknown == "it is partitioned by MIG" })
}

// Some drivers take no samples while the GPU does nothing. The latest one is still there then.
func TestSamplesThatStop(t *testing.T) {
	d, quiet, next := newIdle(t, sim.Options{GPUs: 1})
	uuid := d.GPUs[0].UUID
	stopped := func(depth string) {
		check(t, d.Answers(quiet, sim.Answer{Function: "nvmlDeviceGetSamples", UUID: uuid, Value: depth}))
	}
	stopped(fmt.Sprint("stopped ", time.Now().UnixMicro()/200000*200000))
	next(func(u probe.GPUUse) bool { return u.Unknown != "" })
	for range 3 {
		if u := next(func(probe.GPUUse) bool { return true }); !isIdle(u) {
			t.Errorf("%+v", u)
		}
	}
	// A buffer that is too short has lost it.
	stopped("stopped 1000000000")
	next(func(u probe.GPUUse) bool { return u.Unknown != "" })
}
