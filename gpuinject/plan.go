package gpuinject

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/grant"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/memlimit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/place"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
)

// SuspendedName is a file in the bundle of a container that has released its GPUs. It contains the
// size, in bytes, of the GPU memory that was moved to the host.
const SuspendedName = "nvidia-suspended"

// AnnotationResumeGPU is an annotation of the Task API's Update. It names the GPUs to which the
// next Resume of a suspended container moves its GPU memory, as "[OLD=]NEW,...", by index or UUID.
const AnnotationResumeGPU = "io.containerd.nvidia.resume-gpu"

// RecordName is the file in the bundle that contains the plan as carried out. It is deleted with
// the bundle.
const RecordName = "nvidia.json"

// Plan is everything that will be done for a container, and why. The shim's record, nvidia-shimctl
// and the tests use the same type.
type Plan struct {
	// GPU is true if the container gets the driver. If not, it starts without.
	GPU    bool   `json:"gpu"`
	Reason string `json:"reason"`
	// Error is the refusal. Only nvidia-shimctl sets it.
	Error     string         `json:"error,omitempty"`
	Container *PlanContainer `json:"container,omitempty"`
	// Asked holds the device identifiers as the container wrote them.
	Asked         []string `json:"asked"`
	Grant         string   `json:"grant"`
	DriverVersion string   `json:"driver_version"`
	// Platform is empty on an ordinary host.
	Platform string `json:"platform,omitempty"`
	// GPUs holds whole GPUs, not the GPUs of MIG devices.
	GPUs []PlanGPU `json:"gpus"`
	MIG  []PlanMIG `json:"mig"`
	// MIGRights are rights over all MIG devices: "config", "monitor".
	MIGRights []string `json:"mig_rights,omitempty"`
	// Requirements of the image, all of them satisfied.
	Requirements []grant.Requirement `json:"requirements,omitempty"`
	Capabilities []string            `json:"capabilities"`
	// Classes are the other device classes that the container gets: "imex", "gds", "gdrcopy",
	// "mofed", "nvswitch". Their nodes are among Devices.
	Classes []string `json:"classes,omitempty"`
	// IMEX are the numbers of the IMEX channels.
	IMEX []int `json:"imex,omitempty"`
	// Sockets are the daemons of this host whose sockets the container gets: "persistenced",
	// "fabricmanager", "mps".
	Sockets []string `json:"sockets,omitempty"`
	// Memory are the limits of GPU memory.
	Memory    []memlimit.Limit `json:"memory,omitempty"`
	Devices   []PlanDevice     `json:"devices"`
	Libraries []string         `json:"libraries"`
	Binaries  []string         `json:"binaries"`
	// Mounts are bind mounts of files and directories; the first is the view.
	Mounts []place.Mount `json:"mounts"`
	// Links are symbolic links in the image to files of the mount at ViewDir.
	Links        []place.Link `json:"links"`
	Proc         place.Proc   `json:"proc"`
	Linker       place.Linker `json:"linker"`
	RemovedHooks []string     `json:"removed_hooks"`
	// SuspendsGPU reports whether the container gives its GPUs back while it is paused.
	SuspendsGPU bool `json:"suspends_gpu,omitempty"`
	// SuspendIdle is the time without GPU work, in seconds, after which it is suspended; 0 is never.
	SuspendIdle float64 `json:"suspend_idle_seconds,omitempty"`
	// Ignored lists requests that are ignored, although the container gets its GPUs.
	Ignored []string `json:"ignored,omitempty"`
	// Warnings say what the container gets less than its request names through a fault of the host,
	// and why the driver may not work in it.
	Warnings []string `json:"warnings,omitempty"`
	// Audit is what kubernetes = "enforce" would have refused, if the mode is "audit".
	Audit     string             `json:"audit,omitempty"`
	Notes     []string           `json:"notes"`
	Decisions []verdict.Decision `json:"decisions"`

	// Changes are what Apply carries out. The lists above describe them.
	Changes place.Changes `json:"-"`
}

// PlanContainer identifies a container in its daemon and in Kubernetes.
type PlanContainer struct {
	// ID and Namespace are the names in containerd.
	ID        string `json:"id"`
	Namespace string `json:"namespace"`
	// PodNamespace, Pod and Name are set in Kubernetes only.
	PodNamespace string `json:"pod_namespace,omitempty"`
	Pod          string `json:"pod,omitempty"`
	Name         string `json:"name,omitempty"`
}

