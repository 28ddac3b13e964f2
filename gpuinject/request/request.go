package request

import (
	"fmt"
	"slices"
	"strings"
)

// Environment variables of the contract.
const (
	EnvVisibleDevices = "NVIDIA_VISIBLE_DEVICES"
	EnvCapabilities   = "NVIDIA_DRIVER_CAPABILITIES"
	envCUDAVersion    = "CUDA_VERSION"
	envRequireCUDA    = "NVIDIA_REQUIRE_CUDA"
)

// Capability names of NVIDIA_DRIVER_CAPABILITIES.
const (
	Compute  = "compute"
	Compat32 = "compat32"
	Graphics = "graphics"
	Utility  = "utility"
	Video    = "video"
	Display  = "display"
	NGX      = "ngx"
)

// All is the value that means every device, and every supported capability.
const All = "all"

// maxQuoted is how much of a user's value an error repeats, in bytes (T47).
const maxQuoted = 256

// maxDevices bounds the identifiers of one request; no host has as many GPUs and
// MIG instances.
const maxDevices = 1024

// Request is what a container asks for.
type Request struct {
	// Driver is set when the container asks for the driver at all: with GPUs, or
	// with NVIDIA_VISIBLE_DEVICES=none without one. Nothing else is set otherwise.
	Driver bool `json:"driver"`
	// Reason says, for people, what in the container led to this request.
	Reason string `json:"reason"`
	// Devices are the identifiers as written, trimmed, without empty items; just
	// "all" where that is among them. Empty means the driver without a GPU.
	Devices []string `json:"devices"`
	// Mounted is set where device-list mounts made the request, not the environment;
	// Annotated where CDI annotations did.
	Mounted   bool `json:"mounted"`
	Annotated bool `json:"annotated"`
	// Capabilities are the driver capabilities, sorted, a subset of Bounds.Supported.
	Capabilities []string `json:"capabilities"`
	// CapabilitiesReason says, for people, where the capabilities come from.
	CapabilitiesReason string `json:"-"`
	// Classes are the other kinds of devices that are asked for beside a GPU: IMEX
	// first, then GDS, GDRCopy, MOFED, NVSwitch.
	Classes []string `json:"classes"`
	// Channels are the numbers of the IMEX channels, sorted.
	Channels []int `json:"channels"`
	// AllChannels is set where device-list mounts ask for every channel of the host.
	AllChannels bool `json:"all_channels"`
	// ChannelsIgnored is set where channels are asked for and Bounds.NoChannels holds.
	ChannelsIgnored bool `json:"channels_ignored"`
	// ChannelsMounted is set where the channels are device-list mounts'.
	ChannelsMounted bool `json:"channels_mounted"`
	// MIG are the rights over all MIG devices that are asked for: "config", "monitor".
	MIG []string `json:"mig"`
	// Named are those of Classes that are named in the list of devices.
	Named []string `json:"named"`
	// Foreign are the CDI names of other vendors' devices. ForeignOnly is set where
	// nothing else is asked for: the container gets no driver.
	Foreign     []string `json:"foreign"`
	ForeignOnly bool     `json:"foreign_only"`
}

// Bounds are the operator's limits on what can be asked for.
type Bounds struct {
	// Default and Supported are driver capabilities.
	Default   []string
	Supported []string
	// NoChannels leaves requests for IMEX channels unread, right ones and wrong ones.
	NoChannels bool
}

// Wants tells whether env asks for the driver at all, whatever else is in it. It
// needs no configuration and never fails.
func Wants(env []string) bool {
	vars := variables(env)
	visible, set := vars[EnvVisibleDevices]
	if !set {
		return vars[envCUDAVersion] != "" && vars[envRequireCUDA] == ""
	}
	_, _, asks, _, err := parseDevices(visible)
	return asks || err != nil
}

// WhyNot says, for people, why env asks for nothing.
func WhyNot(env []string) string {
	r, err := FromEnv(env, Bounds{})
	if err != nil || r.Driver {
		return ""
	}
	return r.Reason
}

