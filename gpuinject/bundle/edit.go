package bundle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Edits are changes to a configuration. Elements for which a Remove function returns true are
// removed (none if it is nil); then the rest is added.
type Edits struct {
	RemoveMount  func(specs.Mount) bool
	RemoveDevice func(specs.LinuxDevice) bool
	RemoveRule   func(specs.LinuxDeviceCgroup) bool
	RemoveHook   func(specs.Hook) bool

	Devices        []specs.LinuxDevice
	Rules          []specs.LinuxDeviceCgroup
	Mounts         []specs.Mount
	AdditionalGids []uint32
}

// Apply makes the changes e in memory. A device node, rule, mount or group that is already there is
// not repeated, so applying twice changes nothing (T54). A node for another device is an error;
// after an error the bundle must not be used.
func (b *Bundle) Apply(e Edits) error {
	if err := b.CheckDevices(e.Devices); err != nil {
		return err
	}
	o, err := parseObject(b.raw)
	if err != nil {
		return b.wrap(err)
	}
	spec, hooks := &b.Spec, &b.Spec.Hooks
	for _, err := range []error{
		remove(o, "mounts", &spec.Mounts, e.RemoveMount),
		remove(o, "linux.devices", &spec.Linux.Devices, e.RemoveDevice),
		remove(o, "linux.resources.devices", &spec.Linux.Resources.Devices, e.RemoveRule),
		// runtime-spec, "POSIX-platform Hooks".
		//nolint:staticcheck // Prestart is deprecated and still what docker --gpus uses.
		remove(o, "hooks.prestart", &hooks.Prestart, e.RemoveHook),
		remove(o, "hooks.createRuntime", &hooks.CreateRuntime, e.RemoveHook),
		remove(o, "hooks.createContainer", &hooks.CreateContainer, e.RemoveHook),
		remove(o, "hooks.startContainer", &hooks.StartContainer, e.RemoveHook),
		remove(o, "hooks.poststart", &hooks.Poststart, e.RemoveHook),
		remove(o, "hooks.poststop", &hooks.Poststop, e.RemoveHook),
		add(o, "linux.devices", &spec.Linux.Devices, e.Devices, hasDevice),
		add(o, "linux.resources.devices", &spec.Linux.Resources.Devices, e.Rules, hasRule),
		add(o, "mounts", &spec.Mounts, e.Mounts, hasMount),
		add(o, "process.user.additionalGids", &spec.Process.User.AdditionalGids, e.AdditionalGids, slices.Contains),
	} {
		if err != nil {
			return b.wrap(err)
		}
	}
	if o.edited {
		var edited bytes.Buffer
		edited.Grow(len(b.raw) + 8<<10)
		o.encode(&edited)
		b.raw, b.edited = edited.Bytes(), true
	}
	return nil
}

// remove removes the elements that drop chooses from the array at path. list holds the decoded
// elements and changes with it.
func remove[T any](o *object, path string, list *[]T, drop func(T) bool) error {
	if drop == nil || !slices.ContainsFunc(*list, drop) {
		return nil
	}
	return o.edit(path, func(array []json.RawMessage) []json.RawMessage {
		var kept []json.RawMessage
		for i, element := range array {
			if i >= len(*list) || !drop((*list)[i]) {
				kept = append(kept, element)
			}
		}
		*list = slices.DeleteFunc(*list, drop)
		return kept
	})
}

// add appends elements that are not yet in the array at path. list holds the decoded elements and
// changes with it; has reports whether they include an element.
func add[T any](o *object, path string, list *[]T, added []T, has func([]T, T) bool) error {
	var missing []json.RawMessage
	for _, x := range added {
		if has(*list, x) {
			continue
		}
		element, err := json.Marshal(x)
		if err != nil {
			return err
		}
		missing = append(missing, element)
		*list = append(*list, x)
	}
	if len(missing) == 0 {
		return nil
	}
	return o.edit(path, func(array []json.RawMessage) []json.RawMessage { return append(array, missing...) })
}

// CheckDevices returns an error if the configuration already has a node for another device at one
// of the paths in added: runc keeps an existing node, whatever its numbers are.
func (b *Bundle) CheckDevices(added []specs.LinuxDevice) error {
	for _, d := range added {
		for _, x := range b.Spec.Linux.Devices {
			same := x.Type == d.Type && x.Major == d.Major && x.Minor == d.Minor
			if filepath.Clean(x.Path) == d.Path && !same { // guard: config.json: no other device at a path
				return fmt.Errorf("device %s is already in the container's configuration as %s %d:%d, this host has %s %d:%d",
					d.Path, x.Type, x.Major, x.Minor, d.Type, d.Major, d.Minor)
			}
		}
	}
	return nil
}

func hasDevice(have []specs.LinuxDevice, d specs.LinuxDevice) bool {
	return slices.ContainsFunc(have, func(x specs.LinuxDevice) bool { return filepath.Clean(x.Path) == d.Path })
}

func hasMount(have []specs.Mount, m specs.Mount) bool {
	return slices.ContainsFunc(have, func(x specs.Mount) bool { return x.Destination == m.Destination && x.Source == m.Source })
}

// hasRule reports whether the last rule that concerns r's device allows reading and writing it.
func hasRule(have []specs.LinuxDeviceCgroup, r specs.LinuxDeviceCgroup) bool {
	// Later rules win: only an exact rule with no wider one after it counts.
	for _, x := range slices.Backward(have) {
		if x.Major == nil || x.Minor == nil || !x.Allow {
			return false
		}
		if x.Type == r.Type && *x.Major == *r.Major && *x.Minor == *r.Minor {
			return strings.Contains(x.Access, "r") && strings.Contains(x.Access, "w")
		}
	}
	return false
}
