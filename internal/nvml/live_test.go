//go:build cgo

package nvml

import (
	"encoding/json"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

func checkJSON(t *testing.T, v any, want string) {
	t.Helper()
	got, err := json.Marshal(v)
	if err != nil || string(got) != want {
		t.Errorf("got  %s %v\nwant %s", got, err, want)
	}
}

func TestLiveIsTheStateOfTheDriver(t *testing.T) {
	d := sim.New(t, sim.Options{
		GPUs: 2, MIG: []sim.MIGDevice{{GPU: 1, GI: 1}, {GPU: 1, GI: 2}},
	})
	if err := d.Place(
		sim.Process{UUID: d.GPUs[0].UUID, PID: 10, Memory: 5 << 20}, sim.Process{UUID: d.GPUs[0].UUID, PID: 11, Memory: 1 << 20, Graphics: true},
		sim.Process{UUID: d.GPUs[0].UUID, PID: 10, Memory: 5 << 20, Graphics: true}, sim.Process{UUID: d.MIG[1].UUID, PID: 12, Memory: 2 << 20},
		sim.Process{UUID: d.GPUs[0].UUID, PID: 13, Memory: ^uint64(0)},
	); err != nil {
		t.Fatal(err)
	}
	s, err := askFor[Snapshot](t, d, "live")
	if err != nil || s.Driver != d.Version || s.CUDA != "13.0" || len(s.GPUs) != 2 || s.Error != "" || s.GPUs[0].Error != "" {
		t.Fatalf("%+v, %v", s, err)
	}
	// Memory of a process that NVML does not tell is absent.
	checkJSON(t, s.GPUs[0].State.Processes, `[{"pid":10,"type":"C+G","memory_bytes":5242880},{"pid":13,"type":"C"},{"pid":11,"type":"G","memory_bytes":1048576}]`)
	s.GPUs[0].State.Processes, s.GPUs[0].State.Memory.Used, s.GPUs[0].State.Memory.Free = nil, nil, nil
	checkJSON(t, s.GPUs[0].State, `{"memory":{"total_bytes":150754820096},"processes":null}`)
	checkJSON(t, s.GPUs[0].Utilization, `{"gpu_percent":7}`)
	checkJSON(t, s.GPUs[0].Sensors, `{"temperature_celsius":41,"power_milliwatts":118400,"power_limit_milliwatts":700000,"ecc_corrected":0,"ecc_uncorrected":0}`)
	checkJSON(t, s.GPUs[1].Instances, `[{"memory":{"total_bytes":17179869184,"used_bytes":0,"free_bytes":17179869184},"processes":[]},`+
		`{"memory":{"total_bytes":17179869184,"used_bytes":2097152,"free_bytes":17177772032},"processes":[{"pid":12,"type":"C","memory_bytes":2097152}]}]`)
	// The process of a MIG device is not the GPU's too.
	checkJSON(t, s.GPUs[1].State.Processes, `[]`)
}

// A process without a sample of its own is idle; without any sample nothing is known.
func TestUtilizationOfProcesses(t *testing.T) {
	d := sim.New(t, sim.Options{GPUs: 2, MIG: []sim.MIGDevice{{GPU: 1, GI: 1}}})
	gpu := d.GPUs[0].UUID
	check(t, d.Place(sim.Process{UUID: gpu, PID: 10, Memory: 1}, sim.Process{UUID: gpu, PID: 11, Memory: 1}, sim.Process{UUID: d.MIG[0].UUID, PID: 12, Memory: 1}))
	for _, tc := range []struct {
		busy []sim.Busy
		want string
	}{
		{nil, `[{"pid":10,"type":"C","memory_bytes":1},{"pid":11,"type":"C","memory_bytes":1}]`},
		{[]sim.Busy{{UUID: gpu, PID: 11, Percent: 30}, {UUID: gpu, PID: 11, Percent: 40}, {UUID: gpu, PID: 99, Percent: 1}},
			`[{"pid":10,"type":"C","memory_bytes":1,"gpu_percent":0},{"pid":11,"type":"C","memory_bytes":1,"gpu_percent":40}]`},
	} {
		check(t, d.Utilize(tc.busy...))
		s, err := askFor[Snapshot](t, d, "live")
		check(t, err)
		checkJSON(t, s.GPUs[0].State.Processes, tc.want)
		checkJSON(t, s.GPUs[1].Instances[0].Processes, `[{"pid":12,"type":"C","memory_bytes":1}]`)
	}
	check(t, d.Unsupport("nvmlDeviceGetProcessUtilization"))
	s, err := askFor[Snapshot](t, d, "live")
	check(t, err)
	checkJSON(t, s.GPUs[0].State.Processes, `[{"pid":10,"type":"C","memory_bytes":1},{"pid":11,"type":"C","memory_bytes":1}]`)
}

func TestPropertiesThatAGPUDoesNotHaveAreAbsent(t *testing.T) {
	d := sim.New(t, sim.Options{GPUs: 1})
	check(t, d.Unsupport("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetBrand", "nvmlDeviceGetTemperature", "nvmlDeviceGetPowerUsage",
		"nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetTotalEccErrors"))
	s, err := askFor[Snapshot](t, d, "live")
	if err != nil || s.GPUs[0].Facts.Brand != "unknown" {
		t.Fatalf("%+v, %v", s, err)
	}
	checkJSON(t, s.GPUs[0].State, `{"memory":{"total_bytes":150754820096,"used_bytes":0,"free_bytes":150754820096},"processes":[]}`)
	checkJSON(t, s.GPUs[0].Utilization, `{}`)
	checkJSON(t, s.GPUs[0].Sensors, `{}`)
}
