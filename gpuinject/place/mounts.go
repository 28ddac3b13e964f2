package place

import (
	"errors"
	"io/fs"
	"path"
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/sockets"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/criu"
)

// Files decides how the driver's files and the nodes get into the container: the view, links and
// mounts outside it, the loader's files, and the edits of config.json. compatDriver is the version
// that the image's forward compatibility package is compared with.
func Files(c Container, root RootFS, g Given, compatDriver string) (Changes, error) {
	if err := root.CheckNodes(g.Nodes); err != nil {
		return Changes{}, verdict.Invalid("%w", err)
	}
	img, linker := inspect(compatDriver, root, g.Request.Has(config.Compute))
	linker.Join(noteGraphics(root, img, g.Files, g.Request.Has(config.Display)))
	if img.Compat.Use {
		g.Files = withoutCompat(g.Files)
	}
	view, err := newView(c.Host.StateDir, g.Files)
	viewAt := ""
	if err == nil {
		viewAt, err = checkViewDir(root, g.Request.Reason)
	}
	if err == nil {
		err = CheckProc(root, g.Masked)
	}
	if err != nil {
		return Add(err, linker, view)
	}
	beside := filesBeside(root, img, g.Files, linker.Linker.Cache == hidden, &view.Log)
	view.Log.Join(warnOfForeign(c, root, img, g.Files, beside))
	made, own := filesInBundle(c, g)
	placed, err := place(root, viewAt, view.View.Root, append(beside, made...))
	var sockets, nodes Changes
	if err == nil {
		sockets, err = mountSockets(c, root, g)
	}
	if err != nil {
		return Add(err, linker, view, own, placed, sockets)
	}
	loader := findableByLoader(c, root, img, g.Files)
	nodes, err = addNodes(c, g.Nodes)
	return Add(err, linker, view, own, placed, sockets, loader, nodes)
}

// NoteNoCLibrary begins the note about an image without a C library.
const NoteNoCLibrary = "the image has no C library that the driver could use"

// hidden is the state of a loader's cache under one of the container's own mounts.
const hidden = "hidden"

// inspect finds the C library and the forward compatibility package of the image, which is used for
// containers with the capability compute. The loader finds that package only through its cache.
func inspect(compatDriver string, root RootFS, compute bool) (img image.Image, ch Changes) {
	img = root.Inspect(compatDriver)
	ch.Linker = Linker{LibC: img.LibC, Directory: img.LibDir, Cache: "unchanged"}
	if img.LibC == "" {
		ch.Note(NoteNoCLibrary+": its files are at %s all the same", view.Dir)
	}
	compat := &img.Compat
	at, _ := root.Place(img.LoaderPath())
	m, covered := root.Covering(at)
	if img.LibC != "" && covered {
		ch.Linker.Cache = hidden
		ch.Note("the container mounts %s over %s: the driver's libraries are in %s as well", request.Quote(m.Destination), img.LoaderPath(), img.LibDir)
		for _, level := range hwcaps {
			if name := path.Join(img.LibDir, level, "libcuda.so.1"); root.IsFile(name) {
				ch.Note("the loader may prefer %s of the image to the driver's", name)
			}
		}
		compat.Use, compat.Reason = false, "the container mounts "+request.Quote(m.Destination)+" over the loader's cache"
	}
	if compat.Dir == "" {
		return img, ch
	}
	if !compute {
		compat.Use, compat.Reason = false, "the container does not have the capability compute"
	}
	decision := "not used"
	if compat.Use {
		decision, ch.Linker.Compat = "used", compat.Dir
	}
	ch.Note("forward compatibility: %s", compat.Reason)
	ch.Decide("forward compatibility", decision, "%s: %s", compat.Dir, compat.Reason)
	return img, ch
}

// checkViewDir refuses a container if its own mounts or its image occupy the view's mount point, or
// if that cannot be created. It returns the path of the mount point in the image.
func checkViewDir(root RootFS, reason string) (string, error) {
	way, err := root.Way(view.Dir)
	if err != nil {
		return "", verdict.Invalid("%w", err)
	}
	at := way[len(way)-1]
	if criu.HasSeparator(at) { // guard: view: no place with CRIU's separators
		return "", verdict.Invalid("%s of the image is %s, by a link: CRIU reads that name as another one: remove the link", view.Dir, request.Quote(at))
	}
	for _, v := range root.Volumes {
		over := func(name string) bool { return IsBelow(name, v.At) }
		if slices.ContainsFunc(way, over) || IsBelow(v.At, at) { // guard: view: no volume there
			return "", verdict.Invalid("the container mounts a volume at %s, over %s where the NVIDIA driver goes: mount it elsewhere", request.Quote(v.Destination), view.Dir)
		}
	}
	if at == "/" { // guard: view: not over the root
		return "", verdict.Invalid("%s of the image is its root directory, by a link: the NVIDIA driver cannot be mounted there", view.Dir)
	}
	if err := root.CanBeThere(view.Dir); err != nil && !root.Hides(at) {
		return "", verdict.Precondition("%s: the image has no directory %s, and it cannot be made: %w: make the root file system writable (readOnlyRootFilesystem does no harm), or add that directory to the image", reason, view.Dir, err)
	}
	return at, nil
}

