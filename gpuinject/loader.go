package gpuinject

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/layout"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/rootfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/criu"
)

// planLinker decides how the image's dynamic loader finds the driver: by files written in the
// image. If the image is not writable, a generated cache is mounted over its own. ldconfig cannot
// run in such an image, so it does no harm that the mounted file cannot be replaced.
func planLinker(c Container, root rootfs.FS, img image.Image, p *Plan) {
	entries, dirs := layout.LoaderEntries(p.files)
	loaderFiles, notes := root.LoaderFiles(img, dirs, entries)
	for _, n := range notes {
		p.note("%s", n)
	}
	if at := root.CacheMountPoint(); !criu.HasSeparator(at) {
		p.cacheAt = at
	}
	for _, f := range loaderFiles {
		at, _ := root.Place(f.Path)
		m, covered := root.Covering(at)
		err := root.CanWriteFile(f.Path)
		switch {
		case covered:
			p.note("%s is not written: the container mounts %s there", f.Path, request.Quote(m.Destination))
			continue
		case root.Hides(at):
			p.mountCache(c, f, errors.New("the container has a file system of its own there"))
			continue
		case errors.Is(err, unix.EROFS) || errors.Is(err, unix.EPERM):
			p.mountCache(c, f, err)
			continue
		case err != nil: // something in the image is in the way, also of a mount
			p.note("%s of the image is not written: %v", f.Path, err)
			continue
		}
		p.linkerFiles = append(p.linkerFiles, f)
		if f.Path == image.CachePath {
			p.Linker.Cache = "written"
		}
	}
}

// mountCache mounts the loader's cache over the image's own, which cannot be written because of
// err.
func (p *Plan) mountCache(c Container, f image.File, err error) {
	p.note("%s is not written in the image: %v", f.Path, err)
	if f.Path != image.CachePath || p.cacheAt == "" {
		return
	}
	p.bundleFiles = append(p.bundleFiles, image.File{Path: cacheName, Data: f.Data})
	p.mountFile(bundlePath(c, cacheName), p.cacheAt)
	p.Linker.Cache = "mounted"
}
