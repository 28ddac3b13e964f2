package images

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// loaderPackages has the loaders and the libraries that they are linked to, except those that no
// program here needs.
var loaderPackages = []string{
	"libegl1", "libglvnd0", "libvulkan1", "ocl-icd-libopencl1",
	"libvdpau1", "libx11-6", "libxext6", "libxcb1", "libxau6", "libxdmcp6", "libbsd0", "libmd0",
	"libgbm1", "libdrm2", "libwayland-server0", "libffi8", "libexpat1",
}

// biarchPackage has the 32-bit C library as a package of the 64-bit architecture.
const biarchPackage = "libc6-i386"

// loaders is a Debian of the loaders alone.
func loaders(b *builder) {
	b.glibcBase("usr/lib/" + b.arch.tuple)
	packages := slices.Clone(loaderPackages)
	confs := b.debianConfs()
	if runtime.GOARCH == "amd64" {
		packages = append(packages, biarchPackage)
		confs["zz_i386-biarch-compat"] = "/lib32\n/usr/lib32"
		b.add(Dir("usr/lib32", 0o755), Symlink("lib32", "usr/lib32"))
	}
	root, err := UnpackPackages(b.work, packages)
	b.check(err)
	libs, err := packaged(root)
	b.check(err)
	b.add(libs...)
	b.programs(glibc, "loaders")
	if runtime.GOARCH == "amd64" {
		b.program32("dlopen32", filepath.Join(root, "lib32/libc.so.6"))
	}
	b.withCache(confs)
}

// packaged are the libraries and configuration files of unpacked packages, for an
// image in which /lib is a link.
func packaged(root string) ([]File, error) {
	var files []File
	err := filepath.WalkDir(root, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		at := strings.TrimPrefix(name, root+"/")
		if strings.HasPrefix(at, "lib") {
			at = "usr/" + at
		}
		switch {
		case !strings.HasPrefix(at, "usr/lib") && !strings.HasPrefix(at, "etc/"), strings.HasPrefix(at, "etc/ld.so.conf.d/"):
			return nil
		case e.Type() == fs.ModeSymlink:
			target, err := os.Readlink(name)
			if err != nil {
				return err
			}
			files = append(files, Symlink(at, target))
		default:
			mode := uint32(0o644)
			if strings.HasPrefix(filepath.Base(at), "ld-") {
				mode = 0o755
			}
			files = append(files, FromHost(at, mode, name))
		}
		return nil
	})
	return files, err
}

// program32 compiles programs/<name>.c for i386 with nothing but a C library.
func (b *builder) program32(name, libc string) {
	out := filepath.Join(b.work, name)
	b.check(tool("gcc", "gcc",
		"-m32", "-O1", "-s", "-Wall", "-nostdlib", "-fno-pie", "-no-pie", "-fno-stack-protector", "-ffreestanding",
		"-Wl,--dynamic-linker=/lib/ld-linux.so.2", "-Wl,--allow-shlib-undefined", "-Wl,--hash-style=both", "-o", out, b.source(name), libc))
	b.add(FromHost("test/"+name, 0o755, out))
}
