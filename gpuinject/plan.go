package gpuinject

import (
	"path"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
)

// RecordName is the file in the bundle that says what was asked, granted and
// injected, and why. It goes with the bundle.
const RecordName = "nvidia.json"

// Plan is what a container gets and why. The shim's record, nvidia-shimctl and the
// tests read the same one.
type Plan struct {
	// GPU says whether the container gets the driver at all.
	GPU    bool   `json:"gpu"`
	Reason string `json:"reason"`
	Error  string `json:"error,omitempty"`
	// Container is whose plan this is, where there is a container.
	Container *PlanContainer `json:"container,omitempty"`
	// Asked is the request as the container wrote it: device identifiers.
	Asked         []string `json:"asked"`
	Grant         string   `json:"grant"`
	DriverVersion string   `json:"driver_version"`
	// Platform is "wsl" or "tegra" where the host is one, and has no driver version.
	Platform device.Platform `json:"platform,omitempty"`
	// GPUs are whole GPUs; that of a MIG device is not among them.
	GPUs []PlanGPU `json:"gpus"`
	MIG  []PlanMIG `json:"mig"`
	// MIGRights are rights over all MIG devices: "config", "monitor".
	MIGRights []string `json:"mig_rights,omitempty"`
	// Requirements are those of the image, all of them fulfilled.
	Requirements []PlanRequirement `json:"requirements,omitempty"`
	Capabilities []string          `json:"capabilities"`
	// Classes are the other classes of devices that it gets: "imex", "gds", "gdrcopy",
	// "mofed", "nvswitch". Their nodes are among Devices.
	Classes []string `json:"classes,omitempty"`
	// IMEX are the numbers of the IMEX channels.
	IMEX []int `json:"imex,omitempty"`
	// Sockets are the daemons of this host whose sockets it gets: "persistenced",
	// "fabricmanager", "mps".
	Sockets []string `json:"sockets,omitempty"`
	// Foreign are other vendors' devices, by their CDI names.
	Foreign   []string     `json:"foreign,omitempty"`
	Devices   []PlanDevice `json:"devices"`
	Libraries []string     `json:"libraries"`
	Binaries  []string     `json:"binaries"`
	Mounts    []PlanMount  `json:"mounts"`
	// Links are symbolic links in the image to files of the mount at ViewDir.
	Links        []PlanLink `json:"links"`
	Proc         PlanProc   `json:"proc"`
	Linker       PlanLinker `json:"linker"`
	RemovedHooks []string   `json:"removed_hooks"`
	// Ignored says what it asks for and does not get, though it gets its GPUs.
	Ignored []string `json:"ignored,omitempty"`
	// Audit says what kubernetes = "enforce" would have refused, where it is "audit".
	Audit string   `json:"audit,omitempty"`
	Notes []string `json:"notes"`
	// Decisions are every decision with its reason, where Job.Explain is set.
	Decisions []Decision `json:"decisions,omitempty"`
}

// PlanContainer is a container as its daemon and Kubernetes know it.
type PlanContainer struct {
	// ID and Namespace are containerd's.
	ID        string `json:"id"`
	Namespace string `json:"namespace"`
	// PodNamespace, Pod and Name are Kubernetes'; empty elsewhere.
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

// NewPlanGPU is a GPU of this host as plans have it.
func NewPlanGPU(g device.GPU) PlanGPU {
	return PlanGPU{Index: g.Index, Minor: g.Minor, UUID: g.UUID, PCI: g.BusID}
}

// PlanMIG is a MIG device that the container gets.
type PlanMIG struct {
	// UUID and Profile are NVML's and empty where it was not asked.
	UUID    string `json:"uuid"`
	Profile string `json:"profile,omitempty"`
	// GPU is the index of the GPU, GI and CI the ids of the GPU instance and of the
	// compute instance in it.
	GPU int `json:"gpu"`
	GI  int `json:"gi"`
	CI  int `json:"ci"`
	// Name is the UUID, or the name that needs no NVML: MIG-GPU-<uuid>/<gi>/<ci>.
	Name string `json:"name"`
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

// PlanLink is a symbolic link that the container gets in its image.
type PlanLink struct {
	Path   string `json:"path"`
	Target string `json:"target"`
}

// PlanProc is what the mask over /proc/driver/nvidia shows.
type PlanProc struct {
	// Masked is false for privileged containers.
	Masked bool     `json:"masked"`
	GPUs   []string `json:"gpus"`
	// Capabilities are the capability files of MIG: "gpu0/mig/gi1/access".
	Capabilities []string `json:"capabilities"`
}

// PlanLinker is how programs of the image find the driver.
type PlanLinker struct {
	// LibC is "glibc", "musl" or empty.
	LibC string `json:"libc"`
	// Directory is the image's own library directory.
	Directory string `json:"directory"`
	// Cache says how the loader was told: "written", "mounted" or "unchanged".
	Cache string `json:"cache"`
	// Compat is the forward compatibility directory of the image that is used.
	Compat string `json:"compat"`
}

func (p *Plan) setGPUs(gpus []device.GPU) {
	p.GPUs = []PlanGPU{}
	for _, g := range gpus {
		p.GPUs = append(p.GPUs, NewPlanGPU(g))
	}
}

func (p *Plan) setDevices(nodes []device.Node) {
	p.Devices = []PlanDevice{}
	for _, n := range nodes {
		p.Devices = append(p.Devices, PlanDevice{Path: n.Path, Major: n.Major, Minor: n.Minor})
	}
}

func (p *Plan) setMounts(mounts []specs.Mount) {
	p.Mounts = []PlanMount{}
	if p.Links == nil {
		p.Links = []PlanLink{}
	}
	for _, m := range mounts {
		p.Mounts = append(p.Mounts, PlanMount{Source: m.Source, Destination: path.Clean(m.Destination), Options: m.Options})
	}
}

func (p *Plan) note(s string) { p.Notes = append(p.Notes, s) }

// Of says which container the plan is for, by containerd's id and namespace.
func (j *Job) Of(id, namespace string) {
	j.Plan.Container = &PlanContainer{
		ID: id, Namespace: namespace,
		PodNamespace: j.Container.Namespace, Pod: j.Container.Pod, Name: j.Container.Name,
	}
}
