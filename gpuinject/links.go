package gpuinject

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// placement is a file of the view that the container is to find at another path, too.
type placement struct {
	// source is the file on the host, for a bind; target its name in the container's
	// view, for a link. The name of a link has no version in it where there is a choice,
	// so that it is good after an upgrade of the driver as well.
	source, target string
	dest           string
}

// place makes links of what the image has nothing in place of, and returns binds for
// the rest. A link costs a create some microseconds, and a bind that runc has to make
// a mount point for some hundred system calls. In a plan nothing is changed.
func (j *Job) place(files []placement, planned bool) []specs.Mount {
	var mounts []specs.Mount
	hidden := j.hiddenPlaces()
	linkable := j.image == nil || !j.image.IsHost()
	link := func(name, target string) error { return nil }
	if j.image != nil {
		links := j.image.Links(j.target(ViewDir))
		defer links.Close()
		link = links.Make
		if planned {
			link = func(name, target string) error {
				if !links.CanMake(name) {
					return fs.ErrExist
				}
				return nil
			}
		}
	}
	for _, f := range files {
		at := j.target(f.dest)
		if linkable && !slices.ContainsFunc(hidden, func(dir string) bool { return below(at, dir) }) {
			err := link(f.dest, f.target)
			if err == nil {
				j.Plan.Links = append(j.Plan.Links, PlanLink{Path: f.dest, Target: f.target})
				continue
			}
			if !errors.Is(err, fs.ErrExist) {
				j.Plan.note(fmt.Sprintf("no link was made in the image, files are mounted: %v", err))
				linkable = false
			}
		}
		mounts = append(mounts, specs.Mount{Source: f.source, Destination: f.dest, Type: "bind", Options: fileOptions})
	}
	return mounts
}

// hiddenPlaces are where the container has mounts that end with it: what is in the
// image there is not to be seen, while a mount made later is. (Nothing is placed in
// its other mounts at all.)
func (j *Job) hiddenPlaces() []string {
	var dirs []string
	for _, m := range j.bundle.Spec.Mounts {
		if slices.Contains(ephemeral, m.Type) {
			dirs = append(dirs, j.target(m.Destination))
		}
	}
	return dirs
}
