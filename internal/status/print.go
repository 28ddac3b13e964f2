package status

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/health"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/nvml"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
)

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
	if s.FilesError != "" {
		o.Field("driver files:", 14, term.Yellow, s.FilesError)
	}
	for _, g := range s.GPUs {
		if g.Error != "" {
			o.Field(fmt.Sprintf("GPU %d:", g.Index), 7, term.Red, g.Error)
		}
		if g.Health.IsSick() {
			o.Field(fmt.Sprintf("GPU %d:", g.Index), 7, healthStyle(g.Health), g.Health.String())
		}
	}
	s.printDevices(o)
	s.printSensors(o)
	s.printContainers(o)
	s.printProcesses(o)
}

// PrintLeft shows what is in use of each device that one of the containers has, and what is left of
// the host's memory. It is for a command that moved GPU memory from one to the other.
func (s *Status) PrintLeft(o *term.Output, proc procfs.FS, containers []string) {
	for _, d := range s.devices() {
		if !slices.ContainsFunc(d.Containers, func(id string) bool { return slices.Contains(containers, id) }) {
			continue
		}
		left := "memory in use is unknown"
		if m := d.Memory; m != nil && m.Used != nil && m.Total != nil {
			left = fmt.Sprintf("%d of %d MiB in use", *m.Used>>20, *m.Total>>20)
		}
		o.Line(term.Plain, "GPU "+d.name+": "+left)
	}
	if available, _, err := nvml.HostMemory(proc); err == nil {
		o.Line(term.Plain, fmt.Sprintf("host: %d MiB of memory available", available>>20))
	}
}

func (s *Status) printSensors(o *term.Output) {
	t := o.Table("GPU", "TEMP", "POWER", "ECC ERRORS", "LAST XID")
	for _, g := range s.GPUs {
		if g.Sensors == nil || g.Sensors.Temperature == nil && g.Sensors.Power == nil {
			continue
		}
		t.Row(term.Plain, strconv.Itoa(g.Index), g.Temperature(), g.Power(), g.ECC(), g.LastXid())
	}
	t.FlushRows()
}

func healthStyle(g *health.GPU) term.Style {
	if g.State == health.Refuse {
		return term.Red
	}
	return term.Yellow
}

func (s *Status) printDevices(o *term.Output) {
	t := o.Table("GPU", "MEMORY", "UTIL", "HELD BY", "MODEL")
	for _, d := range s.devices() {
		style, memory, util := term.Plain, none, none
		if len(d.Containers) > 0 {
			style = term.Green
		}
		if m := d.Memory; m != nil && m.Used != nil && m.Total != nil {
			memory = fmt.Sprintf("%d/%d MiB", *m.Used>>20, *m.Total>>20)
		}
		if d.utilization != nil {
			util = percent(d.utilization.GPU)
		}
		t.Row(style, d.name, memory, util, s.names(d.Containers...), d.model)
	}
	t.Flush()
}

func (s *Status) printContainers(o *term.Output) {
	o.Line(term.Plain, "")
	if len(s.Containers) == 0 {
		o.Line(term.Plain, "no container has a GPU")
		return
	}
	t := o.Table("CONTAINER", "GPU", "MEMORY", "UTIL", "PROCESSES", "NAMESPACE", "ID")
	for _, c := range s.Containers {
		name := c.Label()
		if c.Pod != "" && c.Name != "" {
			name += "/" + c.Name
		}
		for i, row := range s.useRows(c) {
			if i == 0 {
				t.Row(term.Plain, append([]string{name}, append(row, c.Namespace, shortID(c.ID))...)...)
			} else {
				t.Row(term.Plain, append([]string{""}, append(row, "", "")...)...)
			}
		}
	}
	t.Flush()
	if counted := s.counted(); counted != "" {
		o.Line(term.Plain, "MEMORY as the driver counts it for each container, on GPU "+counted)
	}
	for _, c := range s.Containers {
		for _, u := range c.Uses {
			if u.Request != 0 && u.Request != u.Limit {
				o.Line(term.Plain, fmt.Sprintf("%d MiB of GPU %s are reserved for %s", u.Request>>20, u.Name, c.Label()))
			}
		}
	}
	suspended := o.Table("SUSPENDED", "ON THE HOST", "SINCE", "BECAUSE")
	for _, c := range s.Containers {
		if c.Suspended != nil {
			because := none
			if c.Idle != nil && c.Idle.Suspended {
				because = "idle"
			}
			suspended.Row(term.Plain, c.Label(), size(&c.SuspendedMemory), c.Suspended.Format(time.DateTime), because)
		}
	}
	suspended.FlushRows()
	s.printIdle(o)
}

