package status

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/nvml"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
)

// none stands for what is absent.
const none = "-"

// Print shows a status in tables.
func (s *Status) Print(o *term.Output) {
	driver := "Driver " + s.DriverVersion
	if s.CUDAVersion != "" {
		driver += ", CUDA " + s.CUDAVersion
	}
	o.Line(term.Bold, driver)
	if s.NVMLError != "" {
		o.Field("NVML:", 6, term.Yellow, s.NVMLError)
	}
	for _, g := range s.GPUs {
		if g.Error != "" {
			o.Field(fmt.Sprintf("GPU %d:", g.Index), 7, term.Red, g.Error)
		}
	}
	s.printGPUs(o)
	s.printContainers(o)
	s.printProcesses(o)
}

func (s *Status) printGPUs(o *term.Output) {
	t := o.Table("GPU", "MEMORY", "UTIL", "HELD BY", "MODEL")
	for _, g := range s.GPUs {
		util := none
		if g.Utilization != nil && g.Utilization.GPU != nil {
			util = fmt.Sprintf("%d%%", *g.Utilization.GPU)
		}
		t.Row(held(g.Containers), fmt.Sprint(g.Index), used(g.Memory), util, s.names(g.Containers), g.Model)
		for _, m := range g.MIG {
			t.Row(held(m.Containers), migName(g.Index, m.GI, m.CI), used(m.Memory), "", s.names(m.Containers), "MIG "+m.Profile)
		}
	}
	t.Flush()
}

func (s *Status) printContainers(o *term.Output) {
	o.Line(term.Plain, "")
	if len(s.Containers) == 0 {
		o.Line(term.Plain, "no container has a GPU")
		return
	}
	t := o.Table("CONTAINER", "GPUS", "MEMORY", "PROCESSES", "NAMESPACE", "ID")
	for _, c := range s.Containers {
		name := c.label()
		if c.Pod != "" && c.Name != "" {
			name += "/" + c.Name
		}
		processes := none
		if c.Processes != nil {
			processes = fmt.Sprint(*c.Processes)
		}
		t.Row(term.Plain, name, orNone(c.devices), size(c.Memory), processes, c.Namespace, shortID(c.ID))
	}
	t.Flush()
}

func (s *Status) printProcesses(o *term.Output) {
	t := o.Table("GPU", "PID", "MEMORY", "PROCESS", "CONTAINER")
	rows := 0
	add := func(gpu string, list []Process) {
		for _, p := range list {
			container := none
			if p.owner >= 0 {
				container = s.Containers[p.owner].label()
			}
			t.Row(term.Plain, gpu, fmt.Sprint(p.PID), size(p.Memory), p.Name, container)
			rows++
		}
	}
	for _, g := range s.GPUs {
		add(fmt.Sprint(g.Index), g.Processes)
		for _, m := range g.MIG {
			add(migName(g.Index, m.GI, m.CI), m.Processes)
		}
	}
	if rows == 0 {
		return
	}
	o.Line(term.Plain, "")
	t.Flush()
}

// label is the pod of a container, or its id.
func (h Holder) label() string {
	if h.Pod != "" {
		return h.PodNamespace + "/" + h.Pod
	}
	return shortID(h.ID)
}

// names are the labels of containers.
func (s *Status) names(ids []string) string {
	var names []string
	for _, c := range s.Containers {
		if slices.Contains(ids, c.ID) {
			names = append(names, c.label())
		}
	}
	return orNone(names)
}

func orNone(list []string) string {
	if len(list) == 0 {
		return none
	}
	return strings.Join(list, " ")
}

// held is the style of a device: green if a container has it.
func held(containers []string) term.Style {
	if len(containers) > 0 {
		return term.Green
	}
	return term.Plain
}

func size(v *uint64) string {
	if v == nil {
		return none
	}
	return fmt.Sprintf("%d MiB", *v>>20)
}

func used(m *nvml.MemoryState) string {
	if m == nil || m.Used == nil || m.Total == nil {
		return none
	}
	return fmt.Sprintf("%d/%d MiB", *m.Used>>20, *m.Total>>20)
}

// shortID is as much of a generated id as daemons print.
func shortID(id string) string {
	if len(id) == 64 && strings.Trim(id, "0123456789abcdef") == "" {
		return id[:12]
	}
	return id
}