// FromEnv reads the request of a container from its environment.
//
// The last of repeated variables wins, as getenv(3) would not but every shell and
// NVIDIA's stack do. An entry without "=" is not a variable and is passed over:
// NVIDIA's stack fails such a container, which has nothing to do with GPUs.
func FromEnv(env []string, bounds Bounds) (Request, error) {
	vars := variables(env)
	visible, set := vars[EnvVisibleDevices]
	legacy := vars[envCUDAVersion] != "" && vars[envRequireCUDA] == ""

	if !set && !legacy {
		return Request{Reason: EnvVisibleDevices + " is not set"}, nil
	}
	if !set {
		visible = All
	}
	devices, list, asks, reason, err := parseDevices(visible)
	if err != nil || !asks {
		return Request{Reason: reason}, err
	}
	if list.Directory {
		return Request{}, fmt.Errorf("%s=%s means the mounts below %s, and the container has none: start it with the device plugin's mounts, or name the devices", EnvVisibleDevices, Quote(visible), DeviceListDir)
	}
	if !set {
		reason = EnvVisibleDevices + " is not set and " + envCUDAVersion + " is, without " + envRequireCUDA + ": an image older than CUDA 9"
	}
	// For such an image NVIDIA's rule is every capability; only where it set none.
	caps, capsSet := vars[EnvCapabilities]
	if !capsSet && legacy {
		caps = All
	}
	capabilities, err := parseCapabilities(caps, bounds)
	if err != nil {
		return Request{}, err
	}
	r := Request{Driver: true, Reason: reason, Devices: devices, Capabilities: capabilities, CapabilitiesReason: capabilitiesReason(caps, capsSet, legacy)}
	r.ForeignOnly = list.OnlyForeign()
	if err := r.addOthers(vars, bounds); err != nil {
		return Request{}, err
	}
	r.enter(list, bounds)
	return r, nil
}

// variables picks the variables of the contract out of env; the last one wins.
func variables(env []string) map[string]string {
	vars := make(map[string]string, 4)
	for _, entry := range env {
		name, value, ok := strings.Cut(entry, "=")
		if !ok {
			continue
		}
		switch name {
		case EnvVisibleDevices, EnvCapabilities, envCUDAVersion, envRequireCUDA,
			EnvIMEXChannels, "NVIDIA_GDS", "NVIDIA_GDRCOPY", "NVIDIA_MOFED", "NVIDIA_NVSWITCH",
			"NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES":
			vars[name] = value
		}
	}
	return vars
}

// parseDevices reads the value of NVIDIA_VISIBLE_DEVICES. The first of the words
// "all", "none" and "void" in the list decides; asks is false where the container
// wants nothing to do with the driver. list has what is named besides GPUs.
func parseDevices(value string) (devices []string, list List, asks bool, reason string, err error) {
	if strings.TrimSpace(value) == "" {
		return nil, List{}, false, EnvVisibleDevices + " is empty", nil
	}
	list, err = parseList(value)
	switch {
	case list.word() == "void":
		return nil, List{}, false, EnvVisibleDevices + "=" + Quote(value), nil
	case err != nil:
		return nil, List{}, false, "", fmt.Errorf("%s=%s: %w", EnvVisibleDevices, Quote(value), err)
	case list.Empty():
		return nil, List{}, false, EnvVisibleDevices + " names no device", nil
	}
	reason = EnvVisibleDevices + "=" + Quote(value)
	switch list.word() {
	case "none":
		return nil, list, true, reason, nil
	case All:
		return []string{All}, list, true, reason, nil
	}
	return list.GPUs, list, true, reason, nil
}

// parseCapabilities reads the value of NVIDIA_DRIVER_CAPABILITIES.
func parseCapabilities(value string, bounds Bounds) ([]string, error) {
	var caps []string
	for _, item := range strings.Split(value, ",") {
		item = strings.TrimSpace(item)
		if item == All {
			caps = slices.Clone(bounds.Supported)
			slices.Sort(caps)
			return slices.Compact(caps), nil
		}
		if item != "" {
			caps = append(caps, item)
		}
	}
	if len(caps) == 0 {
		for _, name := range bounds.Default {
			if slices.Contains(bounds.Supported, name) {
				caps = append(caps, name)
			}
		}
	}
	for _, name := range caps {
		if !slices.Contains(bounds.Supported, name) {
			return nil, fmt.Errorf("%s=%s: capability %s is not supported here (supported: %s; see supported-capabilities in the shim's configuration)",
				EnvCapabilities, Quote(value), Quote(name), strings.Join(bounds.Supported, ","))
		}
	}
	slices.Sort(caps)
	return slices.Compact(caps), nil
}

// capabilitiesReason says where the capabilities come from.
func capabilitiesReason(value string, set, legacy bool) string {
	switch {
	case set && strings.Trim(value, " ,") != "":
		return EnvCapabilities + "=" + Quote(value)
	case set:
		return EnvCapabilities + " is empty: container.default-capabilities"
	case legacy:
		return EnvCapabilities + " is not set in an image older than CUDA 9: all that are supported"
	}
	return EnvCapabilities + " is not set: container.default-capabilities"
}

// Has tells whether the request includes the capability name.
func (r Request) Has(name string) bool { return slices.Contains(r.Capabilities, name) }

// Quote repeats a user's value in an error or a log line: quoted, so that control
// characters and line breaks show as escapes, and cut at 256 bytes (N-14, T47).
func Quote(s string) string {
	if len(s) > maxQuoted {
		return fmt.Sprintf("%q…", s[:maxQuoted])
	}
	return fmt.Sprintf("%q", s)
}
