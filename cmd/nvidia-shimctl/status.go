package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/nvml"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
)

// hostStatus is what `status` prints.
type hostStatus struct {
	// Time is when it was true.
	Time          time.Time `json:"time"`
	DriverVersion string    `json:"driver_version"`
	CUDAVersion   string    `json:"cuda_version,omitempty"`
	// NVMLError says why there is no live state, or not of every GPU.
	NVMLError  string            `json:"nvml_error,omitempty"`
	GPUs       []gpuStatus       `json:"gpus"`
	Containers []containerStatus `json:"containers"`
}

// gpuStatus is a GPU, with its live state where NVML answers.
type gpuStatus struct {
	gpuinject.PlanGPU
	Model string `json:"model"`
	Error string `json:"error,omitempty"`
	// State is NVML's; its processes are those below.
	*nvml.State
	Processes  []processStatus  `json:"processes,omitempty"`
	Containers []string         `json:"containers"`
	Instances  []instanceStatus `json:"mig"`
}

// instanceStatus is a MIG device.
type instanceStatus struct {
	UUID       string            `json:"uuid"`
	GI         int               `json:"gi"`
	CI         int               `json:"ci"`
	Profile    string            `json:"profile,omitempty"`
	Memory     *nvml.MemoryState `json:"memory,omitempty"`
	Processes  []processStatus   `json:"processes,omitempty"`
	Containers []string          `json:"containers"`
}

// processStatus is a process on a GPU.
type processStatus struct {
	nvml.Process
	Name string `json:"name,omitempty"`
	// Container is the id of the container that it belongs to; empty for a process of
	// the host or of a container that another runtime made.
	Container string `json:"container,omitempty"`
}

// containerStatus is a container that was given GPUs.
type containerStatus struct {
	gpuinject.PlanContainer
	PID          int      `json:"pid,omitempty"`
	GPUs         []string `json:"gpus"`
	MIG          []string `json:"mig"`
	Capabilities []string `json:"capabilities"`
	Grant        string   `json:"grant"`
	// Memory is what its processes have allocated on GPUs, in bytes; absent where NVML
	// does not say it.
	Memory *uint64 `json:"memory_bytes,omitempty"`
	// Processes is how many of its processes use a GPU; absent without NVML.
	Processes *int `json:"processes,omitempty"`
}

func statusCommand() *cli.Command {
	return &cli.Command{
		Name:  "status",
		Usage: "show the GPUs with the containers and pods that use them, and how much of their memory",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "show it again and again, until it is interrupted"},
			&cli.DurationFlag{Name: "interval", Usage: "`TIME` between two looks of --watch", Value: 2 * time.Second},
			&cli.StringSliceFlag{Name: "state", Usage: "state `DIR` of a containerd (default: those of running shims, containerd, k3s and Docker)"},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			if err := noArguments(c); err != nil {
				return err
			}
			if c.Duration("interval") < 100*time.Millisecond {
				return usage(fmt.Errorf("--interval %s is less than 100ms", c.Duration("interval")))
			}
			for {
				s, err := readStatus(c)
				if err != nil {
					return err
				}
				if err := s.write(c); err != nil || !c.Bool("watch") {
					return err
				}
				select {
				case <-ctx.Done():
					return nil
				case <-time.After(c.Duration("interval")):
				}
			}
		},
	}
}

