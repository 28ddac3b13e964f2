package gpuinject

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/procmask"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/fault"
)

// Apply carries out a plan in the image mounted at root and in the bundle. It runs before runc
// creates the container, when nothing of it exists yet (invariant I4). After an error, the image
// may contain links and a linker configuration for a directory on which nothing is mounted, which
// is harmless, and the bundle may contain an edited config.json, which is deleted with the bundle.
// For a container that gets no GPU, Apply removes NVIDIA's hooks and creates the mask, but leaves
// the image alone.
//
// It returns the plan as carried out: a link or file that could not be created in the image is
// mounted instead, if possible. mask must be attached before the container starts; it is nil if the
// container gets none. The caller closes it.
func Apply(c Container, p Plan, root *image.Root) (done Plan, mask *procmask.Mask, err error) {
	type step struct {
		name string
		run  func() error
	}
	edit := step{"edit", func() error { return p.writeBundle(c) }}
	maskBuild := step{"mask-build", func() (err error) {
		if p.Proc.Masked {
			mask, err = procmask.New(p.mask, c.Bundle.Spec.Linux.MountLabel)
		}
		return err
	}}
	steps := []step{edit, maskBuild}
	if p.GPU {
		steps = []step{
			{"view", func() error { return ensureView(c, p) }},
			{"links", func() error { return p.makeLinks(root) }},
			{"linker", func() error { return p.writeLinkerFiles(c, root) }},
			edit,
			{"record", func() error { return p.writeRecord(c) }},
			maskBuild,
		}
	}
	for _, step := range steps {
		err := fault.Point(step.name)
		if err == nil {
			err = step.run()
		}
		if err != nil {
			return p, nil, fail(Internal, "%w", err)
		}
	}
	return p, mask, nil
}

// ensureView creates the view of the driver's files if this host does not have it yet.
func ensureView(c Container, p Plan) error {
	st, err := state.Open(c.Config.Host.StateDir, false)
	if err != nil {
		return err
	}
	return view.Ensure(st, p.view)
}

// makeLinks creates the links in the image. A link that cannot be created becomes a bind mount.
func (p *Plan) makeLinks(root *image.Root) error {
	own, err := root.Target(ViewDir)
	if err != nil {
		return err
	}
	made := []PlanLink{}
	for _, l := range p.Links {
		if err := root.MakeLink(l.Path, l.Target, own); err != nil {
			if errors.Is(err, unix.EXDEV) { // runc would create the mount point on the host
				p.note("no link was made in the image: %v", err)
				continue
			}
			p.note("no link was made in the image, the file is mounted: %v", err)
			p.mountFile(p.viewRoot+strings.TrimPrefix(l.Target, ViewDir), l.Path)
			continue
		}
		made = append(made, l)
	}
	p.Links = made
	return nil
}

func (p *Plan) writeLinkerFiles(c Container, root *image.Root) error {
	for _, f := range p.linkerFiles {
		err := root.WriteFile(f.Path, f.Data)
		if errors.Is(err, unix.EXDEV) { // as for links
			p.note("%s is not written in the image: %v", f.Path, err)
		} else if err != nil {
			p.mountCache(c, f, err)
		}
	}
	return nil
}

func (p *Plan) writeBundle(c Container) error {
	for _, f := range p.bundleFiles {
		if err := bundle.WriteFile(c.Bundle.Dir, f.Path, f.Data, 0o644); err != nil {
			return err
		}
	}
	if len(p.byPath) > 0 {
		if err := bundle.WriteLinks(c.Bundle.Dir, byPathName, p.byPath); err != nil {
			return err
		}
	}
	for _, m := range p.Mounts {
		p.edits.Mounts = append(p.edits.Mounts, specs.Mount{
			Source: m.Source, Destination: m.Destination, Type: "bind", Options: m.Options,
		})
	}
	if err := c.Bundle.Apply(p.edits); err != nil {
		return err
	}
	return c.Bundle.Save()
}

func (p *Plan) writeRecord(c Container) error {
	data, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	return bundle.WriteFile(c.Bundle.Dir, RecordName, append(data, '\n'), 0o600)
}
