package request

import (
	"slices"
)

// Source is the part of a specification that a request comes from.
type Source string

// Sources of a request, by precedence.
const (
	FromCDI         Source = "CDI"
	FromAnnotations Source = "annotations"
	FromMounts      Source = "mounts"
	FromEnvironment Source = "environment"
)

// Request is what a container asks for.
type Request struct {
	// Driver is true if the container asks for the driver, with GPUs or without
	// (NVIDIA_VISIBLE_DEVICES=none). Otherwise only Reason is set.
	Driver bool
	// Reason says, for people, which part of the specification led to this request.
	Reason string
	Source Source
	// Devices are the identifiers as written, trimmed, without empty items; just "all" if that is
	// among them. Empty means the driver without a GPU, or with Source FromCDI the GPUs whose nodes
	// the specification has.
	Devices []string
	// Capabilities are driver capabilities, sorted, all of them supported.
	Capabilities       []string
	CapabilitiesReason string
	// Classes are the other requested kinds of devices, in the order IMEX, GDS, GDRCopy, MOFED,
	// NVSwitch; TrustedClasses are those in a list that an image cannot make, as with TrustedIDs.
	// Named are those that a list of devices names as a whole: nvidia.com/mofed=all.
	Classes, TrustedClasses, Named []string
	// Channels are the numbers of IMEX channels, sorted. AllChannels means every channel of the
	// host. ChannelsIgnored is true if channels are requested and policy.ignore-imex-channels is
	// true.
	Channels                     []int
	AllChannels, ChannelsIgnored bool
	// MIGRights are the requested rights over all MIG devices, "config" and "monitor"; MIGVariables
	// are the variables that request them.
	MIGRights, MIGVariables []string
	// Overridden lists the ways to ask that the container uses but that do not count, with the
	// reason.
	Overridden []Overridden
}

// Overridden is a way to ask that does not count.
type Overridden struct{ What, Reason string }

// DeniedError is a request that the operator's configuration does not allow.
type DeniedError string

func (e DeniedError) Error() string { return string(e) }

// Has reports whether the request includes a capability.
func (r Request) Has(capability string) bool { return slices.Contains(r.Capabilities, capability) }

// NamesDevices reports whether the request is for particular devices, not for all of them or for
// the driver without a GPU.
func (r Request) NamesDevices() bool {
	return len(r.Devices) > 0 && !slices.Equal(r.Devices, []string{All})
}
