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

// DeviceList returns what device-list mounts name, in their order, each device once.
// The destination must be below the directory by whole components: a look-alike such
// as <dir>X/all is an ordinary mount (T44). IMEX channels (imex/<id>) are left to
// AddChannelMounts.
func DeviceList(mounts []specs.Mount) (l List, err error) {
	for _, m := range mounts {
		id, ok := listed(m)
		if !ok || strings.HasPrefix(id, imexDir) {
			continue
		}
		if rest, ok := strings.CutPrefix(id, "cdi/"); ok {
			id = qualified(rest)
		}
		if err := l.add(id); err != nil {
			return List{}, fmt.Errorf("the mount at %s: %w", Quote(m.Destination), err)
		}
	}
	l.GPUs = unique(l.GPUs)
	return l, nil
}

// qualified makes a CDI name of what is below <dir>/cdi: the name itself, or
// <vendor>/<class>/<name>.
func qualified(rest string) string {
	if parts := strings.SplitN(rest, "/", 3); len(parts) == 3 && !strings.Contains(parts[0]+parts[1], "=") {
		return parts[0] + "/" + parts[1] + "=" + parts[2]
	}
	return rest
}

func unique(ids []string) (out []string) {
	for _, id := range ids {
		if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// IDs are the identifiers of GPUs that a list means: just "all" where that is among
// them.
func (l List) IDs() []string { return normal(l.GPUs) }

// WithDeviceList makes a request of a device list, which goes before the
// environment; the environment still says which capabilities and other devices.
func WithDeviceList(l List, env []string, bounds Bounds) (Request, error) {
	r, err := fromList(l, env, bounds)
	r.Reason, r.Mounted = "device-list mounts name "+Quote(l.String()), true
	return r, err
}

// normal gives a list its meaning: "all" is all, "none" the driver without a GPU.
func normal(ids []string) []string {
	switch {
	case len(ids) == 0:
		return nil
	case slices.Contains(ids, All):
		return []string{All}
	case slices.Equal(ids, []string{"none"}):
		return nil
	}
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return id == "none" })
}
