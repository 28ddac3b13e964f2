package gpuinject

import (
	"encoding/json"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
)

// ExamineSpec is Examine for a specification that is in no bundle.
func ExamineSpec(spec any, load func() (*config.Config, error)) (*Job, error) {
	raw, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	b, err := bundle.Parse("", raw, 0o600)
	if err != nil {
		return nil, fail(Invalid, "%w", err)
	}
	job, err := examine(b, load)
	return job, ordinary(err)
}

// Preview completes the plan after Resolve by the decisions of Inject, without any
// of its changes. root is the root file system of the image, or empty where none is
// at hand: the plan then says nothing of the linker.
func (j *Job) Preview(root string) error {
	if j.Request.ForeignOnly {
		return j.apply(bundle.Edits{})
	}
	if err := j.checkIsolation(); err != nil {
		return err
	}
	img := &ldcache.Image{}
	var compat []string
	if root != "" {
		image, err := image.Open(root)
		if err != nil {
			return fail(Precondition, "%w", err)
		}
		defer image.Close()
		if img, compat, err = j.inspect(image); err != nil {
			return err
		}
	}
	if j.needsMask() {
		j.planMask()
	}
	j.explainMask()
	spec := j.viewSpec(compat)
	j.listFiles(spec)
	mounts, files, err := j.mounts(j.state.Path(spec), img, compat)
	if err != nil {
		return err
	}
	mounts = append(mounts, j.place(files, true)...)
	// In memory only: what an edit would refuse, a plan refuses too.
	return j.apply(bundle.Edits{Mounts: mounts})
}
