//go:build cgo

package nvml

import (
	"math"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
)

// Live returns the state of the GPUs. A GPU that does not answer has an error of its own. The
// process can start no program afterwards.
func Live(host config.Host) (Snapshot, error) {
	return ask(host, func(l *library) (Snapshot, error) {
		h, err := l.host()
		if err != nil {
			return Snapshot{}, err
		}
		s := Snapshot{Driver: h.driver, CUDA: h.cuda, GPUs: []GPU{}}
		if h.lost != nil {
			s.Error = h.lost.Error()
		}
		for _, d := range h.gpus {
			r := &reader{library: l}
			g := GPU{Facts: r.gpuFacts(d), State: r.state(d)}
			if g.Facts.MIG {
				g.State.Processes = []Process{}
				g.Instances = r.instances(d, g.Facts.Instances)
			}
			if r.err != nil {
				g.Error = r.err.Error()
			}
			s.GPUs = append(s.GPUs, g)
		}
		return s, nil
	})
}

func (r *reader) state(d gpu) *State {
	s := &State{Memory: r.memory(d), Processes: r.processes(d)}
	if u := get(r, "utilization", d.GetUtilizationRates, "nvmlDeviceGetUtilizationRates"); u != nil {
		s.Utilization.GPU = &u.Gpu
	}
	return s
}

// instances returns the states of a GPU's MIG devices, in the order of their facts.
func (r *reader) instances(d gpu, facts []device.InstanceFacts) []InstanceState {
	var list []InstanceState
	migs := r.migDevices(d)
	for _, f := range facts {
		s := InstanceState{Processes: []Process{}}
		for _, m := range migs {
			if m.index == f.Index {
				s = InstanceState{Memory: r.memory(m), Processes: r.processes(m)}
			}
		}
		list = append(list, s)
	}
	return list
}

// memory returns the memory of a GPU. What the driver keeps for itself does not count as used, as
// in nvidia-smi, if the driver is new enough to tell.
func (r *reader) memory(d gpu) MemoryState {
	if m := get(r, "memory", d.GetMemoryInfo_v2, "nvmlDeviceGetMemoryInfo_v2"); m != nil {
		return MemoryState{Total: &m.Total, Used: &m.Used}
	}
	if m := get(r, "memory", d.GetMemoryInfo, "nvmlDeviceGetMemoryInfo"); m != nil {
		return MemoryState{Total: &m.Total, Used: &m.Used}
	}
	return MemoryState{}
}

// processes lists the processes that use a GPU for computing, for graphics or for both.
func (r *reader) processes(d gpu) []Process {
	list := []Process{}
	for _, kind := range []struct {
		name, what, symbol string
		fn                 func() ([]nvml.ProcessInfo, nvml.Return)
	}{
		{"C", "compute processes", "nvmlDeviceGetComputeRunningProcesses", d.GetComputeRunningProcesses},
		{"G", "graphics processes", "nvmlDeviceGetGraphicsRunningProcesses", d.GetGraphicsRunningProcesses},
	} {
		infos := get(r, kind.what, kind.fn, kind.symbol+"_v3", kind.symbol+"_v2", kind.symbol)
		if infos == nil {
			continue
		}
		for _, in := range *infos {
			i := slices.IndexFunc(list, func(p Process) bool { return p.PID == int(in.Pid) })
			if i >= 0 {
				if list[i].Type != kind.name {
					list[i].Type = "C+G"
				}
				continue
			}
			p := Process{PID: int(in.Pid), Type: kind.name}
			if in.UsedGpuMemory != math.MaxUint64 { // NVML_VALUE_NOT_AVAILABLE
				p.Memory = &in.UsedGpuMemory
			}
			list = append(list, p)
		}
	}
	return list
}
