package cdispec

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/question"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/atomicfile"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/preview"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// Make makes the specification of this host.
func Make(p preview.Planner) (*specs.Spec, error) {
	cfg, err := p.Config()
	if err != nil {
		return nil, err
	}
	h, err := host.Discover(cfg.Host)
	if err != nil {
		return nil, err
	}
	if h.Platform != "" {
		return nil, fmt.Errorf("programs find the driver of %s only with the linker files that this shim writes: use %s", host.PlatformTitle(h.Platform), request.EnvVisibleDevices)
	}
	var facts device.Facts
	if len(h.MIG) > 0 || h.LacksUUIDs() {
		answers := p.Ask(question.Questions{Facts: true})
		if answers.Facts == nil {
			return nil, errors.New(answers.FactsError)
		}
		facts = *answers.Facts
		h.Inventory = h.WithUUIDs(facts)
	}
	return describe(h, facts, func(devices string) (gpuinject.Standalone, error) {
		spec := preview.Spec([]string{request.EnvVisibleDevices + "=" + devices})
		// The operator may have GPUs without regard to policy.accept-env-when-unprivileged.
		preview.Privilege(spec)
		container, err := p.Examine(spec)
		if err != nil {
			return gpuinject.Standalone{}, err
		}
		plan, err := p.Resolve(container, "")
		return plan.Standalone(), err
	})
}

// describe makes the specification of a host. plan plans a container with a value of
// NVIDIA_VISIBLE_DEVICES.
func describe(h host.Host, facts device.Facts, plan func(devices string) (gpuinject.Standalone, error)) (*specs.Spec, error) {
	common, err := plan("none")
	if err != nil {
		return nil, err
	}
	spec := &specs.Spec{Kind: "nvidia.com/gpu", ContainerEdits: edits(common)}
	// void prevents an NVIDIA runtime that is the engine's default from injecting GPUs as well.
	spec.ContainerEdits.Env = []string{request.EnvVisibleDevices + "=void", request.EnvCDI + "=1"}
	add := func(id string, names ...string) error {
		s, err := plan(id)
		if err != nil {
			return err
		}
		own := slices.DeleteFunc(edits(s).DeviceNodes, func(n *specs.DeviceNode) bool {
			return slices.ContainsFunc(spec.ContainerEdits.DeviceNodes, func(c *specs.DeviceNode) bool { return c.Path == n.Path })
		})
		if len(own) == 0 { // a device without edits is invalid
			own = edits(s).DeviceNodes
		}
		for _, name := range names {
			spec.Devices = append(spec.Devices, specs.Device{Name: name, ContainerEdits: specs.ContainerEdits{DeviceNodes: own, AdditionalGIDs: s.Groups}})
		}
		return nil
	}
	for _, g := range h.GPUs {
		if h.IsWhole(g) {
			names := []string{strconv.Itoa(g.Index)}
			if g.UUID != "" {
				names = append(names, g.UUID)
			}
			if err := add(names[0], names...); err != nil {
				return nil, err
			}
		}
	}
	for _, in := range h.Annotate(h.MIG, facts) {
		if in.UUID == "" {
			return nil, fmt.Errorf("MIG device %s: %w", in.Name(), device.ErrFacts)
		}
		if err := add(in.UUID, fmt.Sprintf("%d:%d", in.GPU, in.Index), in.UUID); err != nil {
			return nil, err
		}
	}
	if err := add(request.All, request.All); err != nil {
		return nil, err
	}
	spec.Version, err = specs.MinimumRequiredVersion(spec)
	return spec, err
}

// Text makes the specification of this host as the text of a file.
func Text(p preview.Planner) ([]byte, error) {
	spec, err := Make(p)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	enc := yaml.NewEncoder(&text)
	enc.SetIndent(2)
	err = enc.Encode(spec)
	return runtimeclass.Marked(text.String()), err
}

// edits returns the nodes and files of a plan. Libraries go where the loaders of images look.
func edits(s gpuinject.Standalone) specs.ContainerEdits {
	var e specs.ContainerEdits
	for _, n := range s.Nodes {
		// Without an owner the CDI library gives the node to the container's user and drops the
		// host's group.
		mode, uid, gid := n.Mode.Perm(), n.UID, n.GID
		e.DeviceNodes = append(e.DeviceNodes, &specs.DeviceNode{
			Path: n.Path, HostPath: n.HostPath, Permissions: "rw", FileMode: &mode, UID: &uid, GID: &gid,
		})
	}
	mount := func(source, dest string) {
		e.Mounts = append(e.Mounts, &specs.Mount{HostPath: source, ContainerPath: dest, Options: []string{"ro", "nosuid", "nodev", "rbind", "rprivate"}})
	}
	for _, l := range s.Libraries {
		for _, dir := range driver.LoaderDirs(l.Bits) {
			mount(l.Source, path.Join(dir, l.Name))
		}
	}
	for _, f := range s.Files {
		mount(f.Source, f.Destination)
	}
	return e
}

// Read returns a specification that this program wrote and nothing has changed, or an error that is
// fs.ErrNotExist if there is no file.
func Read(name string) ([]byte, error) {
	text, _, err := trusted.Read(name, maxSize)
	if err == nil && !runtimeclass.Unchanged(text) { // guard: root's files: no other program's
		err = fmt.Errorf("%s was not written by this program, or was edited since: remove it, or choose another file", name)
	}
	return text, err
}

// Write writes a specification, replacing an older one. A file written by another program is an
// error, and so is one that takes devices away from container engines.
func Write(name string, text []byte) error {
	if _, err := Read(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if dir := filepath.Dir(name); slices.Contains(Dirs, dir) {
		if err := CheckConflicts(name, text, dir); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return atomicfile.Write(name, text, 0o644)
}

// Refresh makes the file again if there is one that this program wrote.
func Refresh(name string, p preview.Planner) error {
	before, err := Read(name)
	if err != nil { // there is none, or it is not ours
		return nil
	}
	text, err := Text(p)
	if errors.Is(err, device.ErrNoDriver) || bytes.Equal(before, text) {
		return nil
	}
	if err == nil {
		err = Write(name, text)
	}
	if err != nil {
		return fmt.Errorf("%s is not made again: %w", name, err)
	}
	return nil
}
