//go:build cgo

package nvml

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// watchInterval is short: the tests wait for what needs no event.
const watchInterval = 100 * time.Millisecond

// watch watches in another process. The function returns the next observation for which wanted
// holds.
func watch(t *testing.T, d *sim.Driver) (next func(wanted func(probe.Observation) bool) probe.Observation) {
	t.Helper()
	return watchFor(t, d, "watch")
}

func watchFor(t *testing.T, d *sim.Driver, task string) (next func(wanted func(probe.Observation) bool) probe.Observation) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{envTask + "=" + task + ":" + d.ConfigPath}
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	answers := json.NewDecoder(out)
	return func(wanted func(probe.Observation) bool) (o probe.Observation) {
		t.Helper()
		for start := time.Now(); time.Since(start) < 30*time.Second; o = (probe.Observation{}) {
			if err := answers.Decode(&o); err != nil {
				_ = cmd.Wait()
				t.Fatalf("%v: %s", err, errs.String())
			}
			if wanted(o) {
				return o
			}
		}
		t.Fatalf("not seen; the last one is %+v", o)
		return o
	}
}

func anything(probe.Observation) bool { return true }

func TestHealthIsObserved(t *testing.T) {
	d := sim.New(t, sim.Options{GPUs: 2})
	next := watch(t, d)
	checkJSON(t, next(anything), `{"gpus":[{"pci":"`+d.GPUs[0].BusID+`","uuid":"`+d.GPUs[0].UUID+`","recovery":0},{"pci":"`+d.GPUs[1].BusID+`","uuid":"`+d.GPUs[1].UUID+`","recovery":0}]}`)
	check(t, d.Xid(d.GPUs[1].UUID, 79))
	o := next(func(o probe.Observation) bool { return len(o.GPUs[1].Xids) > 0 })
	if g := o.GPUs[1]; !slices.Equal(g.Xids, []uint64{79}) || g.Recovery == nil || *g.Recovery != 2 {
		t.Errorf("%+v", g)
	}
	if g := next(anything).GPUs[1]; len(g.Xids) > 0 || *g.Recovery != 2 || *o.GPUs[0].Recovery != 0 {
		t.Errorf("an Xid is observed again: %+v", g)
	}
	uuid := d.GPUs[0].UUID
	check(t, d.Set(sim.Property{UUID: uuid, Name: "remap-pending", Value: 1}, sim.Property{UUID: uuid, Name: "remap-failed", Value: 1},
		sim.Property{UUID: uuid, Name: "pages-pending", Value: 1}, sim.Property{UUID: uuid, Name: "ecc", Value: 3}))
	o = next(func(o probe.Observation) bool { return o.GPUs[0].Uncorrected == 3 })
	if g := o.GPUs[0]; !g.RemapPending || !g.RemapFailed || !g.PagesPending || g.Error != "" {
		t.Errorf("%+v", g)
	}
	check(t, d.Faults(sim.Fault{Function: "nvmlDeviceGetHandleByPciBusId_v2", UUID: uuid, Code: 15}, sim.Fault{Function: "nvmlDeviceGetUUID", UUID: d.GPUs[1].UUID, Code: 16}))
	next(func(o probe.Observation) bool { return o.GPUs[0].Lost && o.GPUs[1].NeedsReset })
}

// However many events there are, there is an observation at the interval, or once in a pause.
func TestAFloodOfEvents(t *testing.T) {
	d := sim.New(t, sim.Options{GPUs: 1})
	next := watch(t, d)
	next(anything)
	var events []sim.Event
	for i := range 1000 {
		events = append(events, sim.Event{UUID: d.GPUs[0].UUID, Type: sim.CriticalXid, Data: i % 100})
	}
	check(t, d.Raise(append(events, sim.Event{UUID: d.GPUs[0].UUID, Type: sim.DoubleBitECC}, sim.Event{UUID: "GPU-none", Type: sim.CriticalXid, Data: 1})...))
	if o := next(func(o probe.Observation) bool { return len(o.GPUs[0].Xids) > 0 }); len(o.GPUs[0].Xids) > maxXids {
		t.Errorf("%+v", o)
	}
}

// Without events the GPUs are observed at each interval, and the observation says so.
func TestEventsThatAGPUOrDriverDoesNotHave(t *testing.T) {
	for _, tc := range []struct{ function, want string }{
		{"nvmlDeviceRegisterEvents", "0000:19:00.0 has no events: "},
		{"nvmlDeviceGetSupportedEventTypes", "0000:19:00.0 has no events: "},
		{"nvmlEventSetWait_v2", "NVML's wait for events failed: "},
	} {
		d := sim.New(t, sim.Options{GPUs: 1})
		check(t, d.Unsupport(tc.function))
		next := watch(t, d)
		next(func(o probe.Observation) bool { return strings.HasPrefix(o.Unwatched, tc.want) })
		check(t, d.Set(sim.Property{UUID: d.GPUs[0].UUID, Name: "recovery", Value: 1}))
		next(func(o probe.Observation) bool { return *o.GPUs[0].Recovery == 1 })
	}
}

// A driver of before 570 has no recovery action.
func TestAnOldDriverIsObserved(t *testing.T) {
	d := sim.New(t, sim.Options{GPUs: 1, Version: "535.104.05"})
	next := watch(t, d)
	if o := next(anything); o.GPUs[0].Recovery != nil || o.GPUs[0].Error != "" || o.Unwatched != "" {
		t.Errorf("%+v", o)
	}
	check(t, d.Xid(d.GPUs[0].UUID, 48))
	next(func(o probe.Observation) bool { return slices.Equal(o.GPUs[0].Xids, []uint64{48}) })
}

// After a call that hangs, the observation says which GPU it is, and the program gives up.
func TestAGPUThatHangsIsObserved(t *testing.T) {
	d := sim.New(t, sim.Options{GPUs: 2})
	next := watch(t, d)
	next(anything)
	check(t, d.Faults(sim.Fault{Function: "nvmlDeviceGetUUID", UUID: d.GPUs[1].UUID, Code: sim.Wait}))
	o := next(func(o probe.Observation) bool { return o.GPUs[1].Error != "" })
	if !strings.Contains(o.GPUs[1].Error, "hangs") || o.GPUs[0].Error != "" {
		t.Errorf("%+v", o)
	}
}
