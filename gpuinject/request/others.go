package request

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Classes of devices besides GPUs, by the names of policy.allow-from-environment.
const (
	IMEX     = "imex"
	GDS      = "gds"
	GDRCopy  = "gdrcopy"
	MOFED    = "mofed"
	NVSwitch = "nvswitch"
)

// EnvIMEXChannels names IMEX channels.
const EnvIMEXChannels = "NVIDIA_IMEX_CHANNELS"

// switches are the variables that turn a class on with the value "enabled", and
// with no other, as in NVIDIA's stack (feature-gated modifiers of its toolkit).
var switches = []struct{ variable, class string }{
	{"NVIDIA_GDS", GDS}, {"NVIDIA_GDRCOPY", GDRCopy}, {"NVIDIA_MOFED", MOFED}, {"NVIDIA_NVSWITCH", NVSwitch},
}

// MaxChannels bounds the numbers of IMEX channels: 0 to 2047, the default of the
// kernel module's parameter NVreg_ImexChannelCount. (NVIDIA's toolkit takes what has
// 20 bits, and fails later for want of a node.)
const MaxChannels = 2048

// addOthers reads what the environment asks for besides GPUs. It counts only where
// the container asks for a GPU as well, as in NVIDIA's stack.
func (r *Request) addOthers(vars map[string]string, bounds Bounds) error {
	if len(r.Devices) == 0 {
		return nil
	}
	channels, err := parseChannels(vars[EnvIMEXChannels])
	switch {
	case bounds.NoChannels:
		r.ChannelsIgnored = err != nil || len(channels) > 0
	case err != nil:
		return fmt.Errorf("%s=%s: %w", EnvIMEXChannels, Quote(vars[EnvIMEXChannels]), err)
	default:
		r.setChannels(channels)
	}
	for _, s := range switches {
		if vars[s.variable] == "enabled" {
			r.Classes = append(r.Classes, s.class)
		}
	}
	return r.addMIG(vars)
}

// parseChannels reads the value of NVIDIA_IMEX_CHANNELS: numbers or channelN,
// separated by commas. A list with "all" asks for nothing: NVIDIA's stack ignores it
// from an environment, since images older than the variable would otherwise get
// every channel. Neither do "none" and "void".
func parseChannels(value string) ([]int, error) {
	var channels []int
	for _, item := range strings.Split(value, ",") {
		switch item = strings.TrimSpace(item); item {
		case "":
			continue
		case All, "none", "void":
			return nil, nil
		}
		n, err := channel(item)
		if err != nil {
			return nil, err
		}
		channels = append(channels, n)
	}
	return channels, nil
}

// channel reads "7" or "channel7".
func channel(id string) (int, error) {
	digits, _ := strings.CutPrefix(id, "channel")
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || n >= MaxChannels {
		return 0, fmt.Errorf("%s is not an IMEX channel: 0 to %d, or channel0 to channel%d", Quote(id), MaxChannels-1, MaxChannels-1)
	}
	return int(n), nil
}

// setChannels enters channels, each once, in order.
func (r *Request) setChannels(channels []int) {
	r.Classes = slices.DeleteFunc(r.Classes, func(c string) bool { return c == IMEX })
	r.Channels = slices.Compact(slices.Sorted(slices.Values(channels)))
	if len(r.Channels) > 0 {
		r.Classes = slices.Insert(r.Classes, 0, IMEX)
	}
}

// AddChannelMounts enters the IMEX channels that device-list mounts name, which go
// before the environment: <dir>/imex/<id>, and <dir>/imex/all for every channel of
// the host. Like the variable they count only beside a request for a GPU.
func (r *Request) AddChannelMounts(mounts []specs.Mount, bounds Bounds) error {
	if len(r.Devices) == 0 {
		return nil
	}
	var channels []int
	all := false
	for _, m := range mounts {
		id, ok := listed(m)
		if ok {
			id, ok = strings.CutPrefix(id, imexDir)
		}
		if !ok {
			continue
		}
		if bounds.NoChannels {
			r.ChannelsIgnored = true
			return nil
		}
		r.ChannelsMounted = true
		if id == All {
			all = true
			continue
		}
		n, err := channel(id)
		if err != nil {
			return fmt.Errorf("the mount at %s: %w", Quote(m.Destination), err)
		}
		channels = append(channels, n)
	}
	if !r.ChannelsMounted {
		return nil
	}
	r.AllChannels = all
	if r.AllChannels {
		channels = nil
	}
	r.setChannels(channels)
	if r.AllChannels {
		r.Classes = slices.Insert(r.Classes, 0, IMEX)
	}
	return nil
}

// imexDir is where IMEX channels are in the device list.
const imexDir = "imex/"

// listed returns what a mount names in the device list: the path below the
// directory, by whole components.
func listed(m specs.Mount) (id string, ok bool) {
	if path.Clean(m.Source) != "/dev/null" {
		return "", false
	}
	return strings.CutPrefix(path.Clean("/"+m.Destination), DeviceListDir+"/")
}
