package config

import "slices"

// Values of NVIDIA_DRIVER_CAPABILITIES.
const (
	Compute  = "compute"
	Compat32 = "compat32"
	Graphics = "graphics"
	Utility  = "utility"
	Video    = "video"
	Display  = "display"
	NGX      = "ngx"
)

var capabilities = []string{Compute, Compat32, Graphics, Utility, Video, Display, NGX}

// Supported returns the capabilities that a container may ask for. If the operator names none, they
// are all of them, but for a pod not display, whose nodes can take over the host's screen (T42).
func (c Container) Supported(pod bool) []string {
	switch {
	case len(c.SupportedCapabilities) > 0:
		return slices.Clone(c.SupportedCapabilities)
	case pod:
		return slices.DeleteFunc(slices.Clone(capabilities), func(name string) bool { return name == Display })
	}
	return slices.Clone(capabilities)
}
