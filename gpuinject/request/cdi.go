package request

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/parser"
)

// Annotation keys that carry CDI names: the prefix that the CDI specification gives
// to container engines, and the one of NVIDIA's NRI plugin, which device plugins can
// be configured with. The latter is also a key by itself, for a whole pod.
const (
	annotationCDI    = "cdi.k8s.io/"
	annotationNVIDIA = "nvidia.cdi.k8s.io"
)

// ownVendors are the vendors of CDI kinds that NVIDIA's tools write specifications
// for (toolkit.md 3.3): of nvidia-ctk, of its runtime, of the device plugin, and of
// containers that manage the driver.
var ownVendors = []string{"nvidia.com", "runtime.nvidia.com", "k8s.device-plugin.nvidia.com", managementVendor}

const managementVendor = "management.nvidia.com"

// classKinds are the CDI classes of our vendors that are no GPUs, with one device,
// "all".
var classKinds = map[string]string{"gds": GDS, "gdrcopy": GDRCopy, "mofed": MOFED, "nvswitch": NVSwitch}

// imexKind is the CDI class of IMEX channels; the device is the channel's number.
const imexKind = "imex-channel"

// List is a list of device names taken apart. The names of our own CDI kinds say what
// they say anywhere else: they are resolved against the host as it is, and no CDI
// specification of theirs is read, which would be of the host as it was.
type List struct {
	// GPUs are identifiers and the words "all", "none" and "void", in order.
	GPUs []string
	// Classes are classes of other devices that are named.
	Classes []string
	// Channels are the IMEX channels that are named; AllChannels stands for every one.
	Channels    []int
	AllChannels bool
	// Foreign are the CDI names of other vendors' devices, each once.
	Foreign []string
	// Directory is set where DeviceListDir itself is named: look at the mounts.
	Directory bool

	items int
}

// add takes in one item of a list: a plain name, or <vendor>/<class>=<name>.
func (l *List) add(item string) error {
	if l.items++; l.items > maxDevices {
		return fmt.Errorf("more than %d devices are named", maxDevices)
	}
	if path.IsAbs(item) && path.Clean(item) == DeviceListDir {
		l.Directory = true
		return nil
	}
	kind, name, ok := strings.Cut(item, "=")
	vendor, class, slash := strings.Cut(kind, "/")
	switch {
	case !ok || !slash:
		l.GPUs = append(l.GPUs, item)
	case slices.Contains(ownVendors, vendor):
		return l.addOwn(vendor, class, name, item)
	case vendor == "nvidia.com" || strings.HasSuffix(vendor, ".nvidia.com"):
		return fmt.Errorf("%s is of no CDI kind that is known here (known vendors: %s)", Quote(item), strings.Join(ownVendors, ", "))
	default:
		if _, _, _, err := parser.ParseQualifiedName(item); err != nil || len(item) > maxQuoted {
			return fmt.Errorf("%s is no CDI name: <vendor>/<class>=<name>", Quote(item))
		}
		if !slices.Contains(l.Foreign, item) {
			l.Foreign = append(l.Foreign, item)
		}
	}
	return nil
}

// addOwn takes in a name of one of our own kinds.
func (l *List) addOwn(vendor, class, name, item string) error {
	switch {
	case name == "" || strings.TrimSpace(name) != name:
		return fmt.Errorf("%s names no device", Quote(item))
	// gpu.coherent and gpu.noncoherent tell memories apart; mig and mig-1g.10gb are
	// what some specifications call instances.
	case class == "gpu" || class == "gpu.coherent" || class == "gpu.noncoherent" || class == "mig" || strings.HasPrefix(class, "mig-"):
		l.GPUs = append(l.GPUs, name)
		if vendor == managementVendor && name == All {
			// Of a container that manages the driver: the channels as well.
			l.AllChannels = true
		}
	case class == imexKind && name == All:
		l.AllChannels = true
	case class == imexKind:
		n, err := channel(name)
		if err != nil {
			return err
		}
		l.Channels = append(l.Channels, n)
	case classKinds[class] != "" && name == All:
		l.Classes = append(l.Classes, classKinds[class])
	case classKinds[class] != "":
		return fmt.Errorf("%s: %s/%s has the one device %s", Quote(item), vendor, class, All)
	default:
		return fmt.Errorf("%s is of no CDI kind that is known here (known classes: gpu, mig, %s, gds, gdrcopy, mofed, nvswitch)", Quote(item), imexKind)
	}
	return nil
}

// Empty tells whether nothing is named.
func (l List) Empty() bool { return l.items == 0 }

// enter adds what a list names besides GPUs to the request. Named channels go before
// those of NVIDIA_IMEX_CHANNELS.
func (r *Request) enter(l List, bounds Bounds) {
	r.Foreign = l.Foreign
	r.Named = slices.Clone(l.Classes)
	switch channels := l.AllChannels || len(l.Channels) > 0; {
	case channels && bounds.NoChannels:
		r.ChannelsIgnored = true
	case channels:
		r.Named = append(r.Named, IMEX)
		r.AllChannels = l.AllChannels
		if l.AllChannels {
			l.Channels = nil
		}
		r.setChannels(l.Channels)
	}
	for _, c := range r.Named {
		if !slices.Contains(r.Classes, c) {
			r.Classes = append(r.Classes, c)
		}
	}
	slices.SortStableFunc(r.Classes, func(a, b string) int { return slices.Index(classOrder, a) - slices.Index(classOrder, b) })
}

