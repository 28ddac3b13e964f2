package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/nvml"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// Status says who uses which GPU.
type Status struct {
	// Time is when it was read.
	Time          time.Time `json:"time"`
	DriverVersion string    `json:"driver_version"`
	CUDAVersion   string    `json:"cuda_version,omitempty"`
	// NVMLError says why the live state of all or some GPUs is missing.
	NVMLError  string   `json:"nvml_error,omitempty"`
	GPUs       []GPU    `json:"gpus"`
	Containers []Holder `json:"containers"`
}

// GPU is a GPU with its live state. NVML may not answer, or a GPU may not have a property: then
// the field is absent.
type GPU struct {
	gpuinject.PlanGPU
	Model       string            `json:"model"`
	Error       string            `json:"error,omitempty"`
	Memory      *nvml.MemoryState `json:"memory,omitempty"`
	Utilization *nvml.Utilization `json:"utilization,omitempty"`
	Processes   []Process         `json:"processes,omitempty"`
	// Containers are the ids of those that were given the GPU.
	Containers []string `json:"containers"`
	MIG        []MIG    `json:"mig"`
}

// MIG is a MIG device.
type MIG struct {
	UUID       string            `json:"uuid"`
	GI         int               `json:"gi"`
	CI         int               `json:"ci"`
	Profile    string            `json:"profile,omitempty"`
	Memory     *nvml.MemoryState `json:"memory,omitempty"`
	Processes  []Process         `json:"processes,omitempty"`
	Containers []string          `json:"containers"`
}

// Process is a process that uses a GPU.
type Process struct {
	nvml.Process
	Name string `json:"name,omitempty"`
	// Container is the id of its container; empty for a process of the host or of a container
	// that another runtime made.
	Container string `json:"container,omitempty"`
	// owner is the index of that container, or -1.
	owner int
}

// Holder is a container that was given GPUs.
type Holder struct {
	gpuinject.PlanContainer
	PID          int      `json:"pid,omitempty"`
	GPUs         []string `json:"gpus"`
	MIG          []string `json:"mig"`
	Capabilities []string `json:"capabilities"`
	Grant        string   `json:"grant"`
	// Memory is what its processes have allocated on all GPUs, in bytes, and Processes their
	// number. Both are absent if NVML does not say.
	Memory    *uint64 `json:"memory_bytes,omitempty"`
	Processes *int    `json:"processes,omitempty"`
	// devices name its GPUs as the first table of Print does.
	devices []string
}

// Join puts together what the shim's records, the host and NVML say. If NVML did not answer,
// nvmlErr says why.
func Join(proc procfs.FS, inventory device.Inventory, live nvml.Snapshot, nvmlErr error, list []Container) *Status {
	s := &Status{
		Time: time.Now().Truncate(time.Second), DriverVersion: inventory.DriverVersion,
		CUDAVersion: live.CUDA, NVMLError: live.Error, GPUs: []GPU{}, Containers: []Holder{},
	}
	if nvmlErr != nil {
		s.NVMLError = nvmlErr.Error()
	}
	for _, c := range list {
		s.Containers = append(s.Containers, newHolder(c))
	}
	for _, gpu := range inventory.GPUs {
		g := GPU{PlanGPU: gpuinject.NewPlanGPU(gpu), Model: gpu.Model, MIG: []MIG{}}
		g.Containers = s.holders(list, fmt.Sprint(gpu.Index), func(c Container) bool {
			return slices.ContainsFunc(c.Plan.GPUs, func(p gpuinject.PlanGPU) bool { return p.PCI == gpu.BusID })
		})
		for _, in := range inventory.MIG {
			if in.GPU != gpu.Index {
				continue
			}
			m := MIG{GI: in.GI, CI: in.CI}
			m.Containers = s.holders(list, migName(g.Index, in.GI, in.CI), func(c Container) bool {
				return slices.ContainsFunc(c.Plan.MIG, func(p gpuinject.PlanMIG) bool {
					return p.GPU == in.GPU && p.GI == in.GI && p.CI == in.CI
				})
			})
			g.MIG = append(g.MIG, m)
		}
		if nvmlErr == nil {
			g.addLive(proc, list, live)
		}
		s.GPUs = append(s.GPUs, g)
	}
	if nvmlErr == nil {
		for i := range s.Containers {
			s.addUsage(i)
		}
	}
	return s
}

func newHolder(c Container) Holder {
	h := Holder{
		PlanContainer: c.PlanContainer, PID: c.PID, GPUs: []string{}, MIG: []string{},
		Capabilities: c.Plan.Capabilities, Grant: c.Plan.Grant,
	}
	for _, g := range c.Plan.GPUs {
		h.GPUs = append(h.GPUs, cmp.Or(g.UUID, g.PCI))
	}
	for _, m := range c.Plan.MIG {
		h.MIG = append(h.MIG, cmp.Or(m.UUID, m.Name))
	}
	return h
}

// holders returns the ids of the containers that have a device, and notes its name with each.
func (s *Status) holders(list []Container, name string, has func(Container) bool) []string {
	ids := []string{}
	for i, c := range list {
		if has(c) {
			ids = append(ids, c.ID)
			s.Containers[i].devices = append(s.Containers[i].devices, name)
		}
	}
	return ids
}

// addLive adds what NVML says.
func (g *GPU) addLive(proc procfs.FS, list []Container, live nvml.Snapshot) {
	i := slices.IndexFunc(live.GPUs, func(l nvml.GPU) bool { return strings.EqualFold(l.Facts.BusID, g.PCI) })
	if i < 0 {
		g.Error = cmp.Or(live.Error, "NVML does not list it")
		return
	}
	l := live.GPUs[i]
	g.UUID, g.Error = cmp.Or(g.UUID, l.Facts.UUID), l.Error
	if l.State != nil {
		g.Memory, g.Utilization = &l.State.Memory, &l.State.Utilization
		g.Processes = processes(proc, list, l.State.Processes)
	}
	for k := range g.MIG {
		m := &g.MIG[k]
		for i, f := range l.Facts.Instances {
			if f.GI != m.GI || f.CI != m.CI {
				continue
			}
			m.UUID, m.Profile = f.UUID, f.Name
			if i < len(l.Instances) {
				m.Memory, m.Processes = &l.Instances[i].Memory, processes(proc, list, l.Instances[i].Processes)
			}
		}
	}
}

func processes(proc procfs.FS, list []Container, live []nvml.Process) []Process {
	var out []Process
	for _, l := range live {
		p := Process{Process: l, Name: proc.Comm(l.PID), owner: owner(proc, list, l.PID)}
		if p.owner >= 0 {
			p.Container = list[p.owner].ID
		}
		out = append(out, p)
	}
	return out
}

// addUsage adds up what the processes of container i use.
func (s *Status) addUsage(i int) {
	pids, memory, known := map[int]bool{}, uint64(0), true
	add := func(list []Process) {
		for _, p := range list {
			if p.owner != i {
				continue
			}
			pids[p.PID] = true
			if p.Memory == nil {
				known = false
			} else {
				memory += *p.Memory
			}
		}
	}
	for _, g := range s.GPUs {
		add(g.Processes)
		for _, m := range g.MIG {
			add(m.Processes)
		}
	}
	n := len(pids)
	s.Containers[i].Processes = &n
	if known {
		s.Containers[i].Memory = &memory
	}
}

// migName names a MIG device by its GPU, GPU instance and compute instance.
func migName(gpu, gi, ci int) string { return fmt.Sprintf("%d:%d/%d", gpu, gi, ci) }
