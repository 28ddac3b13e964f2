package request

import (
	"fmt"
	"iter"
	"path"
	"slices"
	"strconv"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/parser"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/devnode"
)

// ownVendors are the vendors of CDI kinds that NVIDIA's tools write specifications for: nvidia-ctk,
// its runtime, the device plugin, and containers that manage the driver.
var ownVendors = []string{"nvidia.com", "runtime.nvidia.com", "k8s.device-plugin.nvidia.com", managementVendor}

const managementVendor = "management.nvidia.com"

// maxDevices bounds the identifiers in one list; no host has so many GPUs and MIG devices.
const maxDevices = 1024

// maxText bounds a variable, with its name, and the value of an annotation, in bytes: the kernel
// starts no program with a longer variable (execve(2), MAX_ARG_STRLEN).
const maxText = 128 << 10

// list is a parsed list of device names. Names of NVIDIA's CDI kinds have their usual meaning, but
// they are resolved against the host as it is now: no CDI specification is read.
type list struct {
	// gpus are identifiers and the words "all" and "none", in order.
	gpus []string
	// classes are other classes of devices.
	classes []string
	// channels are IMEX channels; allChannels means every channel.
	channels    []int
	allChannels bool
	// foreign are CDI names of other vendors.
	foreign []string
	// directory is true if the list names DeviceListDir itself: it then means the mounts there.
	directory bool
	// items are all items as written.
	items []string
}

// split yields the items of a comma-separated list, trimmed, without empty ones.
func split(value string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for item := range strings.SplitSeq(value, ",") {
			if item = strings.TrimSpace(item); item != "" && !yield(item) {
				return
			}
		}
	}
}

func isBlank(value string) bool {
	for range split(value) {
		return false
	}
	return true
}

func (l *list) addCDI(item string) error {
	if !strings.Contains(item, "=") {
		return fmt.Errorf("%s is not a CDI name: <vendor>/<class>=<name>", Quote(item))
	}
	return l.add(item)
}

// add adds one item: a plain name, or <vendor>/<class>=<name>.
func (l *list) add(item string) error {
	if len(l.items) == maxDevices { // guard: parsers: names of devices
		return fmt.Errorf("more than %d devices are named", maxDevices)
	}
	l.items = append(l.items, item)
	if path.IsAbs(item) && path.Clean(item) == DeviceListDir {
		l.directory = true
		return nil
	}
	kind, name, ok := strings.Cut(item, "=")
	vendor, class, slash := strings.Cut(kind, "/")
	switch {
	case !ok || !slash:
		l.gpus = append(l.gpus, item)
	case slices.Contains(ownVendors, vendor):
		return l.addOwn(vendor, class, name, item)
	case vendor == "nvidia.com" || strings.HasSuffix(vendor, ".nvidia.com"):
		return fmt.Errorf("%s is of an unknown CDI kind (known vendors: %s)", Quote(item), strings.Join(ownVendors, ", "))
	default:
		if _, _, _, err := parser.ParseQualifiedName(item); err != nil || len(item) > maxQuoted {
			return fmt.Errorf("%s is not a CDI name: <vendor>/<class>=<name>", Quote(item))
		}
		l.foreign = append(l.foreign, item)
	}
	return nil
}

// addOwn adds a device of one of NVIDIA's own CDI kinds.
func (l *list) addOwn(vendor, class, name, item string) error {
	switch {
	case name == "" || strings.TrimSpace(name) != name:
		return fmt.Errorf("%s names no device", Quote(item))
	case IsGPUClass(class):
		l.gpus = append(l.gpus, name)
		if vendor == managementVendor && name == All {
			// A container that manages the driver gets the channels as well.
			l.allChannels = true
		}
	default:
		return l.addOther(vendor, class, name, item)
	}
	return nil
}

// IsGPUClass reports whether the devices of a class of NVIDIA's CDI kinds are GPUs or MIG devices.
// gpu.coherent and gpu.noncoherent distinguish kinds of memory; some specifications call MIG devices
// mig or mig-1g.10gb.
func IsGPUClass(class string) bool {
	return slices.Contains([]string{"gpu", "gpu.coherent", "gpu.noncoherent", "mig"}, class) || strings.HasPrefix(class, "mig-")
}

// addOther adds a device that is no GPU.
func (l *list) addOther(vendor, kind, name, item string) error {
	var kinds []string
	for _, c := range devnode.Classes {
		kinds = append(kinds, c.CDIKind)
		switch {
		case c.CDIKind != kind:
			continue
		case name == All && c.Numbered:
			l.allChannels = true
		case name == All:
			l.classes = append(l.classes, c.Name)
		case c.Numbered:
			n, err := channel(name)
			if err != nil {
				return err
			}
			l.channels = append(l.channels, n)
		default:
			return fmt.Errorf("%s: %s/%s has the one device %s", Quote(item), vendor, kind, All)
		}
		return nil
	}
	return fmt.Errorf("%s is of an unknown CDI kind (known classes: gpu, mig, %s)", Quote(item), strings.Join(kinds, ", "))
}

func (l list) empty() bool { return len(l.items) == 0 }

// onlyForeign reports whether the list names devices of other vendors and nothing else.
func (l list) onlyForeign() bool { return len(l.foreign) > 0 && len(l.items) == len(l.foreign) }

// word returns the first of the words "all" and "none" in a list, or "". It decides what the list
// means.
func (l list) word() string {
	i := slices.IndexFunc(l.gpus, func(id string) bool { return id == All || id == none })
	if i < 0 {
		return ""
	}
	return l.gpus[i]
}

// isVoid reports whether the word "void" is anywhere in a list, even after an invalid item: the
// container then wants nothing from this runtime.
func isVoid(value string) bool {
	for item := range split(value) {
		if item == void {
			return true
		}
	}
	return false
}

// ids returns the identifiers in a list of mounts or annotations: just "all" if that is among them;
// "none" adds nothing.
func (l list) ids() []string {
	if slices.Contains(l.gpus, All) {
		return []string{All}
	}
	var ids []string
	for _, id := range l.gpus {
		if id != none && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// String returns the items, for the text of a reason.
func (l list) String() string { return strings.Join(l.items, ",") }

// maxChannels bounds the numbers of IMEX channels: the kernel's minors have 20 bits. How many a host
// has is the kernel module's parameter NVreg_ImexChannelCount, by default 2048; a channel without a
// node is refused later.
const maxChannels = 1 << 20

// channel parses "7" or "channel7".
func channel(id string) (int, error) {
	digits, _ := strings.CutPrefix(id, "channel")
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || n >= maxChannels {
		return 0, fmt.Errorf("%s is not an IMEX channel: 0 to %d, or channel0 to channel%d", Quote(id), maxChannels-1, maxChannels-1)
	}
	return int(n), nil
}
