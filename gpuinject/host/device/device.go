package device

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/devnode"
)

// ErrNoDriver is returned if no NVIDIA kernel module is loaded.
var ErrNoDriver = errors.New("no NVIDIA driver is loaded on this host")

// GPU is a physical GPU.
type GPU struct {
	// Index counts the GPUs that are not excluded in the order of their PCI bus ids. It is -1 for
	// an excluded GPU.
	Index int
	// Minor is N of /dev/nvidiaN, or -1 for a GPU without such a node.
	Minor int
	// UUID is "GPU-" and 36 characters, or empty while the driver does not know it (it prints
	// question marks until the GPU was initialised once).
	UUID string
	// BusID is the PCI address as procfs has it, "0000:65:00.0", or empty for a GPU that is not on
	// a PCI bus.
	BusID string
	Model string // "NVIDIA H200"
	Alias string // another id of the GPU; most have none. "all": every full id names it, see Select
}

// Inventory lists the GPUs and MIG devices of a host at one point in time.
type Inventory struct {
	// DriverVersion is the version of the loaded kernel module: "580.159.04". It is empty on a host
	// that has GPUs without NVIDIA's kernel module.
	DriverVersion string
	GPUs          []GPU // usable ones, in index order
	// Excluded are the GPUs that the administrator took from use (NVreg_ExcludedGpus).
	Excluded []GPU
	// Faulty are the GPUs that the driver lists but whose procfs files cannot be used. They keep
	// their index and are in no other list, and nothing selects them.
	Faulty []Fault
	// MIG are the MIG devices that this host can use, by GPU, GPU instance and compute instance.
	MIG []Instance
	// FaultyMIG are the MIG devices whose capabilities cannot be read. They are not in MIG.
	FaultyMIG []MIGFault
	// WithheldMIG are the MIG devices of the machine that were not given to this host, which is a
	// container.
	WithheldMIG []Instance
	// Config says where the inventory was read.
	Config config.Host

	found *Inventory // before Withhold
}

// Fault is a GPU that cannot be used. Of the GPU only the index and the PCI address are certain.
type Fault struct {
	GPU    GPU
	Reason string // one line, with the file
}

// MIGFault is a MIG device that cannot be used. Its rights are not certain.
type MIGFault struct {
	Instance Instance
	Reason   string // one line, with the file
}

func isNotNumber(s string) bool { return s == "" || strings.Trim(s, "0123456789") != "" }

func isUUID(s string) bool {
	rest, ok := strings.CutPrefix(s, "GPU-")
	return ok && len(rest) == 36 && strings.Trim(rest, "0123456789abcdefABCDEF-") == ""
}

// BusID returns a PCI address in the form of procfs, "0000:65:00.0", or "" if s is none. A domain of
// more than 16 bits has the digits that it needs. NVML prints a domain of eight digits, and
// libnvidia-container accepts fewer, in upper or lower case.
func BusID(s string) string {
	domain, rest, _ := strings.Cut(strings.ToLower(s), ":")
	ok, _ := path.Match("[0-9a-f][0-9a-f]:[0-9a-f][0-9a-f].[0-9a-f]", rest)
	if !ok || domain == "" || len(domain) > 8 || strings.Trim(domain, "0123456789abcdef") != "" {
		return ""
	}
	return fmt.Sprintf("%04s:%s", strings.TrimLeft(domain, "0"), rest)
}

func sameBusID(a, b string) bool { return BusID(a) != "" && BusID(a) == BusID(b) }

// compareBusID has the order of NVML's indices.
func compareBusID(a, b GPU) int {
	return cmp.Or(cmp.Compare(len(a.BusID), len(b.BusID)), strings.Compare(a.BusID, b.BusID))
}

func compareFault(a, b Fault) int { return compareBusID(a.GPU, b.GPU) }

// Instance is a MIG device: a compute instance of a GPU instance.
type Instance struct {
	// GPU is the index of the GPU, and Minor the number of its node.
	GPU, Minor int
	// Parent is the GPU's UUID, empty while the driver does not know it.
	Parent string
	// GI and CI are the ids of the GPU instance and of the compute instance in it.
	GI, CI int
	// GIRight and CIRight are the rights to use these instances. A container needs both.
	GIRight, CIRight Capability

	// UUID, Index and Profile come from NVML: "MIG-…", the number after the colon in "0:1", and
	// "1g.18gb". All three are zero unless the instance was selected by Facts or annotated.
	UUID    string
	Index   int
	Profile string
}

// Name returns an id by which a container can ask for the MIG device: the UUID or, if that is not
// known, the older form MIG-GPU-<uuid>/<gi>/<ci>, which needs no NVML.
func (in Instance) Name() string {
	switch {
	case in.UUID != "":
		return in.UUID
	case in.Parent != "":
		return fmt.Sprintf("MIG-%s/%d/%d", in.Parent, in.GI, in.CI)
	}
	return fmt.Sprintf("%d/%d of GPU %d", in.GI, in.CI, in.GPU)
}

// is reports whether in and x are the same compute instance, whichever names are known.
func (in Instance) is(x Instance) bool {
	return in.Minor == x.Minor && in.GI == x.GI && in.CI == x.CI
}

// hasGraphics reports whether the MIG device can draw: its profile is "1g.24gb+gfx". Only NVML
// knows the profile, and most profiles are without graphics.
func (in Instance) hasGraphics() bool { return strings.Contains(in.Profile, "gfx") }

func (in Instance) rights() []Capability { return []Capability{in.GIRight, in.CIRight} }

// Capability is a right that a process has if it can open a certain node: to use a GPU instance or
// a compute instance, to configure MIG, or to monitor it.
type Capability struct {
	// File is below <proc>/driver/nvidia/capabilities: "gpu0/mig/gi1/access".
	File string
	// Minor is the number of the node, /dev/nvidia-caps/nvidia-cap<minor>.
	Minor uint32
	mode  os.FileMode // of the node
	// modify is false if the driver's libraries must not make the node.
	modify bool
}

// Path returns the path of its node in a container.
func (c Capability) Path() string { return "/dev/" + c.node() }

func (c Capability) node() string {
	return "nvidia-caps/nvidia-cap" + strconv.FormatUint(uint64(c.Minor), 10)
}

// Node is a character device of this host.
type Node struct {
	Path         string // in the container: /dev/nvidia0
	HostPath     string // on the host: <dev-root>/dev/nvidia0
	Major, Minor uint32
	Mode         os.FileMode // permission bits only
	UID, GID     uint32
	// Link is the name of a DRM node below /dev/dri/by-path: pci-0000:19:00.0-card.
	Link string
	// Individual is set for nodes that are granted one by one: an IMEX channel, an RDMA adapter, an
	// NVSwitch. The class's other nodes go to every container that gets the class.
	Individual bool
}

// Number returns the node's number.
func (n Node) Number() devnode.Number {
	return devnode.Number{Major: int64(n.Major), Minor: int64(n.Minor)}
}

// String names the GPU in a message.
func (f Fault) String() string { return fmt.Sprintf("GPU %d", f.GPU.Index) }
