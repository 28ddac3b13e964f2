package gpuinject

import (
	"encoding/json"
	"errors"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/layout"
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
	ch := &p.Changes
	edit := step{"edit", func() error { return ch.writeBundle(c) }}
	maskBuild := step{"mask-build", func() (err error) {
		if p.Proc.Masked {
			mask, err = procmask.New(ch.Mask, c.Bundle.Spec.Linux.MountLabel)
		}
		return err
	}}
	steps := []step{edit, maskBuild}
	if p.GPU {
		steps = []step{
			{"view", func() error { return ensureView(c, *ch.View) }},
			{"links", func() error { return ch.makeLinks(root) }},
			{"linker", func() error { return ch.writeLinkerFiles(c, root) }},
			edit,
			{"record", func() error {
				p = p.describeChanges()
				return p.writeRecord(c)
			}},
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
func ensureView(c Container, v View) error {
	st, err := state.Open(c.Config.Host.StateDir, false)
	if err != nil {
		return err
	}
	return view.Ensure(st, v.Spec)
}

// makeLinks creates the links in the image. A link that cannot be created becomes a bind mount.
func (ch *Changes) makeLinks(root *image.Root) error {
	own, err := root.Target(ViewDir)
	if err != nil {
		return err
	}
	var made []Link
	for _, l := range ch.Links {
		if err := root.MakeLink(l.Path, l.target(), own); err != nil {
			if errors.Is(err, unix.EXDEV) { // runc would create the mount point on the host
				ch.Note("no link was made in the image: %v", err)
				continue
			}
			ch.Note("no link was made in the image, the file is mounted: %v", err)
			ch.mountFile(layout.Bind{Name: l.Name, Destination: l.Path}, ch.View.Root)
			continue
		}
		made = append(made, l)
	}
	ch.Links = made
	return nil
}

func (ch *Changes) writeLinkerFiles(c Container, root *image.Root) error {
	for _, f := range ch.LinkerFiles {
		err := root.WriteFile(f.Path, f.Data)
		if errors.Is(err, unix.EXDEV) { // as for links
			ch.Note("%s is not written in the image: %v", f.Path, err)
		} else if err != nil {
			ch.mountCache(c, f, ch.CacheAt, err)
		}
	}
	return nil
}

func (ch *Changes) writeBundle(c Container) error {
	for _, f := range ch.BundleFiles {
		if err := bundle.WriteFile(c.Bundle.Dir, f.Path, f.Data, 0o644); err != nil {
			return err
		}
	}
	if len(ch.ByPath) > 0 {
		if err := bundle.WriteLinks(c.Bundle.Dir, byPathName, ch.ByPath); err != nil {
			return err
		}
	}
	for _, m := range ch.Mounts {
		ch.Edits.Mounts = append(ch.Edits.Mounts, specs.Mount{
			Source: m.Source, Destination: m.Destination, Type: "bind", Options: m.Options,
		})
	}
	if err := c.Bundle.Apply(ch.Edits); err != nil {
		return err
	}
	return c.Bundle.Save()
}

func (p Plan) writeRecord(c Container) error {
	data, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	return bundle.WriteFile(c.Bundle.Dir, RecordName, append(data, '\n'), 0o600)
}