// filesBeside lists the files that the container also finds outside the view: with every, all
// libraries.
func filesBeside(root RootFS, img image.Image, files driver.Files, every bool, log *verdict.Log) []Bind {
	list := Beside(files, img, every)
	for _, d := range files.Data {
		switch dest := dataDest(d, root, img, log); {
		case dest == "":
		case d.Direct:
			list = append(list, Bind{Source: d.Path, Destination: dest})
		default:
			list = append(list, Bind{Name: dataName(d), Destination: dest})
		}
	}
	return list
}

// place decides how each file gets to its destination: by a link if the file is in the view and the
// image has nothing there, otherwise by a bind mount. A link is cheaper: runc needs many system
// calls to create the mount point of a bind. own is the path of the view in the image; an earlier
// container's link into it is replaced. viewRoot is its path on the host.
func place(root RootFS, own, viewRoot string, files []Bind) (ch Changes, err error) {
	linkable := true
	for _, f := range files {
		at, free, err := freePlace(root, f.Destination, &ch.Log)
		if err != nil {
			return ch, err
		}
		if !free {
			continue
		}
		if f.Name != "" && linkable && !root.Hides(at) {
			err := root.CanMakeLink(f.Destination, own)
			if err == nil {
				ch.Links = append(ch.Links, Link{f.Destination, path.Join(view.Dir, f.Name), f.Name})
				continue
			}
			if !errors.Is(err, fs.ErrExist) {
				ch.Note("no link is made in the image, files are mounted: %v", err)
				linkable = false
			}
		}
		ch.mountFile(f, viewRoot)
	}
	return ch, nil
}

// freePlace returns where in the image a link dest would be created, and whether something can be
// put there. Nothing may be created in one of the container's own volumes or in a directory of the
// host; the loader finds the driver without it.
func freePlace(r RootFS, dest string, log *verdict.Log) (at string, free bool, err error) {
	at, _ = r.Place(dest) // first: it opens the directory, and the rest takes one system call
	way, err := r.Way(dest)
	if err != nil {
		return "", false, verdict.Invalid("%w", err)
	}
	if m, covered := r.Covering(way...); covered { // guard: view: nothing in volumes
		log.Note("not mounted at %s: the container mounts %s there", dest, request.Quote(m.Destination))
		return at, false, nil
	}
	if criu.HasSeparator(at) { // guard: view: no files with CRIU's separators
		return "", false, verdict.Invalid("%s of the image is %s, by a link: CRIU reads that name as another one: remove the link", request.Quote(dest), request.Quote(at))
	}
	if r.Hides(at) {
		return at, true, nil
	}
	if err := r.CheckMountPoint(dest); err != nil {
		log.Note("%v", err)
		return at, false, nil
	}
	return at, true, nil
}

// mountSockets adds the mounts of the sockets that the operator allows, for the daemons that run.
// Each path in the image gets one mount, even if several names lead to it, and none if the
// container has its own mount there. A socket that is not as expected is not mounted, and the plan
// says so.
func mountSockets(c Container, root RootFS, g Given) (ch Changes, err error) {
	var taken []string
	for _, d := range sockets.Daemons {
		// guard: sockets: configured ones
		if !slices.Contains(c.Settings.Sockets, d.Name) || !g.Request.Has(d.Capability) {
			continue
		}
		mps := c.Input.Env[sockets.EnvMPS]
		source, options, err := d.Mount(c.Host, mps, len(g.Set.MIG) > 0)
		if errors.Is(err, fs.ErrNotExist) {
			err = errors.New("it does not run on this host")
		}
		if err != nil {
			ch.Note("no socket of %s: %v", d.Name, err)
			ch.Decide("socket of "+d.Name, "not given", "%v", err)
			continue
		}
		ch.Sockets = append(ch.Sockets, d.Name)
		ch.Decide("socket of "+d.Name, "given", "container.sockets has it")
		for _, dir := range d.Destinations(mps) {
			at, free, err := freePlace(root, dir, &ch.Log)
			if err != nil {
				return ch, err
			}
			if free && !slices.Contains(taken, at) {
				taken = append(taken, at)
				ch.Mounts = append(ch.Mounts, Mount{Source: source, Destination: dir, Options: options})
			}
		}
	}
	return ch, nil
}
