package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// installer collects what goes to the driver root.
type installer struct {
	d     *Driver
	p     places
	files []string // relative to the root
}

// install writes the files of version d.Version to the driver root and sets
// d.Installed. Files of another version stay.
func (d *Driver) install(ctx context.Context) error {
	if err := os.MkdirAll(d.Root, 0o755); err != nil {
		return err
	}
	in := &installer{d: d, p: layouts[d.Layout]}
	for _, step := range []func() error{
		in.skeleton,
		func() error { return in.code(ctx) },
		in.data,
		func() error { return d.updateCache(ctx) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	slices.Sort(in.files)
	d.Installed = slices.Compact(in.files)
	return nil
}

// skeleton makes what a distribution has before the driver: a merged /usr and
// the loader's configuration.
func (in *installer) skeleton() error {
	for _, dir := range []string{"usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "etc/ld.so.conf.d", "usr/lib/firmware"} {
		if err := os.MkdirAll(filepath.Join(in.d.Root, dir), 0o755); err != nil {
			return err
		}
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		err := os.Symlink("usr/"+name, filepath.Join(in.d.Root, name))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	for name, content := range in.p.ldConf {
		if err := writeFile(filepath.Join(in.d.Root, "etc/ld.so.conf.d", name), content, 0o644); err != nil {
			return err
		}
	}
	return writeFile(filepath.Join(in.d.Root, "etc/ld.so.conf"), "include /etc/ld.so.conf.d/*.conf\n", 0o644)
}

// code compiles and installs the libraries and programs.
func (in *installer) code(ctx context.Context) error {
	b, err := newBuilder(in.d.Dir)
	if err != nil {
		return err
	}
	defer b.close()
	var units []unit
	for _, l := range libraries {
		units = append(units, in.d.libraryUnit(l))
	}
	for _, p := range programs {
		units = append(units, in.d.programUnit(p))
	}
	files, err := b.objects(ctx, units)
	if err != nil {
		return err
	}
	for i, l := range libraries {
		if err := in.library(l, files[i]); err != nil {
			return err
		}
	}
	for i, p := range programs {
		if err := in.program(p, files[len(libraries)+i]); err != nil {
			return err
		}
	}
	if err := in.extraLinks(files[0]); err != nil {
		return err
	}
	return in.compat32(ctx, b)
}

// library installs one library with its SONAME link and development link.
func (in *installer) library(l library, object string) error {
	version := in.d.Version
	dir := in.p.lib
	switch {
	case l.xorg != "" && in.p.xorg == "":
		return nil
	case l.xorg == "driver":
		return in.copy(object, path(in.p.xorg, l.file(version)), 0o755)
	case l.xorg == "extension":
		if err := in.copy(object, path(in.p.xorgExtensions, l.file(version)), 0o755); err != nil {
			return err
		}
		return in.link(l.file(version), path(in.p.xorgExtensions, l.name+".so"))
	case l.vdpau:
		dir = path(dir, in.p.vdpau)
	}
	if err := in.copy(object, path(dir, l.file(version)), 0o644); err != nil {
		return err
	}
	return in.libraryLinks(l, dir, in.p.libLinks)
}

// libraryLinks makes the links to a library that is in dir: those beside it, as
// ldconfig would, and with alternatives those in the loader's directory.
func (in *installer) libraryLinks(l library, dir, alternatives string) error {
	version := in.d.Version
	file, soname := l.file(version), l.sonameOf(version)
	if soname != file {
		if err := in.link(file, path(dir, soname)); err != nil {
			return err
		}
	}
	if l.dev {
		if err := in.link(soname, path(dir, l.name+".so")); err != nil {
			return err
		}
	}
	if alternatives == "" {
		return nil
	}
	names := []string{soname}
	if l.dev {
		names = append(names, l.name+".so")
	}
	if l.vdpau {
		alternatives = path(alternatives, "vdpau")
	}
	arch := filepath.Base(strings.TrimSuffix(dir, "/nvidia/current"))
	for _, name := range names {
		if err := in.alternative(path(dir, name), path(alternatives, name), name+"-"+arch); err != nil {
			return err
		}
	}
	return nil
}

// alternative links name to target by way of /etc/alternatives, absolutely, as
// update-alternatives does.
func (in *installer) alternative(target, name, group string) error {
	group = "etc/alternatives/nvidia--" + group
	if err := in.link("/"+target, group); err != nil {
		return err
	}
	return in.link("/"+group, name)
}

// program installs one executable.
func (in *installer) program(p program, object string) error {
	mode := fs.FileMode(0o755)
	if p.setuid {
		mode |= fs.ModeSetuid
	}
	if p.alternative && in.p.binTargets != "" {
		target := path(in.p.binTargets, p.name)
		if err := in.copy(object, target, mode); err != nil {
			return err
		}
		return in.alternative(target, path(in.p.bin, p.name), p.name)
	}
	return in.copy(object, path(in.p.bin, p.name), mode)
}

// extraLinks are the links that ldconfig does not make, and the second libcuda, the first library.
func (in *installer) extraLinks(libcuda string) error {
	dir := cmp.Or(in.p.libLinks, in.p.lib) // where the loader finds the libraries
	if err := in.link("../libnvidia-allocator.so.1", path(dir, "gbm/nvidia-drm_gbm.so")); err != nil {
		return err
	}
	if err := in.link("libGLX_nvidia.so.0", path(dir, "libGLX_indirect.so.0")); err != nil {
		return err
	}
	for name, target := range in.p.links {
		if err := in.link(target, name); err != nil {
			return err
		}
	}
	if in.p.secondCUDA == "" {
		return nil
	}
	file := "libcuda.so." + in.d.Version
	if err := in.copy(libcuda, path(in.p.secondCUDA, file), 0o644); err != nil {
		return err
	}
	return in.link(file, path(in.p.secondCUDA, "libcuda.so.1"))
}

// compat32 compiles and installs the 32-bit libraries.
func (in *installer) compat32(ctx context.Context, b *builder) error {
	dir := in.d.Layout.Lib32Dir()
	if dir == "" {
		return nil
	}
	compat := slices.DeleteFunc(slices.Clone(libraries), func(l library) bool { return !l.compat })
	var units []unit
	for _, l := range compat {
		units = append(units, in.d.unit32(l))
	}
	files, err := b.objects(ctx, units)
	if err != nil {
		return err
	}
	for i, l := range compat {
		at := dir
		if l.vdpau {
			at = path(dir, in.p.vdpau)
		}
		if err := in.copy(files[i], path(at, l.file(in.d.Version)), 0o644); err != nil {
			return err
		}
		if err := in.libraryLinks(l, at, in.p.lib32Links); err != nil {
			return err
		}
	}
	return nil
}

// data installs the configuration files and the firmware.
func (in *installer) data() error {
	for _, f := range dataFiles(in.d.Version, in.p.vulkan) {
		if f.desktop && in.p.xorg == "" {
			continue
		}
		name := f.name
		if rest, ok := strings.CutPrefix(name, "share/"); ok {
			name = path(in.p.share, rest)
		} else if rest, ok := strings.CutPrefix(name, "firmware/"); ok {
			name = path(in.p.firmware, rest)
		}
		if err := writeFile(filepath.Join(in.d.Root, name), f.content, 0o644); err != nil {
			return err
		}
		in.files = append(in.files, name)
	}
	return nil
}

func (in *installer) copy(object, name string, mode fs.FileMode) error {
	in.files = append(in.files, name)
	return copyFile(object, filepath.Join(in.d.Root, name), mode)
}

// link makes or replaces a symbolic link in one step.
func (in *installer) link(target, name string) error {
	in.files = append(in.files, name)
	full := filepath.Join(in.d.Root, name)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		return err
	}
	if err := os.Symlink(target, full+".new"); err != nil {
		return err
	}
	return os.Rename(full+".new", full)
}

func path(elem ...string) string { return filepath.Join(elem...) }

// updateCache makes etc/ld.so.cache of the driver root with this host's ldconfig.
// The links exist already (-X).
func (d *Driver) updateCache(ctx context.Context) error {
	ldconfig, err := exec.LookPath("ldconfig")
	if err != nil {
		ldconfig = "/sbin/ldconfig" // often missing from PATH
	}
	if out, err := exec.CommandContext(ctx, ldconfig, "-X", "-r", d.Root).CombinedOutput(); err != nil {
		return fmt.Errorf("%s -r %s (Debian's package libc-bin): %w: %s", ldconfig, d.Root, err, firstLine(out))
	}
	return nil
}
