package cdispec

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// Container is what of a container's configuration the result depends on.
type Container struct {
	// UID and GID own nodes of which a specification does not say whose they are.
	UID, GID uint32
	// UserNamespace is set where it has one.
	UserNamespace bool
}

// Edits are what the specifications add to a container.
type Edits struct {
	// Unknown says, in words, which device no specification has. Nothing else is set
	// then.
	Unknown        string                    `json:"unknown,omitempty"`
	Env            []string                  `json:"env,omitempty"`
	Devices        []specs.LinuxDevice       `json:"devices,omitempty"`
	Rules          []specs.LinuxDeviceCgroup `json:"rules,omitempty"`
	Mounts         []specs.Mount             `json:"mounts,omitempty"`
	Hooks          *specs.Hooks              `json:"hooks,omitempty"`
	AdditionalGids []uint32                  `json:"additional_gids,omitempty"`
}

// Find returns what the specifications in dirs say of the devices names, of which a
// later directory goes before an earlier one.
//
// Device rules never allow mknod (invariant I6): CDI's default does.
func Find(dirs, names []string, c Container) (*Edits, error) {
	cache, err := cdi.NewCache(cdi.WithAutoRefresh(false), cdi.WithSpecDirs(dirs...))
	if err != nil {
		return nil, fmt.Errorf("read CDI specifications: %w", err)
	}
	// Refresh's error is of all files together; of those that matter GetErrors knows.
	_ = cache.Refresh()
	for _, name := range names {
		device := cache.GetDevice(name)
		if device == nil {
			return &Edits{Unknown: fmt.Sprintf("unknown CDI device %.256q: no specification in %s has it%s", name, strings.Join(dirs, ", "), broken(cache))}, nil
		}
		if err := trusted(device.GetSpec().GetPath()); err != nil {
			return nil, err
		}
	}
	spec := &specs.Spec{Process: &specs.Process{User: specs.User{UID: c.UID, GID: c.GID}}, Linux: &specs.Linux{}}
	if c.UserNamespace {
		spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.UserNamespace}}
	}
	if _, err := cache.InjectDevices(spec, names...); err != nil {
		return nil, fmt.Errorf("apply CDI specifications: %s", oneLine(err))
	}
	if spec.Linux.IntelRdt != nil || len(spec.Linux.NetDevices) > 0 {
		return nil, fmt.Errorf("the CDI specification of %.256s has network devices or a class of RDT: name the device to containerd instead (--device, or CDIDevices of CRI)", strings.Join(names, ", "))
	}
	e := &Edits{
		Env: spec.Process.Env, Devices: spec.Linux.Devices, Mounts: spec.Mounts, Hooks: spec.Hooks,
		AdditionalGids: spec.Process.User.AdditionalGids,
	}
	if spec.Linux.Resources != nil {
		for _, r := range spec.Linux.Resources.Devices {
			r.Access = strings.ReplaceAll(r.Access, "m", "")
			if r.Access != "" {
				e.Rules = append(e.Rules, r)
			}
		}
	}
	return e, nil
}

// broken names a specification that cannot be read, which may be the one.
func broken(cache *cdi.Cache) string {
	for name, list := range cache.GetErrors() {
		for _, err := range list {
			return fmt.Sprintf(" (%s cannot be used: %.256s)", name, oneLine(err))
		}
	}
	return ""
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", " ") }

// trusted checks that nobody but root can have written a specification.
func trusted(name string) error {
	for _, file := range []string{name, filepath.Dir(name)} {
		var st unix.Stat_t
		if err := unix.Stat(file, &st); err != nil {
			return fmt.Errorf("CDI specification: %w", &os.PathError{Op: "stat", Path: file, Err: err})
		}
		if st.Uid != 0 && st.Uid != uint32(os.Geteuid()) {
			return fmt.Errorf("CDI specification %s: %s is owned by uid %d: chown it to root", name, file, st.Uid)
		}
		if st.Mode&0o022 != 0 {
			return fmt.Errorf("CDI specification %s: %s can be written by others than root (mode %04o): chmod go-w it", name, file, st.Mode&0o7777)
		}
	}
	return nil
}
