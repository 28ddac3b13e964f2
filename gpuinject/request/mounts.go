package request

import (
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// DeviceListDir is where a device plugin with the strategy volume-mounts mounts
// /dev/null once per device: <dir>/<id>. It sets NVIDIA_VISIBLE_DEVICES to the
// directory itself.
const DeviceListDir = "/var/run/nvidia-container-devices"

// cdiKind is the kind of our own devices where they are named the CDI way.
const cdiKind = "nvidia.com/gpu"

// DeviceList returns the identifiers that device-list mounts name, in their order,
// each once. The destination must be below the directory by whole components: a
// look-alike such as <dir>X/all is an ordinary mount (T44). IMEX channels (imex/<id>)
// are left to AddChannelMounts.
func DeviceList(mounts []specs.Mount) (ids []string, err error) {
	for _, m := range mounts {
		id, ok := listed(m)
		if !ok || strings.HasPrefix(id, imexDir) {
			continue
		}
		if rest, ok := strings.CutPrefix(id, "cdi/"); ok {
			// cdi/<vendor>/<class>/<name>, or the name with its equals sign.
			name, ours := strings.CutPrefix(rest, cdiKind+"/")
			if !ours {
				name, ours = strings.CutPrefix(rest, cdiKind+"=")
			}
			if !ours {
				return nil, fmt.Errorf("the mount at %s names the CDI device %s, which is not of kind %s", Quote(m.Destination), Quote(rest), cdiKind)
			}
			id = name
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
		if len(ids) > maxDevices {
			return nil, fmt.Errorf("more than %d devices are mounted below %s", maxDevices, DeviceListDir)
		}
	}
	return ids, nil
}

// WithDeviceList makes a request of a device list, which goes before the
// environment; the environment still says which capabilities and other devices.
func WithDeviceList(ids, env []string, bounds Bounds) (Request, error) {
	vars := variables(env)
	caps, capsSet := vars[EnvCapabilities]
	capabilities, err := parseCapabilities(caps, bounds)
	if err != nil {
		return Request{}, err
	}
	r := Request{
		Driver: true, Reason: "device-list mounts name " + Quote(strings.Join(ids, ",")),
		Devices: normal(ids), Capabilities: capabilities, Mounted: true,
		CapabilitiesReason: capabilitiesReason(caps, capsSet, false),
	}
	err = r.addOthers(vars)
	return r, err
}

// normal gives a list its meaning: "all" is all, "none" the driver without a GPU.
func normal(ids []string) []string {
	switch {
	case slices.Contains(ids, All):
		return []string{All}
	case slices.Equal(ids, []string{"none"}):
		return nil
	}
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return id == "none" })
}
