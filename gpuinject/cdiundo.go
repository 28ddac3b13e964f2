package gpuinject

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
)

// undoCDI takes out of the specification what CDI put in and is done here: its hooks,
// the mounts of driver files, and device rules that allow mknod.
func (j *Job) undoCDI() error {
	isOurs := func(r specs.LinuxDeviceCgroup) bool {
		return r.Allow && r.Type == "c" && r.Major != nil && r.Minor != nil && strings.Contains(r.Access, "m") &&
			slices.ContainsFunc(j.nodes, func(n device.Node) bool { return *r.Major == int64(n.Major) && *r.Minor == int64(n.Minor) })
	}
	for _, m := range j.bundle.Spec.Mounts {
		if j.cdiMount(m) && isSocketMount(m) {
			j.Plan.note("not mounted: " + m.Destination + ", which CDI gives every container; see container.sockets")
		}
	}
	_, err := j.bundle.Apply(bundle.Edits{RemoveRule: isOurs, RemoveMount: j.cdiMount})
	if err != nil {
		return fail(Invalid, "%w", err)
	}
	return nil
}

// cdiMount tells a mount that NVIDIA's CDI specification made: a file of this host's
// driver, at the place that nvidia-ctk gives it, with the options that it writes
// (toolkit.md 4.2). A volume of the same file that a user asks for has other options.
func (j *Job) cdiMount(m specs.Mount) bool {
	if !j.taken || !path.IsAbs(m.Source) || !hasAll(m.Options, "nosuid", "nodev") || !slices.Contains(m.Options, "bind") && !slices.Contains(m.Options, "rbind") {
		return false
	}
	source, dest := path.Clean(m.Source), path.Clean(m.Destination)
	if isSocketMount(m) {
		if dest == mpsDir && j.ownMPS() {
			return false
		}
		return inRoot(source, j.Config.Host.DriverRoot, j.all.RealRoot) == dest || source == dest
	}
	if !slices.Contains(m.Options, "ro") {
		return false
	}
	below := inRoot(source, j.Config.Host.DriverRoot, j.all.RealRoot)
	if path.Base(source) != path.Base(dest) {
		return false
	}
	switch info, err := os.Stat(source); {
	case err != nil:
		// Of a driver that is gone: runc would fail for it.
		return below == dest && driver.NamesLibrary(path.Base(source))
	case below == dest && isFirmware(source):
		return true
	case below == dest && strings.HasSuffix(source, ".so."+j.all.Version) && j.searched(path.Dir(source)):
		return true
	default:
		return j.isDriverFile(info, below, dest)
	}
}

// inRoot is a host path as it is in the driver root; itself where it is elsewhere.
func inRoot(name string, roots ...string) string {
	for _, root := range roots {
		if rest, ok := strings.CutPrefix(name, path.Clean(root)+"/"); ok && root != "/" && root != "" {
			return "/" + rest
		}
	}
	return name
}

// isSocketMount tells a mount of a daemon's socket: read-write, and nothing in it can
// be executed.
func isSocketMount(m specs.Mount) bool {
	dest := path.Clean(m.Destination)
	known := dest == mpsDir || slices.ContainsFunc(daemons, func(d daemon) bool {
		return d.name != config.MPS && slices.ContainsFunc(runDirs, func(run string) bool { return dest == run+"/"+d.below+"/socket" })
	})
	return known && hasAll(m.Options, "nosuid", "nodev", "noexec")
}

// isFirmware tells firmware of the driver, which the kernel loads and no container.
func isFirmware(name string) bool {
	base := path.Base(name)
	return strings.HasPrefix(base, "gsp") && strings.HasSuffix(base, ".bin") && strings.Contains(name, "/nvidia/")
}

// searched tells whether driver files are looked for in a directory.
func (j *Job) searched(dir string) bool {
	info, err := os.Stat(dir)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(j.all.Searched, func(have string) bool {
		other, err := os.Stat(have)
		return err == nil && os.SameFile(info, other)
	})
}

// isDriverFile tells whether a file is one that was found here, mounted where it
// belongs: where it is on the host, a program in /usr/bin, a data file in its place.
func (j *Job) isDriverFile(info os.FileInfo, below, dest string) bool {
	is := func(name string) bool {
		have, err := os.Stat(name)
		return err == nil && os.SameFile(info, have)
	}
	for _, l := range j.all.Libraries {
		if below == dest && is(l.Path) {
			return true
		}
	}
	for _, b := range j.all.Binaries {
		if (below == dest || dest == filepath.Join("/usr/bin", b.Name)) && is(b.Path) {
			return true
		}
	}
	for _, d := range j.all.Data {
		if (below == dest || dest == d.Dest) && is(d.Path) {
			return true
		}
	}
	return false
}

func hasAll(options []string, want ...string) bool {
	return !slices.ContainsFunc(want, func(w string) bool { return !slices.Contains(options, w) })
}
