package driver

import (
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// implied adds the capabilities whose libraries others need: video decodes with CUDA, and a display
// shows what graphics draws.
func implied(caps []string) []string {
	caps = slices.Clone(caps)
	if slices.Contains(caps, config.Video) {
		caps = append(caps, config.Compute)
	}
	if slices.Contains(caps, config.Display) {
		caps = append(caps, config.Graphics)
	}
	return caps
}

// For returns the files of a container with these capabilities. 32-bit libraries need compat32
// besides their own capability. Lists of the result may share memory with f.
func (f Files) For(caps []string) Files {
	want := implied(caps)
	has := func(have, want []string) bool {
		return slices.ContainsFunc(have, func(c string) bool { return slices.Contains(want, c) })
	}
	f.Libraries = slices.DeleteFunc(slices.Clone(f.Libraries), func(l Library) bool {
		return !has(l.Capabilities, want) || l.Bits == 32 && !slices.Contains(caps, config.Compat32)
	})
	f.Data = slices.DeleteFunc(slices.Clone(f.Data), func(d File) bool { return !has(d.Capabilities, want) })
	// Libraries and data are implied, programs are not: video needs no MPS server.
	f.Binaries = slices.DeleteFunc(slices.Clone(f.Binaries), func(b Binary) bool { return !has(b.Capabilities, caps) })
	return f
}

// Short returns what a container with these capabilities needs of the list. It is as fresh as the
// list.
func (f Files) Short(caps []string) Files {
	want := implied(caps)
	s := f.For(caps)
	s.Only = slices.Clone(caps)
	s.Refused, s.LeftOut, s.Others, s.Stamps, s.Searched = f.RefusedFor(caps), nil, nil, nil, nil
	s.Missing, s.Problems = nil, map[string]string{}
	for _, m := range f.Missing {
		if capability, _, _ := strings.Cut(m, ": "); slices.Contains(want, capability) {
			s.Missing = append(s.Missing, m)
		}
	}
	for _, c := range want {
		if text, ok := f.Problems[c]; ok {
			s.Problems[c] = text
		}
	}
	return s
}

// RefusedFor returns the refused libraries of these capabilities of which no 64-bit copy is given.
func (f Files) RefusedFor(caps []string) (list []Refused) {
	want := implied(caps)
	for _, r := range f.Refused {
		name := path.Base(r.Path)
		stem, version, _ := SplitName(name)
		wanted := version == f.Version && slices.ContainsFunc(Capabilities(stem), func(c string) bool { return slices.Contains(want, c) })
		if wanted && !slices.ContainsFunc(f.Libraries, func(l Library) bool { return l.Name == name && l.Bits == 64 }) {
			list = append(list, r)
		}
	}
	return list
}

// Check returns an error if one of these capabilities is not available: libcuda for compute and
// video, or libnvidia-ml for utility, is absent, refused, or of another version than the loaded
// kernel module ("Driver/library version mismatch" of NVML).
func (f Files) Check(caps []string) error {
	for _, c := range implied(caps) {
		if text, ok := f.Problems[c]; ok {
			return errors.New(text)
		}
	}
	return nil
}
