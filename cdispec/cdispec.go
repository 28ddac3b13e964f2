package cdispec

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
)

// Find answers what the specifications of this host say of devices.
//
// Device rules never allow mknod (invariant I6): CDI's default does.
func Find(r bundle.CDIRequest) (*bundle.CDIEdits, error) {
	cache, err := cdi.NewCache(cdi.WithAutoRefresh(false), cdi.WithSpecDirs(r.Dirs...))
	if err != nil {
		return nil, fmt.Errorf("read CDI specifications: %w", err)
	}
	// Refresh's error is of all files together; of those that matter GetErrors knows.
	_ = cache.Refresh()
	for _, name := range r.Names {
		device := cache.GetDevice(name)
		if device == nil {
			return &bundle.CDIEdits{Unknown: fmt.Sprintf("unknown CDI device %.256q: no specification in %s has it%s", name, strings.Join(r.Dirs, ", "), broken(cache))}, nil
		}
		if err := trusted(device.GetSpec().GetPath()); err != nil {
			return nil, err
		}
	}
	spec := &specs.Spec{Process: &specs.Process{User: specs.User{UID: r.UID, GID: r.GID}}, Linux: &specs.Linux{}}
	if r.UserNamespace {
		spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.UserNamespace}}
	}
	if _, err := cache.InjectDevices(spec, r.Names...); err != nil {
		return nil, fmt.Errorf("apply CDI specifications: %s", oneLine(err))
	}
	if spec.Linux.IntelRdt != nil || len(spec.Linux.NetDevices) > 0 {
		return nil, fmt.Errorf("the CDI specification of %.256s has network devices or a class of RDT: name the device to containerd instead (--device, or CDIDevices of CRI)", strings.Join(r.Names, ", "))
	}
	e := &bundle.CDIEdits{
		Env: spec.Process.Env, Devices: spec.Linux.Devices, Mounts: spec.Mounts, Hooks: spec.Hooks,
		AdditionalGids: spec.Process.User.AdditionalGids,
	}
	if spec.Linux.Resources != nil {
		for _, rule := range spec.Linux.Resources.Devices {
			rule.Access = strings.ReplaceAll(rule.Access, "m", "")
			if rule.Access != "" {
				e.Rules = append(e.Rules, rule)
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
