package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/nvml"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
)

// none stands for a property that the GPU does not have.
const none = "-"

// value formats what may be absent.
func value[T any](v *T, format string) string {
	if v == nil {
		return none
	}
	return fmt.Sprintf(format, *v)
}

// size is a number of bytes in MiB.
func size(v *uint64) string {
	if v == nil {
		return none
	}
	return fmt.Sprintf("%d MiB", *v>>20)
}

func sizes(m nvml.MemoryState) string {
	if m.Used == nil || m.Total == nil {
		return none
	}
	return fmt.Sprintf("%d/%d MiB", *m.Used>>20, *m.Total>>20)
}

func (s *hostStatus) print(o *term.Output) error {
	o.Line(o.Paint(term.Bold, driverLine(s.DriverVersion, s.CUDAVersion)))
	if s.NVMLError != "" {
		o.Field("NVML:", 6, term.Yellow, s.NVMLError)
	}
	for _, print := range []func(*term.Output) error{s.printGPUs, s.printDetails, s.printContainers, s.printProcesses} {
		if err := print(o); err != nil {
			return err
		}
	}
	return nil
}

func (s *hostStatus) printGPUs(o *term.Output) error {
	t := o.Table("GPU", "MODEL", "MEMORY", "UTIL", "POWER", "TEMP", "CONTAINERS")
	for _, g := range s.GPUs {
		l := g.live()
		power := none
		if l.Power != nil {
			power = fmt.Sprintf("%.0f", *l.Power)
			if l.PowerLimit != nil {
				power += fmt.Sprintf("/%.0f", *l.PowerLimit)
			}
			power += " W"
		}
		t.Row(term.Textf("%d", g.Index), term.Styled(term.Green, g.Model), term.Text(sizes(l.Memory)), term.Text(value(l.Utilization.GPU, "%d%%")),
			term.Text(power), term.Text(value(l.Temperature, "%d C")), term.Text(orNone(s.names(g.Containers))))
		for _, m := range g.Instances {
			memory := none
			if m.Memory != nil {
				memory = sizes(*m.Memory)
			}
			t.Row(term.Textf("%d:%d/%d", g.Index, m.GI, m.CI), term.Text(strings.TrimSpace("MIG "+m.Profile)), term.Text(memory),
				term.Text(""), term.Text(""), term.Text(""), term.Text(orNone(s.names(m.Containers))))
		}
	}
	return t.Flush()
}

// printDetails is the rest of the live state, where there is any.
func (s *hostStatus) printDetails(o *term.Output) error {
	t := o.Table("GPU", "MEM%", "ENC%", "DEC%", "SM MHZ", "MEM MHZ", "BAR1", "PCIE RX", "PCIE TX", "ECC", "UUID")
	some := false
	for _, g := range s.GPUs {
		if g.Error != "" {
			o.Field(fmt.Sprintf("GPU %d:", g.Index), 7, term.Red, g.Error)
		}
		if g.State == nil {
			continue
		}
		some = true
		l := g.live()
		ecc := term.Text(none)
		if l.ECC.Corrected != nil && l.ECC.Uncorrected != nil {
			// Corrected and uncorrected.
			ecc = term.Textf("%d/%d", *l.ECC.Corrected, *l.ECC.Uncorrected)
			if *l.ECC.Uncorrected > 0 {
				ecc.Style = term.Red
			}
		}
		t.Row(term.Textf("%d", g.Index), term.Text(value(l.Utilization.Memory, "%d")), term.Text(value(l.Utilization.Encoder, "%d")),
			term.Text(value(l.Utilization.Decoder, "%d")), term.Text(value(l.Clocks.SM, "%d")), term.Text(value(l.Clocks.Memory, "%d")),
			term.Text(size(l.BAR1Used)), term.Text(rate(l.PCIe.RX)), term.Text(rate(l.PCIe.TX)), ecc, term.Text(g.UUID))
	}
	if !some {
		return nil
	}
	o.Line("")
	return t.Flush()
}

func rate(v *uint64) string {
	if v == nil {
		return none
	}
	return fmt.Sprintf("%.1f MB/s", float64(*v)/1e6)
}

func (s *hostStatus) printContainers(o *term.Output) error {
	o.Line("")
	if len(s.Containers) == 0 {
		o.Line("no container has a GPU")
		return nil
	}
	t := o.Table("CONTAINER", "NAMESPACE", "POD", "MEMORY", "PROCESSES", "GPUS")
	for _, c := range s.Containers {
		pod := none
		if c.Pod != "" {
			pod = c.PodNamespace + "/" + c.Pod
			if c.Name != "" {
				pod += "/" + c.Name
			}
		}
		t.Row(term.Styled(term.Bold, shortID(c.ID)), term.Text(c.Namespace), term.Text(pod), term.Text(size(c.Memory)),
			term.Text(value(c.Processes, "%d")), term.Text(orNone(s.devices(c))))
	}
	return t.Flush()
}

// devices are a container's GPUs as the first table names them.
func (s *hostStatus) devices(c containerStatus) []string {
	var names []string
	for _, g := range s.GPUs {
		if slices.Contains(g.Containers, c.ID) {
			names = append(names, fmt.Sprint(g.Index))
			continue
		}
		for _, m := range g.Instances {
			if slices.Contains(m.Containers, c.ID) {
				names = append(names, fmt.Sprintf("%d:%d/%d", g.Index, m.GI, m.CI))
			}
		}
	}
	return names
}

func (s *hostStatus) printProcesses(o *term.Output) error {
	t := o.Table("GPU", "PID", "TYPE", "MEMORY", "CONTAINER", "PROCESS")
	some := false
	row := func(gpu string, list []processStatus) {
		for _, p := range list {
			some = true
			container := none
			if p.Container != "" {
				container = shortID(p.Container)
			}
			t.Row(term.Text(gpu), term.Textf("%d", p.PID), term.Text(p.Type), term.Text(size(p.Memory)), term.Text(container), term.Text(p.Name))
		}
	}
	for _, g := range s.GPUs {
		row(fmt.Sprint(g.Index), g.Processes)
		for _, m := range g.Instances {
			row(fmt.Sprintf("%d:%d/%d", g.Index, m.GI, m.CI), m.Processes)
		}
	}
	if !some {
		return nil
	}
	o.Line("")
	return t.Flush()
}

// live is the live state, or one in which everything is absent.
func (g *gpuStatus) live() nvml.State {
	if g.State == nil {
		return nvml.State{}
	}
	return *g.State
}

// names are containers as people call them: the pod's container, or the id.
func (s *hostStatus) names(ids []string) []string {
	var names []string
	for _, c := range s.Containers {
		if !slices.Contains(ids, c.ID) {
			continue
		}
		name := shortID(c.ID)
		if c.Pod != "" {
			name = c.PodNamespace + "/" + c.Pod
		}
		names = append(names, name)
	}
	return names
}

func orNone(list []string) string {
	if len(list) == 0 {
		return none
	}
	return strings.Join(list, " ")
}

// shortID is as much of a generated id as daemons print.
func shortID(id string) string {
	if len(id) == 64 && strings.Trim(id, "0123456789abcdef") == "" {
		return id[:12]
	}
	return id
}
