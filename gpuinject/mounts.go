package gpuinject

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/layout"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/rootfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/sockets"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/criu"
)

// planFiles decides how the driver's files get into the container: the view, links and mounts
// outside it, the loader's files, and the edits of config.json.
func planFiles(c Container, h host.Host, root rootfs.FS, g grant, p *Plan) error {
	if err := root.CheckNodes(p.nodes); err != nil {
		return fail(Invalid, "%w", err)
	}
	img := inspect(h, root, g, p)
	noteGraphics(root, img, g, p)
	if img.Compat.Use {
		p.files = layout.WithoutCompat(p.files)
	}
	planView(c, p)
	if err := checkReplaced(p); err != nil {
		return err
	}
	viewAt, err := checkViewDir(root, p)
	if err != nil {
		return err
	}
	if err := checkProc(root, p); err != nil {
		return err
	}
	files := filesBeside(root, img, p)
	if data := profile(g, p); data != nil {
		p.bundleFiles = append(p.bundleFiles, image.File{Path: profileName, Data: data})
		files = append(files, layout.Bind{Source: bundlePath(c, profileName), Destination: profileDest})
	}
	if p.byPath = byPathLinks(p.nodes); len(p.byPath) > 0 {
		// This mount comes after the mount of /dev. runc creates the nodes of linux.devices after
		// all mounts, so the links lead to existing nodes.
		files = append(files, layout.Bind{Source: bundlePath(c, byPathName), Destination: byPathDest})
	}
	if err := place(root, viewAt, files, p); err != nil {
		return err
	}
	if err := mountSockets(c, root, g, p); err != nil {
		return err
	}
	planLinker(c, root, img, p)
	return addNodes(c, p)
}

// NoteNoCLibrary begins the note about an image without a C library.
const NoteNoCLibrary = "the image has no C library that the driver could use"

// inspect records the C library and the forward compatibility package of the image. The loader
// finds that package only through its cache.
func inspect(h host.Host, root rootfs.FS, g grant, p *Plan) image.Image {
	img := root.Inspect(h.CompatDriver)
	p.Linker = PlanLinker{LibC: img.LibC, Directory: img.LibDir, Cache: "unchanged"}
	if img.LibC == "" {
		p.note(NoteNoCLibrary+": its files are at %s all the same", ViewDir)
	}
	compat := &img.Compat
	at, _ := root.Place(img.LoaderPath())
	m, hidden := root.Covering(at)
	if img.LibC != "" && hidden {
		p.Linker.Cache = "hidden"
		p.note("the container mounts %s over %s: the driver's libraries are in %s as well", request.Quote(m.Destination), img.LoaderPath(), img.LibDir)
		for _, level := range []string{"x86-64-v2", "x86-64-v3", "x86-64-v4"} {
			if name := path.Join(img.LibDir, "glibc-hwcaps", level, "libcuda.so.1"); root.IsFile(name) {
				p.note("the loader may prefer %s of the image to the driver's", name)
			}
		}
		compat.Use, compat.Reason = false, "the container mounts "+request.Quote(m.Destination)+" over the loader's cache"
	}
	if compat.Dir == "" {
		return img
	}
	if !g.request.Has(config.Compute) {
		compat.Use, compat.Reason = false, "the container does not have the capability compute"
	}
	decision := "not used"
	if compat.Use {
		decision, p.Linker.Compat = "used", compat.Dir
	}
	p.note("forward compatibility: %s", compat.Reason)
	p.decide("forward compatibility", decision, "%s: %s", compat.Dir, compat.Reason)
	return img
}

// checkViewDir refuses a container if its own mounts or its image occupy the view's mount point, or
// if that cannot be created. It returns the path of the mount point in the image.
func checkViewDir(root rootfs.FS, p *Plan) (string, error) {
	way, err := root.Way(ViewDir)
	if err != nil {
		return "", fail(Invalid, "%w", err)
	}
	at := way[len(way)-1]
	if criu.HasSeparator(at) {
		return "", fail(Invalid, "%s of the image is %s, by a link: CRIU reads that name as another one: remove the link", ViewDir, request.Quote(at))
	}
	for _, v := range root.Volumes {
		over := func(name string) bool { return rootfs.IsBelow(name, v.At) }
		if slices.ContainsFunc(way, over) || rootfs.IsBelow(v.At, at) {
			return "", fail(Invalid, "the container mounts a volume at %s, over %s where the NVIDIA driver goes: mount it elsewhere", request.Quote(v.Destination), ViewDir)
		}
	}
	if at == "/" {
		return "", fail(Invalid, "%s of the image is its root directory, by a link: the NVIDIA driver cannot be mounted there", ViewDir)
	}
	if err := root.CanBeThere(ViewDir); err != nil && !root.Hides(at) {
		return "", fail(Precondition, "%s: the image has no directory %s, and it cannot be made: %w: make the root file system writable (readOnlyRootFilesystem does no harm), or add that directory to the image", p.Reason, ViewDir, err)
	}
	return at, nil
}

