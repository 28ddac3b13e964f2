package request

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/devnode"
)

// migVariables ask for rights over all MIG devices, with the value "all" in any case.
var migVariables = []struct{ variable, right string }{
	{"NVIDIA_MIG_CONFIG_DEVICES", "config"}, {"NVIDIA_MIG_MONITOR_DEVICES", "monitor"},
}

// parseChannels parses the value of NVIDIA_IMEX_CHANNELS: numbers or channelN, separated by commas.
// A list with "all" asks for nothing: NVIDIA's stack ignores it in an environment, since images
// older than the variable would otherwise get every channel. Neither do "none" and "void".
func parseChannels(value string) ([]int, error) {
	var channels []int
	for item := range split(value) {
		if item == All || item == none || item == void {
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

// addClasses adds what is requested besides GPUs: by variables, which count only with a request for
// a GPU (NVIDIA's stack follows them with "none" as well), by names in the list l, and by mounts of
// channels. Mounted channels take precedence over named ones, and these over the variable's.
func (r *Request) addClasses(s Input, l list, ignoreChannels, mounts bool) error {
	var channels []int
	if len(r.Devices) > 0 {
		var err error
		if channels, err = r.fromVariables(s.Env, ignoreChannels); err != nil {
			return err
		}
	}
	named := slices.Clone(l.classes)
	if len(l.channels) > 0 || l.allChannels {
		named = append(named, devnode.IMEX)
		r.AllChannels, channels = l.allChannels, l.channels
	}
	r.Classes, r.Named = append(r.Classes, l.classes...), l.classes
	if r.Source == FromMounts || r.Source == FromAnnotations && !s.Container.Kubernetes {
		r.TrustedClasses = named
	}
	if mounts && len(r.Devices) > 0 && !s.channels.empty() {
		if s.channelsErr != nil && !ignoreChannels {
			return s.channelsErr
		}
		r.ChannelsIgnored = ignoreChannels
		r.TrustedClasses = append(r.TrustedClasses, devnode.IMEX)
		r.AllChannels, channels = s.channels.allChannels, s.channels.channels
	}
	switch asked := r.AllChannels || len(channels) > 0; {
	case ignoreChannels:
		r.ChannelsIgnored, r.AllChannels = r.ChannelsIgnored || asked, false
		r.TrustedClasses = slices.DeleteFunc(r.TrustedClasses, func(c string) bool { return c == devnode.IMEX })
	case asked:
		r.Classes = append(r.Classes, devnode.IMEX)
		if !r.AllChannels {
			r.Channels = slices.Compact(slices.Sorted(slices.Values(channels)))
		}
	}
	names := devnode.Names()
	slices.SortFunc(r.Classes, func(a, b string) int { return slices.Index(names, a) - slices.Index(names, b) })
	r.Classes = slices.Compact(r.Classes)
	return nil
}

// fromVariables adds what variables request besides GPUs, and returns the IMEX channels they
// request.
func (r *Request) fromVariables(env map[string]string, ignoreChannels bool) ([]int, error) {
	imex, _ := devnode.ByName(devnode.IMEX)
	channels, err := parseChannels(env[imex.Variable])
	if err != nil && ignoreChannels {
		r.ChannelsIgnored = true
	} else if err != nil {
		return nil, fmt.Errorf("%s=%s: %w", imex.Variable, Quote(env[imex.Variable]), err)
	}
	for _, c := range devnode.Classes {
		// The one value of the feature-gated modifiers of NVIDIA's toolkit.
		if !c.Numbered && env[c.Variable] == "enabled" {
			r.Classes = append(r.Classes, c.Name)
		}
	}
	for _, v := range migVariables {
		switch value := env[v.variable]; {
		case value == "":
		case strings.EqualFold(value, All):
			r.MIGRights = append(r.MIGRights, v.right)
			r.MIGVariables = append(r.MIGVariables, v.variable)
		default:
			return nil, fmt.Errorf("%s=%s: the only value is \"all\"", v.variable, Quote(value))
		}
	}
	return channels, nil
}
