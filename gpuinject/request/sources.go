package request

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// WithoutAnnotations is Request for a container without its CDI annotations.
func (s Input) WithoutAnnotations(cfg *config.Config) (Request, error) {
	s.annotated, s.annotatedErr = list{}, nil
	return s.Request(cfg)
}

// Request returns what the container asks for under a configuration. Annotations of a pod only
// select among the allocated devices; if they name others, the caller uses WithoutAnnotations.
func (s Input) Request(cfg *config.Config) (Request, error) {
	mounts := cfg.Policy.AcceptVolumeMounts
	switch {
	case s.envErr != nil: // guard: parsers: length of variables
		return Request{}, s.envErr
	case s.EditedByCDI:
		return s.complete(Request{Driver: true, Source: FromCDI,
			Reason: "CDI put device nodes of the driver into the container's specification"}, list{}, cfg)
	case s.annotatedErr != nil:
		return Request{}, s.annotatedErr
	case !s.annotated.empty():
		return s.complete(Request{Driver: true, Source: FromAnnotations, Devices: s.annotated.ids(),
			Reason: "CDI annotations name " + Quote(s.annotated.String())}, s.annotated, cfg)
	case mounts && s.mountedErr != nil:
		return Request{}, s.mountedErr
	case mounts && !s.mounted.empty():
		return s.complete(Request{Driver: true, Source: FromMounts, Devices: s.mounted.ids(),
			Reason: "device-list mounts name " + Quote(s.mounted.String())}, s.mounted, cfg)
	}
	return s.fromEnvironment(cfg)
}

// fromEnvironment returns the request that a container's variables make.
func (s Input) fromEnvironment(cfg *config.Config) (Request, error) {
	var swarm []string
	if !s.Container.Kubernetes { // a pod is not a task of a swarm, whatever its variables are called
		for _, name := range cfg.Policy.SwarmResources {
			if v, ok := s.Env[name]; ok {
				swarm = append(swarm, v)
			}
		}
	}
	asks, reason := s.environmentAsks()
	value, set := s.Env[EnvVisibleDevices]
	if len(swarm) > 0 {
		value = strings.Join(swarm, ",")
		asks, reason = namesDevices(value)
	} else if !set {
		value = All
	}
	if !asks {
		return Request{Reason: reason}, nil
	}
	var l list
	var err error
	for item := range split(value) {
		if err = l.add(item); err != nil {
			break
		}
	}
	r := Request{Driver: true, Source: FromEnvironment, Reason: reason}
	switch word := l.word(); {
	case err != nil:
		return Request{}, fmt.Errorf("%s=%s: %w", EnvVisibleDevices, Quote(value), err)
	case l.directory && !cfg.Policy.AcceptVolumeMounts:
		return Request{}, DeniedError(EnvVisibleDevices + "=" + DeviceListDir + " means the mounts there, and policy.accept-volume-mounts is false: set it to true, or have the device plugin use another strategy")
	case l.directory && s.voided:
		return Request{}, fmt.Errorf("%s=%s means the mounts below %s, and the mount %s, which NVIDIA's CDI specifications add, says that they do not count: name the devices, or request them all by CDI", EnvVisibleDevices, Quote(value), DeviceListDir, VoidMount)
	case l.directory:
		return Request{}, fmt.Errorf("%s=%s means the mounts below %s, and the container has none: start it with the device plugin's mounts, or name the devices", EnvVisibleDevices, Quote(value), DeviceListDir)
	case word == All:
		r.Devices = []string{All}
	case word == "":
		r.Devices = l.gpus
	}
	r, err = s.complete(r, l, cfg)
	if len(swarm) > 0 {
		r.Overridden = append(r.Overridden, Overridden{EnvVisibleDevices, "swarm's resources of policy.swarm-resources go before it"})
	}
	return r, err
}

