package gpuinject

import (
	"bytes"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/procmask"
)

// needsMask tells whether the container gets the mask. A privileged container can
// take any mask off; a container in a user namespace that asked for an unmasked
// /proc wants to run containers itself, which the kernel refuses under a mask
// (mount_too_revealing), and cannot write those files anyway, unless the namespace
// has the host's root in it.
func (j *Job) needsMask() bool {
	linux := j.bundle.Spec.Linux
	// Without NVIDIA's kernel module (WSL2) there is nothing to hide.
	if j.Container.Privileged || j.inv.DriverVersion == "" {
		return false
	}
	return !inUserNamespace(linux) || mapsHostRoot(linux.UIDMappings) || len(linux.MaskedPaths) > 0
}

// inUserNamespace tells whether the container runs in a user namespace: one of its
// own, or that of its pod, which CRI names by path (WithPodNamespaces).
func inUserNamespace(linux *bundle.Linux) bool {
	return linux != nil && slices.ContainsFunc(linux.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == specs.UserNamespace })
}

// mapsHostRoot tells whether the host's root is, or may be, somebody in the user
// namespace: then the owner of the driver's files in procfs is.
func mapsHostRoot(mappings []specs.LinuxIDMapping) bool {
	return len(mappings) == 0 || slices.ContainsFunc(mappings, func(m specs.LinuxIDMapping) bool { return m.HostID == 0 && m.Size > 0 })
}

// checkIsolation refuses a container whose mounts would not be its own: the mask
// and the driver would land on the host or in another container (T26).
func (j *Job) checkIsolation() error {
	spec := j.bundle.Spec
	if spec.Linux == nil || !hasNamespace(spec.Linux.Namespaces, specs.MountNamespace) {
		return fail(Invalid, "the container has no mount namespace of its own: a GPU container needs one")
	}
	if !j.needsMask() {
		return nil
	}
	// The last mount at /proc is the one that the mask goes on. A bind of the host's
	// procfs there is no procfs of the container's: with rootfsPropagation "shared"
	// the mask would show on the host.
	own := false
	for _, m := range spec.Mounts {
		if filepath.Clean("/"+m.Destination) == "/proc" {
			own = m.Type == "proc"
		}
	}
	if !own {
		return fail(Invalid, "the container has no procfs of its own at /proc to hide the GPUs in that were not granted: mount one")
	}
	return nil
}

// hasNamespace tells whether the container gets a new namespace of the type.
func hasNamespace(list []specs.LinuxNamespace, kind specs.LinuxNamespaceType) bool {
	for _, ns := range list {
		if ns.Type == kind {
			return ns.Path == ""
		}
	}
	return false
}

// buildMask assembles the mask, unattached.
func (j *Job) buildMask() (*procmask.Mask, error) {
	dir := filepath.Join(j.Config.Host.ProcRoot, "driver/nvidia")
	version, err := j.readProc(filepath.Join(dir, "version"))
	if err != nil {
		return nil, fail(Precondition, "%w", err)
	}
	params, err := j.readProc(filepath.Join(dir, "params"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fail(Precondition, "%w", err)
	}
	files := []procmask.File{
		{Path: "version", Data: version},
		{Path: "params", Data: withoutDeviceFiles(params)},
	}
	for _, g := range j.gpus {
		if g.BusID == "" { // a Tegra's, of which procfs says nothing
			continue
		}
		for _, name := range []string{"information", "power"} {
			data, err := j.readProc(filepath.Join(dir, "gpus", g.BusID, name))
			if errors.Is(err, fs.ErrNotExist) && name != "information" {
				continue
			}
			if err != nil {
				return nil, fail(Precondition, "%w", err)
			}
			files = append(files, procmask.File{Path: filepath.Join("gpus", g.BusID, name), Data: data})
		}
	}
	for _, c := range j.set.Capabilities() {
		data, err := j.readProc(j.inv.CapabilityFile(c))
		if err != nil {
			return nil, fail(Precondition, "%w", err)
		}
		files = append(files, procmask.File{Path: filepath.Join("capabilities", c.File), Data: withLine(data, "DeviceFileModify:", "DeviceFileModify: 0")})
	}
	m, err := procmask.New(files, j.bundle.Spec.Linux.MountLabel)
	if err != nil {
		return nil, fail(Internal, "%w", err)
	}
	return m, nil
}

// planMask enters in the plan what the mask shows.
func (j *Job) planMask() {
	j.Plan.Proc = PlanProc{Masked: true, GPUs: []string{}, Capabilities: []string{}}
	for _, g := range j.gpus {
		if g.BusID != "" {
			j.Plan.Proc.GPUs = append(j.Plan.Proc.GPUs, g.BusID)
		}
	}
	for _, c := range j.set.Capabilities() {
		j.Plan.Proc.Capabilities = append(j.Plan.Proc.Capabilities, c.File)
	}
}

// withoutDeviceFiles is the params file with ModifyDeviceFiles at 0: the parameter
// that lets NVIDIA's libraries make device nodes by themselves. A capability file has
// one of its own, DeviceFileModify. Missing means 1 (nvidia-modprobe,
// init_device_file_parameters).
func withoutDeviceFiles(params []byte) []byte {
	return withLine(params, "ModifyDeviceFiles:", "ModifyDeviceFiles: 0")
}

// withLine is text with line in place of the one that begins with name, or at its end.
func withLine(text []byte, name, line string) []byte {
	var out []byte
	found := false
	for old := range bytes.Lines(text) {
		if bytes.HasPrefix(old, []byte(name)) {
			end := old[len(bytes.TrimSuffix(old, []byte("\n"))):]
			out, found = append(append(out, line...), end...), true
			continue
		}
		out = append(out, old...)
	}
	if found {
		return out
	}
	if out = bytes.TrimRight(out, "\n"); len(out) > 0 {
		out = append(out, '\n')
	}
	return append(out, line+"\n"...)
}

// readProc reads a file of the driver's procfs, where it was not read just now.
func (j *Job) readProc(name string) ([]byte, error) {
	if data, ok := j.read[name]; ok {
		return data, nil
	}
	return device.ReadFile(name)
}
