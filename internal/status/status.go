package status

import (
	"cmp"
	"fmt"
	"os/user"
	"slices"
	"strconv"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/health"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/nvml"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// Status is the use of this host's GPUs.
type Status struct {
	// Time is when the status was read.
	Time          time.Time `json:"time"`
	DriverVersion string    `json:"driver_version"`
	CUDAVersion   string    `json:"cuda_version,omitempty"`
	// NVMLError says why the live state of all or some GPUs is missing.
	NVMLError string `json:"nvml_error,omitempty"`
	// FilesError says why the driver's files on this host are not those of the loaded driver, as
	// between an upgrade of its packages and the reboot.
	FilesError string `json:"driver_files_error,omitempty"`
	// HealthError says why the health of the GPUs is not known. It is "" if it is watched.
	HealthError string      `json:"health_error,omitempty"`
	GPUs        []GPU       `json:"gpus"`
	Containers  []Container `json:"containers"`
}

// GPU is a GPU with its live state. NVML may not answer, or a GPU may not have a property: then
// the field is absent.
type GPU struct {
	gpuinject.PlanGPU
	Model       string            `json:"model"`
	Error       string            `json:"error,omitempty"`
	Health      *health.GPU       `json:"health,omitempty"`
	Utilization *nvml.Utilization `json:"utilization,omitempty"`
	Sensors     *nvml.Sensors     `json:"sensors,omitempty"`
	Use
	MIG []MIG `json:"mig"`

	// cgroups are those of nvml.GPU.
	cgroups map[string]uint64
}

// MIG is a MIG device.
type MIG struct {
	UUID    string `json:"uuid"`
	GI      int    `json:"gi"`
	CI      int    `json:"ci"`
	Profile string `json:"profile,omitempty"`
	Use
}

// Use says what uses a GPU or a MIG device.
type Use struct {
	Memory    *nvml.MemoryState `json:"memory,omitempty"`
	Processes []Process         `json:"processes,omitempty"`
	// Containers are the ids of the containers that have the device.
	Containers []string `json:"containers"`
}

// Process is a process that uses a GPU.
type Process struct {
	nvml.Process
	Name string `json:"name,omitempty"`
	// User is the name of its user, or the number of a user of a container.
	User string `json:"user,omitempty"`
	// Container is the id of its container; empty for a process of the host or of a container
	// that another runtime made.
	Container string `json:"container,omitempty"`
}

// Container is a container with GPUs and what its processes use.
type Container struct {
	Record
	// Memory is what its processes have allocated on all GPUs, in bytes, and Processes is their
	// number. Both are absent if NVML does not report them.
	Memory    *uint64 `json:"memory_bytes,omitempty"`
	Processes *int    `json:"processes,omitempty"`
	// Uses is what its processes use of each of its devices, and of others if NVML lists them there.
	// It is absent if NVML did not answer.
	Uses []DeviceUse `json:"use,omitempty"`
	// Idle is set if the container is suspended when it is idle.
	Idle *Idle `json:"idle,omitempty"`
}

// Values of DeviceUse.From: the driver counts the memory of the container's cgroup, or it is the sum of
// what NVML lists for the processes.
const (
	FromCgroup    = "cgroup"
	FromProcesses = "processes"
)

// DeviceUse is what the processes of a container use of a GPU or a MIG device.
type DeviceUse struct {
	// Name is the GPU's index, or "index:gi/ci" of a MIG device.
	Name string `json:"name"`
	UUID string `json:"uuid,omitempty"`
	// From says where Memory is from.
	From string `json:"from"`
	// Memory is in bytes, absent if NVML does not report it for each process.
	Memory *uint64 `json:"memory_bytes,omitempty"`
	// Total is the memory of the device in bytes.
	Total *uint64 `json:"device_memory_bytes,omitempty"`
	// Limit is what the container may use at most, and Request what is reserved for it, in bytes; 0 is
	// none.
	Limit   uint64 `json:"limit_bytes,omitempty"`
	Request uint64 `json:"request_bytes,omitempty"`
	// Utilization is the part of the last seconds in which the processes kept the device busy, in
	// percent, absent if NVML does not report it.
	Utilization *uint32 `json:"gpu_percent,omitempty"`
	Processes   int     `json:"processes"`
}

// Join combines the shim's records, the host's GPUs and NVML's answer. If NVML did not answer,
// nvmlErr says why.
func Join(proc procfs.FS, inventory device.Inventory, live nvml.Snapshot, nvmlErr error, records []Record) *Status {
	s := &Status{
		Time: time.Now().Truncate(time.Second), DriverVersion: inventory.DriverVersion,
		CUDAVersion: live.CUDA, NVMLError: live.Error, GPUs: []GPU{}, Containers: []Container{},
	}
	if nvmlErr != nil {
		s.NVMLError = nvmlErr.Error()
	}
	held := func(gpu device.GPU, fault string) GPU {
		g := GPU{PlanGPU: gpuinject.NewPlanGPU(gpu), Model: gpu.Model, MIG: []MIG{}, Error: fault}
		g.Containers = holders(records, func(r Record) bool {
			return slices.ContainsFunc(r.plan.GPUs, func(p gpuinject.PlanGPU) bool { return p.PCI == gpu.BusID })
		})
		return g
	}
	for _, gpu := range inventory.GPUs {
		g := held(gpu, inventory.FaultOf(gpu))
		for _, in := range inventory.MIG {
			if in.GPU != gpu.Index {
				continue
			}
			m := MIG{GI: in.GI, CI: in.CI}
			m.Containers = holders(records, func(r Record) bool {
				return slices.ContainsFunc(r.plan.MIG, func(p gpuinject.PlanMIG) bool {
					return p.GPU == in.GPU && p.GI == in.GI && p.CI == in.CI
				})
			})
			g.MIG = append(g.MIG, m)
		}
		if nvmlErr == nil {
			g.addLive(proc, records, live)
		}
		s.GPUs = append(s.GPUs, g)
	}
	for _, f := range inventory.Faulty {
		s.GPUs = append(s.GPUs, held(f.GPU, f.Reason))
	}
	slices.SortFunc(s.GPUs, func(a, b GPU) int { return cmp.Compare(a.Index, b.Index) })
	devices := s.devices()
	for _, r := range records {
		c := Container{Record: r}
		if c.Name == "" {
			c.Name = DockerName(r.Namespace, r.ID)
		}
		if nvmlErr == nil {
			c.add(devices)
		}
		s.Containers = append(s.Containers, c)
	}
	return s
}

// AddFiles adds whether the driver's files on the host are those of the loaded driver.
func (s *Status) AddFiles(h host.Host) {
	files, err := h.DriverFiles()
	if err == nil {
		err = files.Check([]string{config.Utility})
	}
	if err != nil {
		s.FilesError = err.Error()
	}
}

// AddHealth adds what the watcher of this host says in its file in the state directory.
func (s *Status) AddHealth(stateDir string) {
	f, err := health.Read(stateDir, s.DriverVersion, time.Now())
	switch {
	case err != nil:
		s.HealthError = err.Error()
	case f.Time.IsZero():
		s.HealthError = "nothing watches the health of the GPUs: nvidia-shimctl serve does"
	}
	for i := range s.GPUs {
		for _, g := range f.GPUs {
			if g.PCI == s.GPUs[i].PCI {
				s.GPUs[i].Health = &g
			}
		}
	}
}

// AddIdle adds what is known about containers that ask to be suspended when they are idle.
func (s *Status) AddIdle(stateDir string) {
	f := ReadIdle(stateDir)
	for i := range s.Containers {
		c := &s.Containers[i]
		if c.IdleAfter() == 0 {
			continue
		}
		known, ok := f.Containers[c.Key()]
		if !ok {
			known = Idle{After: c.IdleAfter().Seconds(), Reason: "nothing watches it"}
		}
		c.Idle = &known
	}
}

func holders(records []Record, has func(Record) bool) []string {
	ids := []string{}
	for _, r := range records {
		if has(r) {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

func (g *GPU) addLive(proc procfs.FS, records []Record, live nvml.Snapshot) {
	i := slices.IndexFunc(live.GPUs, func(l nvml.GPU) bool { return l.Facts.BusID == g.PCI })
	if i < 0 {
		for _, l := range live.GPUs {
			if l.Facts.BusID == "" { // which GPU it is, NVML does not say
				g.Error = cmp.Or(g.Error, l.Facts.Error)
			}
		}
		g.Error = cmp.Or(g.Error, live.Error, "NVML does not list it")
		return
	}
	l := live.GPUs[i]
	g.UUID, g.Error, g.Utilization = cmp.Or(g.UUID, l.Facts.UUID), cmp.Or(g.Error, l.Error), &l.Utilization
	g.Sensors, g.cgroups = &l.Sensors, l.Cgroups
	g.Memory, g.Processes = &l.State.Memory, processes(proc, records, l.State.Processes)
	for k := range g.MIG {
		m := &g.MIG[k]
		i := slices.IndexFunc(l.Facts.Instances, func(f device.InstanceFacts) bool { return f.GI == m.GI && f.CI == m.CI })
		if i < 0 {
			continue
		}
		m.UUID, m.Profile = l.Facts.Instances[i].UUID, l.Facts.Instances[i].Name
		m.Memory, m.Processes = &l.Instances[i].Memory, processes(proc, records, l.Instances[i].Processes)
	}
}

func processes(proc procfs.FS, records []Record, live []nvml.Process) []Process {
	var list []Process
	for _, l := range live {
		p := Process{Process: l, Name: proc.Comm(l.PID), Container: Owner(proc, records, l.PID)}
		if uid, ok := proc.UID(l.PID); ok {
			p.User = uid
			if u, err := user.LookupId(uid); err == nil && p.Container == "" {
				p.User = u.Username
			}
		}
		list = append(list, p)
	}
	return list
}

// add adds up what the processes of the container use.
func (c *Container) add(devices []namedUse) {
	pids, sum, known := map[int]bool{}, uint64(0), true
	for _, d := range devices {
		u := DeviceUse{Name: d.name, UUID: d.uuid, From: FromProcesses}
		for _, l := range c.plan.Memory {
			if l.UUID == d.uuid {
				u.Limit, u.Request = l.Limit, l.Request
			}
		}
		if d.Memory != nil { // NVML lists the device
			u.Memory, u.Total = new(uint64), d.Memory.Total
		}
		for _, p := range d.Processes {
			if p.Container == c.ID {
				pids[p.PID] = true
				u.addProcess(p)
			}
		}
		if u.Processes == 0 && !slices.Contains(d.Containers, c.ID) {
			continue
		}
		if counted, ok := d.cgroups[c.cgroup]; ok {
			u.Memory, u.From = &counted, FromCgroup
		}
		c.Uses = append(c.Uses, u)
		if u.Memory == nil {
			known = false
		} else {
			sum += *u.Memory
		}
	}
	n := len(pids)
	c.Processes = &n
	if known {
		c.Memory = &sum
	}
}

func (u *DeviceUse) addProcess(p Process) {
	u.Processes++
	if p.Memory == nil || u.Memory == nil {
		u.Memory = nil
	} else {
		*u.Memory += *p.Memory
	}
	if p.Utilization != nil {
		percent := *p.Utilization
		if u.Utilization != nil {
			percent += *u.Utilization
		}
		percent = min(percent, 100)
		u.Utilization = &percent
	}
}

// namedUse is the use of a device by its name in the tables.
type namedUse struct {
	name, uuid, model string
	utilization       *nvml.Utilization
	cgroups           map[string]uint64
	Use
}

// devices lists the GPUs, each with its MIG devices behind it.
func (s *Status) devices() []namedUse {
	var list []namedUse
	for _, g := range s.GPUs {
		list = append(list, namedUse{name: strconv.Itoa(g.Index), uuid: g.UUID, model: g.Model, utilization: g.Utilization, cgroups: g.cgroups, Use: g.Use})
		for _, m := range g.MIG {
			list = append(list, namedUse{name: fmt.Sprintf("%d:%d/%d", g.Index, m.GI, m.CI), uuid: m.UUID, model: "MIG " + m.Profile, Use: m.Use})
		}
	}
	return list
}