// complete adds the capabilities and the other devices to a request for the devices in l.
func (s Input) complete(r Request, l list, cfg *config.Config) (Request, error) {
	if len(l.foreign) > 0 {
		return Request{}, fmt.Errorf("%s is a CDI device of another vendor: pass it to containerd (docker run --device, nerdctl run --device, ctr run --device, or the CDI devices of a pod)", Quote(l.foreign[0]))
	}
	caps, set := s.Env[EnvCapabilities]
	// An image cannot make hooks, as it can EnvCDI.
	byNVIDIA := r.Source == FromCDI && s.NVIDIAHooks
	switch {
	case !isBlank(caps):
		r.CapabilitiesReason = EnvCapabilities + "=" + Quote(caps)
	case byNVIDIA:
		caps, r.CapabilitiesReason = All, "CDI injects every supported capability"
	case set:
		r.CapabilitiesReason = EnvCapabilities + " is empty: container.default-capabilities"
	case s.isLegacy(): // NVIDIA's rule for such an image, if it sets no capability
		caps, r.CapabilitiesReason = All, EnvCapabilities+" is not set in an image older than CUDA 9: all that are supported"
	default:
		r.CapabilitiesReason = EnvCapabilities + " is not set: container.default-capabilities"
	}
	// Nodes that CDI put into a pod's specification are the operator's choice, not the image's.
	supported := cfg.Container.Supported(s.Container.Kubernetes && !byNVIDIA) // guard: grant: display in pods
	var err error
	if r.Capabilities, err = parseCapabilities(caps, supported, cfg.Container.DefaultCapabilities); err != nil {
		return Request{}, err
	}
	if err := r.addClasses(s, l, cfg.Policy.IgnoreIMEXChannels, cfg.Policy.AcceptVolumeMounts); err != nil {
		return Request{}, err
	}
	r.Overridden = s.overridden(r.Source, cfg)
	return r, nil
}

// overridden lists the ways to ask that do not count, because another source does.
func (s Input) overridden(source Source, cfg *config.Config) (list []Overridden) {
	reason := map[Source]string{
		FromCDI:         "the devices that CDI put into the specification go before it",
		FromAnnotations: "annotations go before it",
		FromMounts:      "device-list mounts go before it",
	}[source]
	if s.mountedErr == nil && !s.mounted.empty() && source != FromMounts {
		why := reason
		if !cfg.Policy.AcceptVolumeMounts {
			why = "policy.accept-volume-mounts is false"
		}
		list = append(list, Overridden{"device-list mounts", why})
	}
	if asks, _ := s.environmentAsks(); asks && reason != "" {
		list = append(list, Overridden{EnvVisibleDevices, reason})
	}
	return list
}

// TrustedIDs returns the identifiers in lists that an image cannot make, which need no other proof:
// those of accepted device-list mounts and, outside Kubernetes, of annotations.
func (s Input) TrustedIDs(cfg *config.Config) []string {
	var ids []string
	if cfg.Policy.AcceptVolumeMounts && s.mountedErr == nil { // guard: grant: accept-volume-mounts
		ids = s.mounted.ids()
	}
	if !s.Container.Kubernetes { // guard: grant: not by a pod's annotations
		ids = append(ids, s.annotated.ids()...)
	}
	return ids
}

// parseCapabilities parses the value of NVIDIA_DRIVER_CAPABILITIES.
func parseCapabilities(value string, supported, byDefault []string) ([]string, error) {
	caps := slices.Collect(split(value))
	if slices.Contains(caps, All) {
		caps = slices.Clone(supported)
	} else if len(caps) == 0 {
		for _, name := range byDefault {
			if slices.Contains(supported, name) {
				caps = append(caps, name)
			}
		}
	}
	for _, name := range caps {
		if !slices.Contains(supported, name) { // guard: grant: supported-capabilities
			return nil, fmt.Errorf("%s=%s: capability %s is not supported here (supported: %s; see supported-capabilities in the shim's configuration)",
				EnvCapabilities, Quote(value), Quote(name), strings.Join(supported, ","))
		}
	}
	slices.Sort(caps)
	return slices.Compact(caps), nil
}
