package gpuinject

import (
	"encoding/json"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/procmask"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
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
	ch, pc := &p.Changes, c.toPlace()
	edit := step{"edit", func() error { return ch.WriteBundle(pc) }}
	maskBuild := step{"mask-build", func() (err error) {
		if p.Proc.Masked {
			mask, err = procmask.New(ch.Mask, c.Bundle.Spec.Linux.MountLabel) // guard: mask: container's mount label
		}
		return err
	}}
	steps := []step{edit, maskBuild} // guard: hooks: removed without a request
	if p.GPU {
		steps = []step{
			{"view", func() error { return ch.View.Ensure(c.Config.Host.StateDir) }},
			{"links", func() error { return ch.MakeLinks(root) }},
			{"linker", func() error { return ch.WriteLinkerFiles(pc, root) }},
			edit,
			{"record", func() error {
				p = p.describeChanges()
				return p.store(c.Bundle.Dir)
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
			return p, nil, verdict.Internal("%w", err)
		}
	}
	return p, mask, nil
}

// store writes the record of the container with the bundle dir.
func (p Plan) store(dir string) error {
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return bundle.WriteFile(dir, RecordName, append(data, '\n'), 0o600)
}
