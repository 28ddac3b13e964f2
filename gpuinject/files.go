package gpuinject

import (
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
)

// ViewDir is where a container finds the driver: the place that the PATH and
// LD_LIBRARY_PATH of CUDA images have always pointed at.
const ViewDir = "/usr/local/nvidia"

// Directories of a view. 32-bit libraries have one of their own.
const (
	viewLib   = "lib64"
	viewLib32 = "lib"
	viewBin   = "bin"
	viewShare = "share"
	viewXorg  = "xorg"
)

// manifestName is where the state directory keeps what was learned about the
// driver's files.
const manifestName = "driver.json"

// manifestFormat is raised where the same files would be found to be something else, so
// that what an older shim kept is not believed.
const manifestFormat = 1

// manifest is the driver's files as they were found, with what they were found by.
type manifest struct {
	Format  int
	Host    config.Host
	Version string
	Files   driver.Files
}

// findFiles gets the driver's files for the request: from the manifest where
// nothing changed since (some dozen stat calls), else by looking anew.
func (j *Job) findFiles() error {
	if j.stamp != "" {
		return nil
	}
	if err := j.loadManifest(); err != nil {
		return err
	}
	m := j.manifest
	if !j.looked && !j.fresh(m) {
		var err error
		if m, err = j.newManifest(); err != nil {
			return err
		}
	}
	if err := m.Files.Check(j.Request.Capabilities); err != nil {
		return fail(Precondition, "%w", err)
	}
	j.stamp = m.Version + "-" + m.Files.Identity
	j.all = m.Files
	j.files = m.Files.For(j.Request.Capabilities)
	return nil
}

// fresh tells whether the manifest is up to date.
func (j *Job) fresh(m *manifest) bool {
	if j.early.isFresh(m) {
		return true
	}
	return m.Files.Fresh(j.Config.Host, j.Request.Capabilities)
}

// loadManifest gets the manifest that is kept, whether or not it is up to date, or
// makes one where there is none for this host.
func (j *Job) loadManifest() error {
	if j.manifest != nil {
		return nil
	}
	if err := j.openState(); err != nil {
		return err
	}
	_, m := j.early.read()
	ok := true
	if m == nil || j.manifestFor() != manifestName {
		m, ok = j.ahead.load(j.state, j.manifestFor())
	}
	if ok && m.Format == manifestFormat && m.Version == j.inv.DriverVersion && reflect.DeepEqual(m.Host, j.Config.Host) {
		j.manifest = m
		return nil
	}
	_, err := j.newManifest()
	return err
}

// newManifest looks for the driver's files and keeps what it finds.
func (j *Job) newManifest() (*manifest, error) {
	files, err := DriverFiles(j.Config.Host, j.inv, j.allLists())
	if err != nil {
		return nil, fail(Precondition, "%w", err)
	}
	m := &manifest{Format: manifestFormat, Host: j.Config.Host, Version: j.inv.DriverVersion, Files: *files}
	if err := j.state.Store(j.manifestFor(), m); err != nil {
		return nil, fail(Internal, "keep the list of driver files: %w", err)
	}
	j.manifest, j.looked = m, true
	return m, nil
}

// viewSpec lays the files out. Libraries that the image's forward compatibility
// package brings itself are left out, so that no search path finds ours first.
func (j *Job) viewSpec(leaveOut []string) view.Spec {
	spec := view.Spec{Driver: j.stamp}
	for _, l := range j.files.Libraries {
		if l.Dir != "" || l.Bits == 64 && suppliedBy(l, leaveOut) {
			continue
		}
		spec.Files = append(spec.Files, view.File{Source: l.Path, Name: path.Join(libDir(l), l.Name), Links: l.Links})
	}
	for _, b := range j.files.Binaries {
		spec.Files = append(spec.Files, view.File{Source: b.Path, Name: path.Join(viewBin, b.Name)})
	}
	for _, d := range j.files.Data {
		switch {
		case d.Data != nil:
			spec.Files = append(spec.Files, view.File{Data: d.Data, Name: dataIn(d)})
		case !d.Direct:
			spec.Files = append(spec.Files, view.File{Source: d.Path, Name: dataIn(d)})
		}
	}
	return spec
}

// dataIn is the name of a data file in the view: by its path in the container, less the
// first component or two.
func dataIn(d driver.File) string {
	if !path.IsAbs(d.Dest) {
		return path.Join(viewXorg, d.Dest)
	}
	return path.Join(viewShare, strings.TrimPrefix(strings.TrimPrefix(d.Dest, "/etc"), "/usr/share"))
}

// libraryIn is the name of a library in the view: the one that is asked for, where it
// has it.
func libraryIn(l driver.Library, name string) string {
	if !slices.Contains(l.Links, name) {
		name = l.Name
	}
	return path.Join(libDir(l), name)
}

func libDir(l driver.Library) string {
	if l.Bits == 32 {
		return path.Join(viewLib32, l.Subdir)
	}
	return path.Join(viewLib, l.Subdir)
}

// placedNames are the names of a library that is at its own path, without its links.
func placedNames(l driver.Library) (libs []ldcache.Library) {
	for _, name := range append([]string{l.SOName, l.Name}, l.Links...) {
		if name != "" && !slices.ContainsFunc(libs, func(x ldcache.Library) bool { return x.Name == name }) {
			libs = append(libs, ldcache.Library{Name: name, Path: path.Join(l.Dir, l.Name), Flags: l.Flags})
		}
	}
	return libs
}

func suppliedBy(l driver.Library, names []string) bool {
	return slices.Contains(names, l.SOName)
}

// loaderLibraries are the names by which a program can ask the loader for what the
// view holds.
func loaderLibraries(files driver.Files, leaveOut []string) []ldcache.Library {
	var libs []ldcache.Library
	for _, l := range files.Libraries {
		// What is in a directory of its own (vdpau, gbm) is opened by path.
		if l.Subdir != "" || l.Bits == 64 && suppliedBy(l, leaveOut) {
			continue
		}
		if l.Dir != "" {
			libs = append(libs, placedNames(l)...)
			continue
		}
		dir := path.Join(ViewDir, libDir(l))
		names := []string{l.SOName}
		for _, link := range l.Links {
			if !slices.Contains(names, link) {
				names = append(names, link)
			}
		}
		for _, name := range names {
			if name == "" {
				continue
			}
			target := path.Join(dir, name)
			if name == l.SOName && !slices.Contains(l.Links, name) {
				target = path.Join(dir, l.Name)
			}
			libs = append(libs, ldcache.Library{Name: name, Path: target, Flags: l.Flags})
		}
	}
	return libs
}
