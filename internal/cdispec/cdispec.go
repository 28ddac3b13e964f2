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
	"strings"

	"go.yaml.in/yaml/v3"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/atomicfile"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// Path is the file that container engines read. nvidia-ctk is documented to write the same one: two
// files of one kind in a directory make their devices unusable.
const Path = "/etc/cdi/nvidia.yaml"

// maxSize bounds the file; a node with 16 GPUs of 7 MIG devices each needs about 100 KiB.
const maxSize = 4 << 20

// Make returns the specification. plan returns the plan for a container with this value of
// NVIDIA_VISIBLE_DEVICES.
func Make(h host.Host, facts device.Facts, plan func(devices string) (gpuinject.Plan, error)) (*specs.Spec, error) {
	if h.Platform != "" {
		return nil, fmt.Errorf("the driver is that of %s, which programs find only with the linker's files of this shim: use %s", host.PlatformTitle(h.Platform), request.EnvVisibleDevices)
	}
	common, err := plan("none")
	if err != nil {
		return nil, err
	}
	spec := &specs.Spec{Kind: "nvidia.com/gpu", ContainerEdits: edits(common.Standalone())}
	// void prevents an NVIDIA runtime that is the engine's default from injecting GPUs as well.
	spec.ContainerEdits.Env = []string{request.EnvVisibleDevices + "=void", request.EnvCDI + "=1"}
	add := func(id string, names ...string) error {
		p, err := plan(id)
		if err != nil {
			return err
		}
		s := p.Standalone()
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
		if len(h.InstancesOf(g)) == 0 && h.Withheld(g) == 0 {
			if err := add(g.UUID, strconv.Itoa(g.Index), g.UUID); err != nil {
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

// Text returns a specification as the text of a file.
func Text(spec *specs.Spec) ([]byte, error) {
	var text bytes.Buffer
	enc := yaml.NewEncoder(&text)
	enc.SetIndent(2)
	err := enc.Encode(spec)
	return runtimeclass.Marked(text.String()), err
}

// edits returns the nodes and files of a plan. Libraries go where the loaders of images look.
func edits(s gpuinject.Standalone) specs.ContainerEdits {
	var e specs.ContainerEdits
	for _, n := range s.Nodes {
		e.DeviceNodes = append(e.DeviceNodes, &specs.DeviceNode{Path: n.Path, HostPath: n.HostPath, Permissions: "rw"})
	}
	for _, f := range s.Files {
		places := []string{f.Destination}
		for dir, bits := range map[string]int{"/lib64/": 64, "/lib/": 32} {
			if rest, ok := strings.CutPrefix(f.Destination, gpuinject.ViewDir+dir); ok {
				places = nil
				for _, d := range driver.LoaderDirs(bits) {
					places = append(places, path.Join(d, rest))
				}
			}
		}
		for _, place := range places {
			e.Mounts = append(e.Mounts, &specs.Mount{
				HostPath: f.Source, ContainerPath: place, Options: []string{"ro", "nosuid", "nodev", "rbind", "rprivate"},
			})
		}
	}
	return e
}

// Read returns a specification that this program wrote and nothing has changed, or an error that is
// fs.ErrNotExist if there is no file.
func Read(name string) ([]byte, error) {
	text, _, err := trusted.Read(name, maxSize)
	if err == nil && !runtimeclass.Unchanged(text) {
		err = fmt.Errorf("%s was not written by this program, or was edited since: remove it, or choose another file", name)
	}
	return text, err
}

// Write writes a specification, replacing an older one. A file written by another program is an
// error.
func Write(name string, text []byte) error {
	if _, err := Read(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return atomicfile.Write(name, text, 0o644)
}