// printIdle shows containers that are suspended when they are idle, and are not suspended.
func (s *Status) printIdle(o *term.Output) {
	t := o.Table("IDLE", "SINCE", "SUSPENDED AFTER", "OR NOT, BECAUSE")
	for _, c := range s.Containers {
		if c.Idle == nil || c.Suspended != nil {
			continue
		}
		since := none
		if !c.Idle.Since.IsZero() {
			since = c.Idle.Since.Local().Format(time.DateTime)
		}
		t.Row(term.Plain, c.Label(), since, c.IdleAfter().String(), cmp.Or(c.Idle.Reason, none))
	}
	t.FlushRows()
}

// counted lists the GPUs whose memory the driver counts for each container. For others MEMORY is the
// sum of the processes.
func (s *Status) counted() string {
	var names []string
	for _, c := range s.Containers {
		for _, u := range c.Uses {
			if u.From == FromCgroup && !slices.Contains(names, u.Name) {
				names = append(names, u.Name)
			}
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// useRows returns device, memory, utilization and number of processes for each device of a
// container.
func (s *Status) useRows(c Container) (rows [][]string) {
	for _, u := range c.Uses {
		memory := size(u.Memory)
		if c.Suspended != nil {
			memory = "suspended"
		}
		if u.Limit != 0 && u.Memory != nil && c.Suspended == nil {
			memory = fmt.Sprintf("%d/%d MiB", *u.Memory>>20, u.Limit>>20)
		}
		rows = append(rows, []string{u.Name, memory, percent(u.Utilization), strconv.Itoa(u.Processes)})
	}
	if len(rows) > 0 {
		return rows
	}
	var gpus []string
	for _, d := range s.devices() { // NVML did not answer
		if slices.Contains(d.Containers, c.ID) {
			gpus = append(gpus, d.name)
		}
	}
	memory := none
	if c.Suspended != nil {
		memory = "suspended"
	}
	return [][]string{{cmp.Or(strings.Join(gpus, " "), none), memory, none, none}}
}

func percent(v *uint32) string {
	if v == nil {
		return none
	}
	return fmt.Sprintf("%d%%", *v)
}

func (s *Status) printProcesses(o *term.Output) {
	t := o.Table("GPU", "PID", "USER", "MEMORY", "UTIL", "PROCESS", "CONTAINER")
	for _, d := range s.devices() {
		for _, p := range d.Processes {
			t.Row(term.Plain, d.name, strconv.Itoa(p.PID), cmp.Or(p.User, none), size(p.Memory), percent(p.Utilization), p.Name, s.names(p.Container))
		}
	}
	t.FlushRows()
}

// Label returns the pod of a container, its name in Docker, or its id.
func (r Record) Label() string {
	switch {
	case r.Pod != "":
		return r.PodNamespace + "/" + r.Pod
	case r.Name != "":
		return r.Name
	}
	return shortID(r.ID)
}

func (s *Status) names(ids ...string) string {
	var names []string
	for _, c := range s.Containers {
		if slices.Contains(ids, c.ID) {
			names = append(names, c.Label())
		}
	}
	return cmp.Or(strings.Join(names, " "), none)
}

func size(v *uint64) string {
	if v == nil {
		return none
	}
	return fmt.Sprintf("%d MiB", *v>>20)
}

// shortID shortens a generated id as daemons do.
func shortID(id string) string {
	if len(id) == 64 && strings.Trim(id, "0123456789abcdef") == "" {
		return id[:12]
	}
	return id
}