// write prints a look: on a terminal over the one before, in a pipe after it, as JSON
// one on each line.
func (s *hostStatus) write(c *cli.Command) error {
	w := c.Root().Writer
	switch {
	case c.Bool("json") && c.Bool("watch"):
		return json.NewEncoder(w).Encode(s)
	case c.Bool("json"):
		return printJSON(w, s)
	}
	o := term.New(w)
	if c.Bool("watch") {
		o.Clear()
		o.Line(s.Time.Format(time.DateTime))
	}
	if err := s.print(o); err != nil || !c.Bool("watch") || o.Terminal() {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

// readStatus looks at procfs, at the shim's records and at NVML. Only the first must
// answer.
func readStatus(c *cli.Command) (*hostStatus, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("only root can read who has which GPU: run status as root")
	}
	cfg, err := loader(c)()
	if err != nil {
		return nil, err
	}
	inv, _, err := gpuinject.FindHost(cfg.Host)
	if inv == nil {
		return nil, err
	}
	states := c.StringSlice("state")
	if len(states) == 0 {
		states = stateDirs
	}
	var snapshot *nvml.Snapshot
	var live nvml.Snapshot
	nvmlErr := askNVML(c, "state", &live)
	if nvmlErr == nil {
		snapshot = &live
	}
	s, err := hostProcfs.status(inv, hostProcfs.containers(states), snapshot)
	if err == nil && nvmlErr != nil {
		s.NVMLError = nvmlErr.Error()
	}
	return s, err
}

// status puts together what the three sources say. Without NVML live is nil.
func (proc procfs) status(inv *device.Inventory, list []gpuContainer, live *nvml.Snapshot) (*hostStatus, error) {
	s := &hostStatus{Time: time.Now().Truncate(time.Second), DriverVersion: inv.DriverVersion, GPUs: []gpuStatus{}, Containers: []containerStatus{}}
	if live != nil {
		s.CUDAVersion, s.NVMLError = live.CUDA, live.Error
	}
	instances, err := inv.Instances()
	if err != nil {
		return nil, err
	}
	u := tally{procfs: proc, list: list, memory: map[string]uint64{}, unknown: map[string]bool{}, pids: map[string]map[int]bool{}}
	for _, gpu := range inv.GPUs {
		s.GPUs = append(s.GPUs, u.gpu(gpu, instances, live))
	}
	for _, c := range list {
		s.Containers = append(s.Containers, u.container(c, live != nil))
	}
	return s, nil
}

// users are the ids of the containers that were given a GPU, or with gi ≥ 0 a MIG
// device of it.
func users(list []gpuContainer, gpu device.GPU, gi, ci int) []string {
	ids := []string{}
	for _, c := range list {
		has := slices.ContainsFunc(c.plan.GPUs, func(g gpuinject.PlanGPU) bool { return g.PCI == gpu.BusID })
		if gi >= 0 {
			has = has || slices.ContainsFunc(c.plan.MIG, func(m gpuinject.PlanMIG) bool { return m.GPU == gpu.Index && m.GI == gi && m.CI == ci })
		}
		if has {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// tally sums up what containers use while the processes are looked at.
type tally struct {
	procfs
	list   []gpuContainer
	memory map[string]uint64
	// unknown are containers with a process whose memory NVML does not tell.
	unknown map[string]bool
	pids    map[string]map[int]bool
}

func (u *tally) gpu(gpu device.GPU, instances []device.Instance, live *nvml.Snapshot) gpuStatus {
	g := gpuStatus{
		PlanGPU: gpuinject.NewPlanGPU(gpu), Model: gpu.Model,
		Containers: users(u.list, gpu, -1, -1), Instances: []instanceStatus{},
	}
	var of *nvml.GPU
	if live != nil {
		i := slices.IndexFunc(live.GPUs, func(l nvml.GPU) bool { return strings.EqualFold(l.Facts.BusID, gpu.BusID) })
		if i >= 0 {
			of = &live.GPUs[i]
			g.UUID, g.Error = cmp.Or(gpu.UUID, of.Facts.UUID), of.Error
		} else {
			g.Error = cmp.Or(live.Error, "NVML does not list it")
		}
	}
	if of != nil && of.State != nil {
		g.State = of.State
		g.Processes = u.use(of.State.Processes)
	}
	for _, in := range instances {
		if in.GPU != gpu.Index {
			continue
		}
		m := instanceStatus{GI: in.GI, CI: in.CI, Containers: users(u.list, gpu, in.GI, in.CI)}
		if of != nil {
			u.instance(&m, of)
		}
		g.Instances = append(g.Instances, m)
	}
	return g
}

func (u *tally) instance(m *instanceStatus, of *nvml.GPU) {
	for i, f := range of.Facts.Instances {
		if f.GI != m.GI || f.CI != m.CI {
			continue
		}
		m.UUID, m.Profile = f.UUID, f.Name
		if i < len(of.Instances) {
			m.Memory = &of.Instances[i].Memory
			m.Processes = u.use(of.Instances[i].Processes)
		}
	}
}

// use adds up what processes use.
func (u *tally) use(list []nvml.Process) []processStatus {
	out := []processStatus{}
	for _, p := range list {
		s := processStatus{Process: p}
		comm, err := os.ReadFile(u.of(strconv.Itoa(p.PID), "comm"))
		if err == nil {
			s.Name = strings.TrimSuffix(string(comm), "\n")
		}
		if c := u.owner(u.list, p.PID); c != nil {
			s.Container = c.ID
			key := c.Namespace + "/" + c.ID
			if p.Memory != nil {
				u.memory[key] += *p.Memory
			} else {
				u.unknown[key] = true
			}
			if u.pids[key] == nil {
				u.pids[key] = map[int]bool{}
			}
			u.pids[key][p.PID] = true
		}
		out = append(out, s)
	}
	return out
}

func (u *tally) container(c gpuContainer, live bool) containerStatus {
	s := containerStatus{
		PlanContainer: c.PlanContainer, PID: c.init, GPUs: []string{}, MIG: []string{},
		Capabilities: c.plan.Capabilities, Grant: c.plan.Grant,
	}
	for _, g := range c.plan.GPUs {
		s.GPUs = append(s.GPUs, cmp.Or(g.UUID, g.PCI))
	}
	for _, m := range c.plan.MIG {
		s.MIG = append(s.MIG, cmp.Or(m.UUID, m.Name))
	}
	key := c.Namespace + "/" + c.ID
	if live {
		n := len(u.pids[key])
		s.Processes = &n
		if !u.unknown[key] {
			memory := u.memory[key]
			s.Memory = &memory
		}
	}
	return s
}
