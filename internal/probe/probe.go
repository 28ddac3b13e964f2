package probe

import (
	"encoding/json"
	"math"
	"os"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/question"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

const (
	// KubeletTimeout bounds a question to the kubelet, which answers in milliseconds unless it is
	// busy or restarts.
	KubeletTimeout = 3 * time.Second
	// NVMLTimeout bounds a question to NVML unless Questions.Timeout does. Without persistence mode
	// the driver initialises every GPU first, which takes seconds on a large host.
	NVMLTimeout = 10 * time.Second
)

// Descriptors of the program, beside its standard input, which has the questions as JSON.
const (
	// ReadyFD is where the program reads one byte when Questions.Ready has returned.
	ReadyFD = 3
	// ReservationFD is the file in which the program that suspends notes what it moves. The number
	// is beyond those that Go's runtime has for itself.
	ReservationFD = 100
)

// grace is the time for starting the probe and for printing that a question timed out.
const grace = 2 * time.Second

// Questions are everything that a caller wants to know.
type Questions struct {
	// Config is the configuration file that says where the driver is; empty means the default one.
	Config string `json:"config,omitempty"`
	// Facts asks NVML for the facts that the shim needs.
	Facts bool `json:"facts,omitempty"`
	// Live asks NVML for the state of the GPUs, for status, instead of the facts.
	Live bool `json:"live,omitempty"`
	// Pod asks the kubelet what it allocated to a pod.
	Pod *Pod `json:"pod,omitempty"`
	// Suspend and Resume list the processes whose GPU memory is moved to the host, or back.
	Suspend []procfs.ID `json:"suspend,omitempty"`
	Resume  []procfs.ID `json:"resume,omitempty"`
	// GPUs are the PCI addresses of the GPUs that these processes may use; none means all GPUs. An
	// error of another GPU does not matter.
	GPUs []string `json:"gpus,omitempty"`
	// Needs is the GPU memory that must be free before Resume moves any.
	Needs Memory `json:"needs,omitempty"`
	// Placement is where Resume moves it, UUIDs by the UUID of the GPU that it was on. It is empty, or
	// has each GPU that the processes see once on either side.
	Placement map[string]string `json:"placement,omitempty"`
	// Ready is called when everything for Resume is prepared that needs no process to run: libraries
	// are loaded, and the memory is free. Only then the processes are touched. Its error ends the
	// question.
	Ready func() error `json:"-"`
	// Wait is true if there is a Ready. Ask sets it.
	Wait bool `json:"wait,omitempty"`
	// Watch is how often the health of the GPUs is observed, and besides after each of NVML's events,
	// until the program is ended: see Watch. Ask does not ask this.
	Watch time.Duration `json:"watch,omitempty"`
	// Use adds to Watch how each GPU is used.
	Use bool `json:"use,omitempty"`
	// Programs are paths of programs whose versions are asked for: `<program> --version`.
	Programs []string `json:"programs,omitempty"`
	// Cgroups are directories of cgroups for which Live has what they use.
	Cgroups []string `json:"cgroups,omitempty"`
	// SetMemory are the memory limits that Cgroup gets, and ReadMemory the UUIDs of the GPUs for which
	// those that it has are read: see SetMemoryLimits and ReadMemoryLimits.
	SetMemory  []MemoryLimit `json:"set_memory,omitempty"`
	ReadMemory []string      `json:"read_memory,omitempty"`
	// ReleaseMemory is what cgroups below Cgroup had requested that are gone: see ReleaseMemory.
	ReleaseMemory []MemoryLimit `json:"release_memory,omitempty"`
	// Cgroup is the open directory of a cgroup.
	Cgroup *os.File `json:"-"`
	// CgroupPath is where the program finds Cgroup. The program sets it.
	CgroupPath string `json:"cgroup_path,omitempty"`
	// Timeout bounds NVML, and the processes that are suspended or resumed; 0 is NVMLTimeout.
	Timeout time.Duration `json:"timeout,omitempty"`
}

// Memory is the GPU memory of processes in bytes, by process id and UUID of the GPU or MIG device.
type Memory map[int]map[string]uint64

// Observation is what NVML says about the health of the GPUs.
type Observation struct {
	// Unwatched says which GPUs, or all, have no events, and why; "" if each has.
	Unwatched string     `json:"unwatched,omitempty"`
	GPUs      []Observed `json:"gpus"`
	// Clock is when this was observed, since the program began to watch. Changes of the host's time do
	// not matter to it. It is set with Questions.Use.
	Clock time.Duration `json:"clock,omitempty"`
}

// Observed is what NVML says about the health of a GPU. What this GPU or driver does not report is
// as if nothing was wrong, but Recovery is nil.
type Observed struct {
	PCI  string `json:"pci"`
	UUID string `json:"uuid,omitempty"`
	// Error says why the rest is incomplete. Lost and NeedsReset are NVML's errors
	// NVML_ERROR_GPU_IS_LOST and NVML_ERROR_RESET_REQUIRED.
	Error      string `json:"error,omitempty"`
	Lost       bool   `json:"lost,omitempty"`
	NeedsReset bool   `json:"needs_reset,omitempty"`
	// Recovery is nvmlDeviceGpuRecoveryAction_t (driver 570).
	Recovery     *uint32 `json:"recovery,omitempty"`
	RemapPending bool    `json:"remap_pending,omitempty"`
	RemapFailed  bool    `json:"remap_failed,omitempty"`
	PagesPending bool    `json:"pages_pending,omitempty"`
	Unrepairable bool    `json:"unrepairable,omitempty"`
	// Uncorrected counts the uncorrected ECC errors since the driver was loaded.
	Uncorrected uint64 `json:"uncorrected,omitempty"`
	// Xids are the critical Xids since the previous observation, each number once.
	Xids []uint64 `json:"xids,omitempty"`
	// Use is set with Questions.Use, unless the GPU cannot be asked at all.
	Use *GPUUse `json:"use,omitempty"`
}

// GPUUse is how a GPU was used since the previous observation.
type GPUUse struct {
	// Unknown says why this cannot be judged, or is "". Then the other fields mean nothing.
	Unknown string `json:"unknown,omitempty"`
	// Busy is true if the GPU worked, or if a process came, went or changed its memory.
	Busy bool `json:"busy,omitempty"`
	// Processes are the PIDs of those that use it now.
	Processes []int `json:"processes,omitempty"`
}

// Pod is a pod of the kubelet.
type Pod = question.Pod

// ForContainer returns the part of ask that decides about a container.
func ForContainer(ask func(Questions) Answers) question.Ask {
	return func(q question.Questions) question.Answers {
		a := ask(Questions{Facts: q.Facts, Pod: q.Pod})
		return question.Answers{Facts: a.Facts, FactsError: a.FactsError, Pod: a.Pod, PodError: a.PodError, NoKubelet: a.NoKubelet}
	}
}

// Answers has an answer or an error text for each question that was asked. The other fields mean
// nothing.
type Answers struct {
	Facts      *device.Facts `json:"facts,omitempty"`
	FactsError string        `json:"facts_error,omitempty"`
	// Live is an nvml.Snapshot. It is not decoded here: the shim must not link package nvml.
	Live      json.RawMessage    `json:"live,omitempty"`
	LiveError string             `json:"live_error,omitempty"`
	Pod       *policy.Allocation `json:"pod,omitempty"`
	PodError  string             `json:"pod_error,omitempty"`
	// Moved lists the processes in Suspend or Resume that have a CUDA context. It is nil if moving
	// failed for one of them, or if the program does not know the question.
	Moved *[]int `json:"moved,omitempty"`
	// Memory is what Suspend moved, if NVML knows it.
	Memory    Memory `json:"memory,omitempty"`
	MoveError string `json:"move_error,omitempty"`
	// Ready asks for the call of Questions.Ready. The answer follows it.
	Ready bool `json:"ready,omitempty"`
	// Observed is one of the answers to Questions.Watch. The last one is WatchError.
	Observed   *Observation `json:"observed,omitempty"`
	WatchError string       `json:"watch_error,omitempty"`
	// Versions are what Programs printed, in their order.
	Versions      []string `json:"versions,omitempty"`
	VersionsError string   `json:"versions_error,omitempty"`
	// MemoryUse is what each GPU in SetMemory or ReadMemory has and uses, where the driver counts it.
	// It is nil after an error, whose cause, one of those of SetMemoryLimits, is MemoryCause.
	MemoryUse   *[]MemoryUse `json:"memory_use,omitempty"`
	MemoryError string       `json:"memory_error,omitempty"`
	MemoryCause string       `json:"memory_cause,omitempty"`
	// NoKubelet is true if the kubelet's socket did not exist for a second.
	NoKubelet bool `json:"no_kubelet,omitempty"`
}

// NoMemoryLimit is a MemoryLimit.Hard that limits nothing.
const NoMemoryLimit = math.MaxUint64

// MemoryLimit limits the memory of a GPU for the processes of a cgroup, in bytes. Soft 0 and Hard
// NoMemoryLimit are no limit.
type MemoryLimit struct {
	UUID string `json:"uuid"`
	// Soft is the memory that the cgroup should have at least, and Hard what it has at most.
	Soft uint64 `json:"soft"`
	Hard uint64 `json:"hard"`
}

// MemoryUse is what the driver says about the memory of a GPU for the processes of a cgroup.
type MemoryUse struct {
	MemoryLimit
	// Used is in bytes.
	Used uint64 `json:"used"`
}

// AsksMemory reports whether memory limits are set, read or released.
func (q Questions) AsksMemory() bool {
	return q.SetMemory != nil || q.ReadMemory != nil || q.ReleaseMemory != nil
}
