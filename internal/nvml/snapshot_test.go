//go:build cgo

package nvml

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/simtest"
)

// compact is JSON for comparison.
func compact(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestStatesAreThoseOfTheDriver(t *testing.T) {
	d := simtest.New(t, sim.Options{GPUs: 2, MIG: []sim.MIGDevice{{GPU: 1, GI: 1}, {GPU: 1, GI: 2}}})
	if err := d.Place(
		sim.Process{UUID: d.GPUs[0].UUID, PID: 10, Memory: 5 << 20}, sim.Process{UUID: d.GPUs[0].UUID, PID: 11, Memory: 1 << 20, Graphics: true},
		sim.Process{UUID: d.GPUs[0].UUID, PID: 10, Memory: 5 << 20, Graphics: true}, sim.Process{UUID: d.MIG[1].UUID, PID: 12, Memory: 2 << 20},
		sim.Process{UUID: d.GPUs[0].UUID, PID: 13, Memory: ^uint64(0)},
	); err != nil {
		t.Fatal(err)
	}
	var s Snapshot
	if err := askFor(t, d, "states", &s); err != nil {
		t.Fatal(err)
	}
	if s.Driver != d.Version || s.CUDA != "13.0" || len(s.GPUs) != 2 || s.Error != "" || s.GPUs[0].Error != "" {
		t.Fatalf("%s", compact(t, s))
	}
	// Memory that NVML does not tell is absent, and what it sums up is as it says.
	if got, want := compact(t, s.GPUs[0].State.Processes), `[{"pid":10,"type":"C+G","memory_bytes":5242880},{"pid":13,"type":"C"},{"pid":11,"type":"G","memory_bytes":1048576}]`; got != want {
		t.Errorf("processes %s, want %s", got, want)
	}
	s.GPUs[0].State.Processes, s.GPUs[0].State.Memory.Used = nil, nil
	if got, want := compact(t, s.GPUs[0].State), `{"power_watts":75.25,"power_limit_watts":700,"temperature_celsius":31,`+
		`"utilization":{"gpu_percent":7,"memory_percent":2,"encoder_percent":3,"decoder_percent":4},"memory":{"total_bytes":150754820096},`+
		`"ecc_errors":{"corrected":2,"uncorrected":0,"l1_uncorrected":0,"l2_uncorrected":0,"memory_uncorrected":0},`+
		`"clocks":{"sm_mhz":345,"memory_mhz":3201},"bar1_used_bytes":4194304,"pcie":{"rx_bytes_per_second":200000,"tx_bytes_per_second":100000},"processes":null}`; got != want {
		t.Errorf("state %s\nwant  %s", got, want)
	}
	if got, want := compact(t, s.GPUs[1].Instances), `[{"memory":{"total_bytes":17179869184,"used_bytes":0},"processes":[]},`+
		`{"memory":{"total_bytes":17179869184,"used_bytes":2097152},"processes":[{"pid":12,"type":"C","memory_bytes":2097152}]}]`; got != want {
		t.Errorf("MIG devices %s\nwant        %s", got, want)
	}
	if len(s.GPUs[1].State.Processes) != 0 {
		t.Errorf("the process of a MIG device is the GPU's too: %s", compact(t, s.GPUs[1].State))
	}
}

func TestInfosAreThoseOfTheDriver(t *testing.T) {
	d := simtest.New(t, sim.Options{GPUs: 3, Models: map[int]sim.Model{1: {Name: "NVIDIA L4", Brand: "nvidia", Arch: "8.9"}}})
	var s Snapshot
	if err := askFor(t, d, "infos", &s); err != nil {
		t.Fatal(err)
	}
	if got, want := compact(t, s.GPUs[0].Info), `{"family":"Hopper","cores":16896,"power_limit_watts":700,"cpu_affinity":"0-3","persistence":true,`+
		`"pcie":{"generation":5,"width":16,"bandwidth_bytes_per_second":63008000000,"bar1_bytes":274877906944},"max_clocks":{"sm_mhz":1980,"memory_mhz":3201},`+
		`"memory":{"total_bytes":150754820096,"ecc":true,"bus_width_bits":6144,"bandwidth_bytes_per_second":4916736000000},`+
		`"links":[{"index":1,"uuid":"`+d.GPUs[1].UUID+`","pci":"0000:3b:00.0","path":"SYS"},{"index":2,"uuid":"`+d.GPUs[2].UUID+`","pci":"0000:4c:00.0","path":"SYS"}]}`; got != want {
		t.Errorf("info %s\nwant %s", got, want)
	}
	if f := s.GPUs[1].Info.Family; f == nil || *f != "Ada" {
		t.Errorf("GPU 1: %s", compact(t, s.GPUs[1].Info))
	}
}

func TestWhatAGPUDoesNotHaveIsAbsent(t *testing.T) {
	d := simtest.New(t, sim.Options{GPUs: 1})
	if err := d.Unsupport("nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetTemperature", "nvmlDeviceGetUtilizationRates",
		"nvmlDeviceGetEncoderUtilization", "nvmlDeviceGetDecoderUtilization", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetMemoryErrorCounter",
		"nvmlDeviceGetClockInfo", "nvmlDeviceGetBAR1MemoryInfo", "nvmlDeviceGetPcieThroughput", "nvmlDeviceGetEccMode", "nvmlDeviceGetNumGpuCores",
		"nvmlDeviceGetMaxPcieLinkGeneration", "nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetMemoryBusWidth"); err != nil {
		t.Fatal(err)
	}
	var s Snapshot
	if err := askFor(t, d, "states", &s); err != nil {
		t.Fatal(err)
	}
	if got, want := compact(t, s.GPUs[0].State), `{"utilization":{},"memory":{"total_bytes":150754820096,"used_bytes":0},"ecc_errors":{},"clocks":{},"pcie":{},"processes":[]}`; got != want {
		t.Errorf("state %s, want %s", got, want)
	}
	s = Snapshot{}
	if err := askFor(t, d, "infos", &s); err != nil {
		t.Fatal(err)
	}
	got := compact(t, s.GPUs[0].Info)
	for _, field := range []string{"power_limit", "cores", "generation", "bandwidth", "bar1", "sm_mhz", "ecc", "bus_width", "links"} {
		if strings.Contains(got, field) {
			t.Errorf("info has %s: %s", field, got)
		}
	}
}

func TestCPUListsAreWrittenAsTheKernelWritesThem(t *testing.T) {
	for want, mask := range map[string][]uint{
		"": {0, 0}, "0": {1}, "0-3": {0xf}, "1,3": {0xa}, "0-1,63-64": {1<<63 | 3, 1}, "0-127": {^uint(0), ^uint(0)},
	} {
		if got := cpuList(mask); got != want {
			t.Errorf("%x is %q, want %q", mask, got, want)
		}
	}
}
