package gpuinject

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/procmask"
)

// whyUnmasked returns why the container does not get the mask, or "" if it does.
func whyUnmasked(c Container, h host.Host) string {
	linux := c.Bundle.Spec.Linux
	switch {
	case h.DriverVersion == "":
		return "this host has no NVIDIA kernel module"
	case c.Input.Container.Privileged:
		return "a privileged container can take any mask off"
	case len(linux.MaskedPaths) == 0 && c.Input.Container.UserNamespace && !mapsHostRoot(linux.UIDMappings):
		// It wants to run containers itself, which the kernel refuses under a mask
		// (mount_too_revealing).
		return "the container asked for an unmasked /proc in a user namespace, where it cannot write these files"
	}
	return ""
}

// mapsHostRoot reports whether the host's root is, or may be, a user of the user namespace: the
// owner of the driver's files in procfs is one then.
func mapsHostRoot(mappings []specs.LinuxIDMapping) bool {
	return len(mappings) == 0 || slices.ContainsFunc(mappings, func(m specs.LinuxIDMapping) bool { return m.HostID == 0 && m.Size > 0 })
}

// checkIsolation refuses a container whose mounts would not be its own: the mask and the driver
// would land on the host or in another container (T26).
func checkIsolation(c Container) error {
	namespaces := c.Bundle.Spec.Linux.Namespaces
	i := slices.IndexFunc(namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == specs.MountNamespace })
	if i < 0 || namespaces[i].Path != "" {
		return fail(Invalid, "the container has no mount namespace of its own: a GPU container needs one")
	}
	return nil
}

// checkProc refuses a container that would have the mask on a procfs that is not its own: a bind of
// the host's procfs, through which the mask would show on the host with rootfsPropagation "shared".
func checkProc(root rootfs, p *Plan) error {
	if p.Proc.Masked && !root.ownProc {
		return fail(Invalid, "the container has no procfs of its own at /proc, in which other GPUs could be hidden: mount one")
	}
	return nil
}

// maskFile is a file below /proc/driver that the mask shows as the host has it.
type maskFile struct {
	name string
	// optional files need not be on the host.
	optional bool
	// line, if not empty, replaces the line with that name or is added.
	line string
}

// planMask decides what the mask shows.
func planMask(c Container, h host.Host, g grant, p *Plan) error {
	if err := checkIsolation(c); err != nil {
		return err
	}
	if reason := whyUnmasked(c, h); reason != "" {
		p.decide("/proc/driver", "not masked", "%s", reason)
		return nil
	}
	p.Proc.Masked = true
	p.decide("/proc/driver", "masked", "the container shall see its own devices only")
	// ModifyDeviceFiles lets NVIDIA's libraries make device nodes by themselves, and is 1 if it is
	// missing (nvidia-modprobe, init_device_file_parameters). A capability file has a parameter of
	// its own, DeviceFileModify.
	files := []maskFile{{name: "nvidia/version"}, {"nvidia/params", true, "ModifyDeviceFiles: 0"}}
	for _, gpu := range g.gpus {
		if gpu.BusID == "" { // procfs has nothing of it
			continue
		}
		p.Proc.GPUs = append(p.Proc.GPUs, gpu.BusID)
		dir := filepath.Join("nvidia/gpus", gpu.BusID)
		files = append(files, maskFile{name: filepath.Join(dir, "information")}, maskFile{name: filepath.Join(dir, "power"), optional: true})
	}
	var minors []byte
	for _, right := range g.set.Capabilities() {
		p.Proc.Capabilities = append(p.Proc.Capabilities, right.File)
		files = append(files, maskFile{name: filepath.Join("nvidia/capabilities", right.File), line: "DeviceFileModify: 0"})
		// NVIDIA's device plugin looks them up in this table, where the names lack "mig/".
		minors = fmt.Appendf(minors, "%s %d\n", strings.Replace(right.File, "mig/", "", 1), right.Minor)
	}
	if p.hasGDS() { // libcufile reads these besides the nodes
		for _, name := range []string{"version", "devcount", "bridges", "modules", "peer_distance"} {
			files = append(files, maskFile{name: filepath.Join("nvidia-fs", name), optional: true})
		}
	}
	for _, f := range files {
		data, err := device.ReadFile(filepath.Join(c.Config.Host.ProcRoot, "driver", f.name))
		absent := f.optional && errors.Is(err, fs.ErrNotExist)
		if err != nil && !absent {
			return fail(Precondition, "%w", err)
		}
		if f.line != "" {
			data = setLine(data, f.line)
		} else if absent {
			continue
		}
		p.mask = append(p.mask, procmask.File{Path: f.name, Data: data})
	}
	if len(minors) > 0 {
		p.mask = append(p.mask, procmask.File{Path: "nvidia-caps/mig-minors", Data: minors})
	}
	return nil
}

// setLine returns text with the line "name: value" in place of the one with that name, or at its
// end.
func setLine(text []byte, line string) []byte {
	name, _, _ := strings.Cut(line, " ")
	var out []byte
	found := false
	for old := range bytes.Lines(bytes.TrimRight(text, "\n")) {
		old = bytes.TrimSuffix(old, []byte("\n"))
		if bytes.HasPrefix(old, []byte(name)) {
			old, found = []byte(line), true
		}
		out = append(append(out, old...), '\n')
	}
	if !found {
		out = append(out, line+"\n"...)
	}
	return out
}
