package healthwatch

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/health"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// finding is something that is wrong with a GPU.
type finding struct{ state, reason, fix string }

// What to do. A process that has the GPU open prevents its reset, and so does the watcher.
const (
	reboot  = "drain the node and reboot it"
	reset   = "drain the node, stop nvidia-shim-serve and what else has the GPU open, and run nvidia-smi --gpu-reset"
	replace = "drain the node and have the GPU diagnosed or replaced"
	service = "reset the GPU or reboot the node at the next opportunity"
	restart = "if containers fail, restart them; if it comes back, reset the GPU"
	links   = "check NVLink and the fabric manager"
)

// xids are the Xids that say something about the GPU. All others are faults of an application, or
// of one of its contexts. Where the sources disagree (63, 94, 109, 110), it is a warning.
var xids = map[uint64]finding{
	46:  {health.Warn, "GPU stopped processing", service},
	48:  {health.Refuse, "double bit ECC error", reset},
	62:  {health.Refuse, "internal micro-controller halt", reset},
	63:  {health.Warn, "row remapping recorded", service},
	64:  {health.Refuse, "row remapping failed", reset},
	74:  {health.Warn, "NVLink error", links},
	79:  {health.Refuse, "GPU has fallen off the bus", reboot},
	94:  {health.Warn, "contained ECC error", restart},
	95:  {health.Refuse, "uncontained ECC error", reset},
	109: {health.Warn, "context switch timeout", restart},
	110: {health.Warn, "security fault", service},
	119: {health.Refuse, "GSP does not answer", reset},
	120: {health.Refuse, "GSP error", reset},
	140: {health.Refuse, "unrecovered ECC error", reset},
	143: {health.Refuse, "GPU initialization failed", reset},
	144: {health.Warn, "NVLink error", links},
	145: {health.Warn, "NVLink error", links},
	146: {health.Warn, "NVLink error", links},
	147: {health.Warn, "NVLink error", links},
	148: {health.Warn, "NVLink error", links},
	149: {health.Warn, "NVLink error", links},
	150: {health.Warn, "NVLink error", links},
}

// actions are the recovery actions of NVML (nvmlDeviceGpuRecoveryAction_t).
var actions = map[uint32]finding{
	1: {health.Refuse, "the driver asks for a reset of the GPU", reset},
	2: {health.Refuse, "the driver asks for a reboot of the node", reboot},
	3: {health.Warn, "the driver asks to drain peer-to-peer traffic", "stop the containers that use several GPUs"},
	4: {health.Refuse, "the driver asks to drain and reset the GPU", reset},
	5: {health.Warn, "the driver asks to recover the IMEX domain", "restart nvidia-imex on its nodes"},
	6: {health.Refuse, "the driver asks for a reset of the bus", reboot},
	7: {health.Refuse, "the driver asks for a reboot of the system", reboot},
}

// classify returns the state of a GPU with its reasons, the worst first, and what to do about that
// one. seen has the Xids since the driver was loaded.
func classify(o probe.Observed, seen []health.Xid) (state, reason, fix string) {
	var list []finding
	add := func(is bool, state, reason, fix string) {
		if is {
			list = append(list, finding{state, reason, fix})
		}
	}
	add(o.Lost, health.Refuse, "NVML says that the GPU is lost", reboot)
	add(o.NeedsReset, health.Refuse, "NVML says that the GPU needs a reset", reset)
	for _, x := range seen {
		f, known := xids[x.Number]
		add(known, f.state, fmt.Sprintf("Xid %d (%s)", x.Number, f.reason), f.fix)
	}
	if o.Recovery != nil && *o.Recovery > 0 {
		f, known := actions[*o.Recovery]
		if !known {
			f = finding{health.Refuse, fmt.Sprintf("the driver asks for recovery action %d", *o.Recovery), reboot}
		}
		list = append(list, f)
	}
	add(o.RemapFailed, health.Refuse, "a memory row could not be remapped", replace)
	add(o.Unrepairable, health.Refuse, "memory cannot be repaired", replace)
	add(o.RemapPending, health.Warn, "memory rows are remapped at the next reset", service)
	add(o.PagesPending, health.Warn, "memory pages are retired at the next reset", service)
	add(o.Uncorrected > 0, health.Warn, "uncorrected ECC errors since the driver was loaded", service)
	add(o.Error != "" && !o.Lost && !o.NeedsReset, health.Warn, o.Error, "check the kernel log (dmesg) for NVRM and Xid")
	if len(list) == 0 {
		return health.OK, "", ""
	}
	slices.SortStableFunc(list, func(a, b finding) int { return cmp.Compare(a.state, b.state) }) // "refuse", "warn"
	var reasons []string
	for _, f := range list {
		if !slices.Contains(reasons, f.reason) {
			reasons = append(reasons, f.reason)
		}
	}
	return list[0].state, strings.Join(reasons, "; "), list[0].fix
}
