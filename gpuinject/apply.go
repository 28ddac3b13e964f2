package gpuinject

import (
	"encoding/json"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/procmask"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/fault"
)

// Applied is a plan that has been carried out.
type Applied struct {
	// Plan is the plan as it was carried out: a link or a file that could not be made in the image
	// after all is mounted.
	Plan Plan
	// Mask is to be attached before the container is started; nil if Plan.Proc.Masked is false. The
	// caller closes it.
	Mask *procmask.Mask
}

// Apply carries out a plan: in the image that is mounted at root, and in the bundle. It runs before
// `runc create`, while nothing of the container exists (invariant I4). After an error the image may
// hold links and a linker configuration for a directory that nothing is mounted on, which is
// harmless, and the bundle an edited config.json, which goes with it.
func Apply(c Container, p Plan, root *image.Root) (Applied, error) {
	a := Applied{Plan: p}
	steps := []struct {
		name string
		run  func() error
	}{
		{"view", func() error { return ensureView(c, p) }},
		{"links", func() error { return a.Plan.makeLinks(root) }},
		{"linker", func() error { return a.Plan.writeLinkerFiles(c, root) }},
		{"edit", func() error { return a.Plan.writeBundle(c) }},
		{"record", func() error { return a.Plan.writeRecord(c) }},
		{"mask-build", func() (err error) {
			if p.Proc.Masked {
				a.Mask, err = procmask.New(p.mask, c.Bundle.Spec.Linux.MountLabel)
			}
			return err
		}},
	}
	for _, step := range steps {
		err := fault.Point(step.name)
		if err == nil {
			err = step.run()
		}
		if err != nil {
			return Applied{}, fail(Internal, "%w", err)
		}
	}
	return a, nil
}

// ensureView makes the view of the driver's files if this host does not have it yet.
func ensureView(c Container, p Plan) error {
	st, err := state.Open(c.Config.Host.StateDir)
	if err != nil {
		return err
	}
	_, err = view.Ensure(st, p.view)
	return err
}

// makeLinks makes the links in the image. One that cannot be made becomes a bind.
func (p *Plan) makeLinks(root *image.Root) error {
	own, err := root.Target(ViewDir)
	if err != nil {
		return err
	}
	made := []PlanLink{}
	for _, l := range p.Links {
		if err := root.MakeLink(l.Path, l.Target, own); err != nil {
			p.note("no link was made in the image, the file is mounted: %v", err)
			p.mountFile(p.Mounts[0].Source+strings.TrimPrefix(l.Target, ViewDir), l.Path)
			continue
		}
		made = append(made, l)
	}
	p.Links = made
	return nil
}

// writeLinkerFiles writes the loader's files in the image.
func (p *Plan) writeLinkerFiles(c Container, root *image.Root) error {
	for _, f := range p.linkerFiles {
		if err := root.WriteFile(f.Path, f.Data); err != nil {
			p.mountCache(c, f, err)
		}
	}
	return nil
}

// writeBundle writes the files of the bundle and the edited config.json.
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

// writeRecord writes the plan beside config.json.
func (p *Plan) writeRecord(c Container) error {
	data, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	return bundle.WriteFile(c.Bundle.Dir, RecordName, append(data, '\n'), 0o600)
}

// AttachMask puts the mask into the mount namespace of the created, not yet started container whose
// init process is pid, over the directory target (host.proc-mask-target). If it fails, the
// container must not be started (invariant I8).
func AttachMask(mask *procmask.Mask, target string, pid int) error {
	err := fault.Point("mask")
	if err == nil {
		err = mask.Attach(pid, target)
	}
	if err != nil {
		return fail(Internal, "%w", err)
	}
	return nil
}