// classOrder is the order of Request.Classes.
var classOrder = []string{IMEX, GDS, GDRCopy, MOFED, NVSwitch}

// Annotated returns what annotations name the CDI way, in the order of their keys.
// container is the name of the container in its pod; a key of NVIDIA's that is for
// another container says nothing.
func Annotated(annotations map[string]string, container string) (l List, err error) {
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if !annotates(key, container) {
			continue
		}
		for _, item := range strings.Split(annotations[key], ",") {
			if item = strings.TrimSpace(item); item == "" {
				continue
			}
			if !strings.Contains(item, "=") {
				return List{}, fmt.Errorf("annotation %s: %s is no CDI name: <vendor>/<class>=<name>", Quote(key), Quote(item))
			}
			if err := l.add(item); err != nil {
				return List{}, fmt.Errorf("annotation %s: %w", Quote(key), err)
			}
		}
	}
	return l, nil
}

func annotates(key, container string) bool {
	if strings.HasPrefix(key, annotationCDI) || key == annotationNVIDIA {
		return true
	}
	rest, ok := strings.CutPrefix(key, annotationNVIDIA+"/")
	if name, one := strings.CutPrefix(rest, "container."); ok && one {
		return name == container
	}
	return ok
}

// FromAnnotations makes a request of what annotations name, which goes before mounts
// and environment; the environment still says which capabilities and other devices.
func FromAnnotations(l List, env []string, bounds Bounds) (Request, error) {
	r, err := fromList(l, env, bounds)
	r.Reason, r.Annotated = "CDI annotations name "+Quote(l.String()), true
	return r, err
}

// FromNodes makes a request of a container whose devices are in its specification
// already, put there by CDI; which they are is for the caller to find out. What CDI
// injects is the whole driver, so that is the default here.
func FromNodes(env []string, bounds Bounds) (Request, error) {
	caps, capsSet := variables(env)[EnvCapabilities]
	why := capabilitiesReason(caps, capsSet, false)
	if strings.TrimSpace(caps) == "" {
		caps, why = All, "what CDI injects: every supported capability"
	}
	capabilities, err := parseCapabilities(caps, bounds)
	return Request{
		Driver: true, Reason: "the container's specification has NVIDIA's CDI hooks and device nodes",
		Capabilities: capabilities, CapabilitiesReason: why,
	}, err
}

// NamesDirectory tells whether NVIDIA_VISIBLE_DEVICES is the directory of the device
// list.
func NamesDirectory(env []string) bool {
	l, err := parseList(variables(env)[EnvVisibleDevices])
	return err == nil && l.Directory
}

// String repeats what is named.
func (l List) String() string {
	items := slices.Clone(l.GPUs)
	items = append(items, l.Classes...)
	if l.AllChannels {
		items = append(items, imexKind+"="+All)
	}
	for _, n := range l.Channels {
		items = append(items, fmt.Sprintf("%s=%d", imexKind, n))
	}
	return strings.Join(append(items, l.Foreign...), ",")
}

// fromList makes a request of a list that is not the environment's.
func fromList(l List, env []string, bounds Bounds) (Request, error) {
	vars := variables(env)
	caps, capsSet := vars[EnvCapabilities]
	capabilities, err := parseCapabilities(caps, bounds)
	if err != nil {
		return Request{}, err
	}
	r := Request{
		Driver: true, Devices: normal(l.GPUs), Capabilities: capabilities,
		CapabilitiesReason: capabilitiesReason(caps, capsSet, false),
	}
	r.ForeignOnly = l.OnlyForeign()
	if err := r.addOthers(vars, bounds); err != nil {
		return Request{}, err
	}
	r.enter(l, bounds)
	return r, nil
}

// OnlyForeign tells whether other vendors' devices are named and nothing else.
func (l List) OnlyForeign() bool {
	return len(l.Foreign) > 0 && len(l.GPUs)+len(l.Classes)+len(l.Channels) == 0 && !l.AllChannels && !l.Directory
}

// Void tells whether env says that the container wants nothing of this shim, as what
// is edited by CDI does: its devices are there already.
func Void(env []string) bool {
	visible, set := variables(env)[EnvVisibleDevices]
	if !set {
		return false
	}
	l, _ := parseList(visible)
	return l.word() == "void"
}

// word is the first of the words "all", "none" and "void" among the GPUs, or empty.
func (l List) word() string {
	i := slices.IndexFunc(l.GPUs, func(id string) bool { return id == All || id == "none" || id == "void" })
	if i < 0 {
		return ""
	}
	return l.GPUs[i]
}

// parseList takes a list of a variable apart. Beside an error it returns what comes
// before the item that is wrong.
func parseList(value string) (l List, err error) {
	for _, item := range strings.Split(value, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		if err := l.add(item); err != nil {
			return l, err
		}
	}
	return l, nil
}
