package gpuinject

import (
	"fmt"
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/procmask"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
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
	Requirements []PlanRequirement `json:"requirements,omitempty"`
	Capabilities []string          `json:"capabilities"`
	// Classes are the other device classes that the container gets: "imex", "gds", "gdrcopy",
	// "mofed", "nvswitch". Their nodes are among Devices.
	Classes []string `json:"classes,omitempty"`
	// IMEX are the numbers of the IMEX channels.
	IMEX []int `json:"imex,omitempty"`
	// Sockets are the daemons of this host whose sockets the container gets: "persistenced",
	// "fabricmanager", "mps".
	Sockets   []string     `json:"sockets,omitempty"`
	Devices   []PlanDevice `json:"devices"`
	Libraries []string     `json:"libraries"`
	Binaries  []string     `json:"binaries"`
	// Mounts are bind mounts of files and directories; the first is the view.
	Mounts []PlanMount `json:"mounts"`
	// Links are symbolic links in the image to files of the mount at ViewDir.
	Links        []PlanLink `json:"links"`
	Proc         PlanProc   `json:"proc"`
	Linker       PlanLinker `json:"linker"`
	RemovedHooks []string   `json:"removed_hooks"`
	// SuspendsGPU reports whether the container gives its GPUs back while it is paused.
	SuspendsGPU bool `json:"suspends_gpu,omitempty"`
	// Ignored lists requests that are ignored, although the container gets its GPUs.
	Ignored []string `json:"ignored,omitempty"`
	// Warnings say what the container gets less than its request names, through a fault of the host.
	Warnings []string `json:"warnings,omitempty"`
	// Audit is what kubernetes = "enforce" would have refused, if the mode is "audit".
	Audit     string     `json:"audit,omitempty"`
	Notes     []string   `json:"notes"`
	Decisions []Decision `json:"decisions"`

	// The nodes with their owners on the host, the groups of nodes that only a group may open, and
	// the driver's files.
	nodes  []device.Node
	groups []uint32
	files  driver.Files

	// What Apply carries out, in this order.
	view        view.Spec
	viewRoot    string            // where the view is on the host
	bundleFiles []image.File      // made in the bundle for one container, by name
	byPath      map[string]string // links of /dev/dri/by-path, by name
	linkerFiles []image.File
	// cacheAt is where the loader's cache is mounted if it cannot be written, "" if nowhere.
	cacheAt string
	edits   bundle.Edits
	mask    []procmask.File
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

// PlanMount is a mount that the container gets.
type PlanMount struct {
	Source      string   `json:"source"`
	Destination string   `json:"destination"`
	Options     []string `json:"options"`
}

// fileOptions are the mount options of a single driver file: never noexec, because libraries and
// programs are mapped executable.
var fileOptions = []string{"bind", "ro", "nosuid", "nodev", "rprivate"}

// PlanLink is a symbolic link that the container gets in its image.
type PlanLink struct {
	Path   string `json:"path"`
	Target string `json:"target"`
}

// PlanProc describes what the mask over /proc/driver shows.
type PlanProc struct {
	// Masked is false for privileged containers.
	Masked bool     `json:"masked"`
	GPUs   []string `json:"gpus"`
	// Capabilities are the capability files of MIG: "gpu0/mig/gi1/access".
	Capabilities []string `json:"capabilities"`
}

// PlanLinker describes how programs in the image find the driver.
type PlanLinker struct {
	// LibC is "glibc", "musl" or empty.
	LibC string `json:"libc"`
	// Directory is the image's own library directory.
	Directory string `json:"directory"`
	// Cache is the state of the loader's cache: "written", "mounted", "unchanged", or "hidden" by
	// one of the container's own mounts.
	Cache string `json:"cache"`
	// Compat is the forward compatibility directory of the image, if it is used.
	Compat string `json:"compat"`
}

// PlanRequirement is a requirement of the image that this host satisfies.
type PlanRequirement struct {
	Variable   string `json:"variable"`
	Expression string `json:"expression"`
	// SatisfiedBy lists the alternatives that hold: several if the GPUs need different ones, none
	// if the expression is empty.
	SatisfiedBy []string `json:"satisfied_by"`
}

// Decision is one decision about a container, for the operator. Decisions cover every device of the
// host, so they must never appear in an error that a container's owner reads.
type Decision struct {
	// Subject of the decision: "GPU 2", "capabilities", "gds".
	Subject string `json:"subject"`
	// Decision is one to four words: "given", "refused", "masked".
	Decision string `json:"decision"`
	Reason   string `json:"reason"`
}

// newPlan returns a plan that contains only the container's request.
func newPlan(c Container) Plan {
	p := Plan{
		GPU: c.Asks, Reason: c.Reason, Asked: c.Request.Devices, Capabilities: c.Request.Capabilities,
		GPUs: []PlanGPU{}, MIG: []PlanMIG{}, Devices: []PlanDevice{}, Mounts: []PlanMount{}, Links: []PlanLink{},
		Libraries: []string{}, Binaries: []string{}, RemovedHooks: []string{},
		Proc: PlanProc{GPUs: []string{}, Capabilities: []string{}}, SuspendsGPU: c.SuspendsGPU,
	}
	if c.ID != "" {
		who := c.Input.Container
		p.Container = &PlanContainer{ID: c.ID, Namespace: c.Namespace, PodNamespace: who.Namespace, Pod: who.Pod, Name: who.Name}
	}
	decision := "asks for the driver"
	if !c.Asks {
		decision = "does not ask for the driver"
	}
	p.decide("container", decision, "%s", c.Reason)
	for _, o := range c.Request.Overridden {
		p.decide(o.What, "not followed", "%s", o.Reason)
	}
	return p
}

// decide records a decision.
func (p *Plan) decide(subject, decision, format string, args ...any) {
	p.Decisions = append(p.Decisions, Decision{Subject: subject, Decision: decision, Reason: fmt.Sprintf(format, args...)})
}

// note records something worth knowing about the container that is not a decision.
func (p *Plan) note(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !slices.Contains(p.Notes, n) {
		p.Notes = append(p.Notes, n)
	}
}

// warn records a fault of the host that the operator should know.
func (p *Plan) warn(format string, args ...any) {
	p.Warnings = append(p.Warnings, fmt.Sprintf(format, args...))
}

// ignore records a request that is ignored.
func (p *Plan) ignore(what, reason string) {
	p.Ignored = append(p.Ignored, what+": "+reason)
	p.decide(what, "ignored", "%s", reason)
}

// audit records what kubernetes = "enforce" would have refused.
func (p *Plan) audit(reason string) {
	if p.Audit == "" {
		p.Audit = "kubernetes = \"enforce\" would have refused this: " + reason
	} else {
		p.Audit += "; " + reason
	}
}

func (p *Plan) setDevices(set device.Set) {
	for _, g := range set.GPUs {
		p.GPUs = append(p.GPUs, NewPlanGPU(g))
	}
	for _, in := range set.MIG {
		p.MIG = append(p.MIG, PlanMIG{UUID: in.UUID, GPU: in.GPU, GI: in.GI, CI: in.CI, Name: in.Name(), Profile: in.Profile})
	}
}

// addClass records a class of devices that the container gets.
func (p *Plan) addClass(class string, nodes []device.Node) {
	p.Classes = append(p.Classes, class)
	if class == config.IMEX {
		for _, n := range nodes {
			p.IMEX = append(p.IMEX, int(n.Minor))
		}
	}
}

// mountFile adds the mount of a single driver file.
func (p *Plan) mountFile(source, dest string) {
	p.Mounts = append(p.Mounts, PlanMount{Source: source, Destination: dest, Options: fileOptions})
}
