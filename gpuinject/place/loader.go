package place

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/criu"
)

// findableByLoader decides how the image's dynamic loader finds the driver, whose view is at viewDir:
// by files written in the image. If the image is not writable, a generated cache is mounted over its own. ldconfig cannot
// run in such an image, so it does no harm that the mounted file cannot be replaced.
func findableByLoader(c Container, root RootFS, img image.Image, viewDir string, files driver.Files) (ch Changes) {
	entries, dirs := loaderEntries(viewDir, files)
	loaderFiles, notes := root.LoaderFiles(img, dirs, entries)
	for _, n := range notes {
		ch.Note("%s", n)
	}
	if at := root.CacheMountPoint(); !criu.HasSeparator(at) {
		ch.CacheAt = at
	}
	for _, f := range loaderFiles {
		at, _ := root.Place(f.Path)
		m, covered := root.Covering(at) // guard: view: no cache written into volumes
		err := root.CanWriteFile(f.Path)
		switch {
		case covered:
			ch.Note("%s is not written: the container mounts %s there", f.Path, request.Quote(m.Destination))
			continue
		case root.Hides(at):
			ch.mountCache(c, f, ch.CacheAt, errors.New("the container has a file system of its own there"))
			continue
		case errors.Is(err, unix.EROFS) || errors.Is(err, unix.EPERM):
			ch.mountCache(c, f, ch.CacheAt, err)
			continue
		case err != nil: // something in the image is in the way, also of a mount
			ch.Note("%s of the image is not written: %v", f.Path, err)
			continue
		}
		ch.LinkerFiles = append(ch.LinkerFiles, f)
		if f.Path == image.CachePath {
			ch.Linker.Cache = "written"
		}
	}
	return ch
}

// mountCache mounts the loader's cache at a path over the image's own, which cannot be written
// because of err.
func (ch *Changes) mountCache(c Container, f image.File, at string, err error) {
	ch.Note("%s is not written in the image: %v", f.Path, err)
	if f.Path != image.CachePath || at == "" {
		return
	}
	ch.BundleFiles = append(ch.BundleFiles, image.File{Path: cacheName, Data: f.Data})
	ch.mountFile(Bind{Source: bundlePath(c, cacheName), Destination: at, Made: true}, "")
	ch.Linker.Cache = "mounted"
}
