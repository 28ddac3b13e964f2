package place

import (
	"errors"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
)

// Ensure creates the view if this host does not have it yet.
func (v View) Ensure(stateDir string) error {
	st, err := state.Open(stateDir, false)
	if err != nil {
		return err
	}
	return view.Ensure(st, v.Spec)
}

// MakeLinks creates the links in the image. A link that cannot be created becomes a bind mount.
func (ch *Changes) MakeLinks(root *image.Root) error {
	own, err := root.Target(ch.View.Dir)
	if err != nil {
		return err
	}
	var made []Link
	for _, l := range ch.Links {
		if err := root.MakeLink(l.Path, l.Target, own); err != nil {
			// guard: image: no mount point in later mounts
			if errors.Is(err, unix.EXDEV) { // runc would create the mount point on the host
				ch.Note("no link was made in the image: %v", err)
				continue
			}
			ch.Note("no link was made in the image, the file is mounted: %v", err)
			ch.mountFile(Bind{Name: l.Name, Destination: l.Path}, ch.View.Root)
			continue
		}
		made = append(made, l)
	}
	ch.Links = made
	return nil
}

// WriteLinkerFiles writes the linker files in the image. A cache that cannot be written is mounted.
func (ch *Changes) WriteLinkerFiles(c Container, root *image.Root) error {
	for _, f := range ch.LinkerFiles {
		err := root.WriteFile(f.Path, f.Data)
		// guard: image: no cache in later mounts
		if errors.Is(err, unix.EXDEV) { // as for links
			ch.Note("%s is not written in the image: %v", f.Path, err)
		} else if err != nil {
			ch.mountCache(c, f, ch.CacheAt, err)
		}
	}
	return nil
}

// WriteBundle makes the files in the bundle, and edits config.json.
func (ch Changes) WriteBundle(c Container) error {
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