// filesBeside lists the files that the container also finds outside the view.
func filesBeside(root rootfs.FS, img image.Image, p *Plan) []layout.Bind {
	list := layout.Beside(p.files, img, p.viewRoot, p.Linker.Cache == "hidden")
	for _, d := range p.files.Data {
		switch dest := dataDest(d, root, img, p); {
		case dest == "":
		case d.Direct:
			list = append(list, layout.Bind{Source: d.Path, Destination: dest})
		default:
			list = append(list, layout.Bind{Source: path.Join(p.viewRoot, layout.DataName(d)), Destination: dest})
		}
	}
	return list
}

// place decides how each file gets to its destination: by a link if the file is in the view and the
// image has nothing there, otherwise by a bind mount. A link is cheaper: runc needs many system
// calls to create the mount point of a bind. own is the path of the view in the image; an earlier
// container's link into it is replaced.
func place(root rootfs.FS, own string, files []layout.Bind, p *Plan) error {
	linkable := true
	for _, f := range files {
		at, free, err := freePlace(root, f.Destination, p)
		if err != nil {
			return err
		}
		if !free {
			continue
		}
		name, inView := strings.CutPrefix(f.Source, p.viewRoot)
		if inView && linkable && !root.Hides(at) {
			err := root.CanMakeLink(f.Destination, own)
			if err == nil {
				p.Links = append(p.Links, PlanLink{Path: f.Destination, Target: ViewDir + name})
				continue
			}
			if !errors.Is(err, fs.ErrExist) {
				p.note("no link is made in the image, files are mounted: %v", err)
				linkable = false
			}
		}
		p.mountFile(f.Source, f.Destination)
	}
	return nil
}

// readMounts reads the container's own mounts over its image. It skips mounts that an earlier
// injection into the same configuration added, and mounts that are removed.
func readMounts(c Container, img *image.Root, p *Plan) (rootfs.FS, error) {
	root, err := rootfs.Read(img, c.Bundle.Dir, c.Bundle.Spec.Mounts, func(m specs.Mount) bool {
		return isOwnMount(c, m) || p.edits.RemoveMount != nil && p.edits.RemoveMount(m)
	})
	if err != nil {
		return root, fail(Invalid, "%w", err)
	}
	return root, nil
}

// isOwnMount reports whether an earlier injection into the same configuration added a mount.
func isOwnMount(c Container, m specs.Mount) bool {
	return strings.HasPrefix(m.Source, path.Join(c.Config.Host.StateDir, "view")+"/") ||
		path.Dir(m.Source) == c.Bundle.Dir && slices.Contains(bundleFileNames, path.Base(m.Source))
}

// freePlace returns where in the image a link dest would be created, and whether something can be
// put there. Nothing may be created in one of the container's own volumes or in a directory of the
// host; the loader finds the driver without it.
func freePlace(r rootfs.FS, dest string, p *Plan) (at string, free bool, err error) {
	way, err := r.Way(dest)
	if err != nil {
		return "", false, fail(Invalid, "%w", err)
	}
	at, _ = r.Place(dest)
	if m, covered := r.Covering(way...); covered {
		p.note("not mounted at %s: the container mounts %s there", dest, request.Quote(m.Destination))
		return at, false, nil
	}
	if criu.HasSeparator(at) {
		return "", false, fail(Invalid, "%s of the image is %s, by a link: CRIU reads that name as another one: remove the link", request.Quote(dest), request.Quote(at))
	}
	if r.Hides(at) {
		return at, true, nil
	}
	if err := r.CheckMountPoint(dest); err != nil {
		p.note("%v", err)
		return at, false, nil
	}
	return at, true, nil
}

// mountSockets adds the mounts of the sockets that the operator allows, for the daemons that run.
// Each path in the image gets one mount, even if several names lead to it, and none if the
// container has its own mount there. A socket that is not as expected is not mounted, and the plan
// says so.
func mountSockets(c Container, root rootfs.FS, g grant, p *Plan) error {
	var taken []string
	for _, d := range sockets.Daemons {
		if !slices.Contains(c.Config.Container.Sockets, d.Name) || !g.request.Has(d.Capability) {
			continue
		}
		mps := c.Input.Env[sockets.EnvMPS]
		source, options, err := d.Mount(c.Config.Host, mps, len(g.set.MIG) > 0)
		if errors.Is(err, fs.ErrNotExist) {
			err = errors.New("it does not run on this host")
		}
		if err != nil {
			p.note("no socket of %s: %v", d.Name, err)
			p.decide("socket of "+d.Name, "not given", "%v", err)
			continue
		}
		p.Sockets = append(p.Sockets, d.Name)
		p.decide("socket of "+d.Name, "given", "container.sockets has it")
		for _, dir := range d.Destinations(mps) {
			at, free, err := freePlace(root, dir, p)
			if err != nil {
				return err
			}
			if free && !slices.Contains(taken, at) {
				taken = append(taken, at)
				p.Mounts = append(p.Mounts, PlanMount{Source: source, Destination: dir, Options: options})
			}
		}
	}
	return nil
}