// PlanGPU is a GPU that the container gets.
type PlanGPU struct {
	Index int    `json:"index"`
	Minor int    `json:"minor"`
	UUID  string `json:"uuid"`
	PCI   string `json:"pci"`
}

// NewPlanGPU returns a GPU of this host in the form of plans.
func NewPlanGPU(g device.GPU) PlanGPU {
	return PlanGPU{Index: g.Index, Minor: g.Minor, UUID: g.UUID, PCI: g.BusID}
}

// PlanMIG is a MIG device that the container gets.
type PlanMIG struct {
	// UUID and Profile come from NVML; they are empty if it was not asked.
	UUID    string `json:"uuid"`
	Profile string `json:"profile,omitempty"`
	// GPU is the index of the GPU, GI and CI the ids of the GPU instance and of the compute
	// instance in it.
	GPU int `json:"gpu"`
	GI  int `json:"gi"`
	CI  int `json:"ci"`
	// Name is the UUID, or the name that needs no NVML: MIG-GPU-<uuid>/<gi>/<ci>.
	Name string `json:"name"`
}

// String returns the line for this device in the output of nvidia-shimctl plan.
func (m PlanMIG) String() string {
	return fmt.Sprintf("%s, GPU instance %d, compute instance %d of GPU %d", m.Name, m.GI, m.CI, m.GPU)
}

// PlanDevice is a device node that the container gets, with read and write access.
type PlanDevice struct {
	Path  string `json:"path"`
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
}

// newPlan returns the plan for a container: what it asks for, what it gets on a host, and how.
func newPlan(c Container, h host.Host, g grant.Grant, ch place.Changes) Plan {
	p := Plan{
		GPU: c.Asks && !g.Without, Reason: c.Reason, Asked: c.Request.Devices, Capabilities: c.Request.Capabilities,
		Grant: g.May.Reason, DriverVersion: h.DriverVersion, Platform: h.Platform, GPUs: []PlanGPU{}, MIG: []PlanMIG{},
		MIGRights: g.MIGRights, Requirements: g.Requirements, SuspendsGPU: c.SuspendsGPU,
		SuspendIdle: c.IdleAfter.Seconds(), Changes: ch,
	}
	if g.Request.Driver {
		p.Reason, p.Asked, p.Capabilities = g.Request.Reason, g.Request.Devices, g.Request.Capabilities
	}
	if c.ID != "" {
		who := c.Input.Container
		p.Container = &PlanContainer{ID: c.ID, Namespace: c.Namespace, PodNamespace: who.Namespace, Pod: who.Pod, Name: who.Name}
	}
	for _, gpu := range g.Set.GPUs {
		p.GPUs = append(p.GPUs, NewPlanGPU(gpu))
	}
	for _, in := range g.Set.MIG {
		p.MIG = append(p.MIG, PlanMIG{UUID: in.UUID, GPU: in.GPU, GI: in.GI, CI: in.CI, Name: in.Name(), Profile: in.Profile})
	}
	return p.describeChanges()
}

// describeChanges returns the plan with the description of its changes.
func (p Plan) describeChanges() Plan {
	ch := p.Changes
	p.Libraries, p.Binaries, p.Devices = []string{}, []string{}, []PlanDevice{}
	if ch.View != nil {
		for _, l := range ch.View.Files.Libraries {
			p.Libraries = append(p.Libraries, l.Name)
		}
		slices.Sort(p.Libraries)
		for _, b := range ch.View.Files.Binaries {
			p.Binaries = append(p.Binaries, b.Name)
		}
	}
	for _, n := range ch.Nodes {
		p.Devices = append(p.Devices, PlanDevice{Path: n.Path, Major: n.Major, Minor: n.Minor})
	}
	p.Mounts, p.Links = append([]place.Mount{}, ch.Mounts...), append([]place.Link{}, ch.Links...)
	p.Classes, p.IMEX, p.Sockets, p.Linker = ch.Classes, ch.IMEX, ch.Sockets, ch.Linker
	p.Memory = ch.Memory
	p.RemovedHooks = append([]string{}, ch.RemovedHooks...)
	p.Proc = ch.Proc
	p.Proc.GPUs, p.Proc.Capabilities = append([]string{}, ch.Proc.GPUs...), append([]string{}, ch.Proc.Capabilities...)
	p.Ignored, p.Warnings, p.Notes, p.Decisions = ch.Ignored, ch.Warnings, ch.Notes, ch.Decisions
	if len(ch.Audit) > 0 {
		p.Audit = "kubernetes = \"enforce\" would have refused this: " + strings.Join(ch.Audit, "; ")
	}
	return p
}
