package place

import (
	"cmp"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

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
	viewDir, viewAt, viewErr := chooseViewDir(root, g.Request.Reason, &linker.Log)
	view, err := newView(c.Host.StateDir, viewDir, g.Files)
	err = cmp.Or(err, viewErr)
	if err == nil {
		err = CheckProc(root, g.Masked)
	}
	if err != nil {
		return Add(err, linker, view)
	}
	beside := filesBeside(root, img, g.Files, linker.Linker.Cache == hidden, &view.Log)
	view.Log.Join(warnOfForeign(c, root, img, *view.View, beside))
	made, own := filesInBundle(c, g)
	placed, err := place(root, viewAt, *view.View, append(beside, made...))
	var sockets, nodes Changes
	if err == nil {
		sockets, err = mountSockets(c, root, g)
	}
	if err != nil {
		return Add(err, linker, view, own, placed, sockets)
	}
	loader := findableByLoader(c, root, img, viewDir, g.Files)
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

// chooseViewDir returns the first of view.Dirs that the container's volumes leave free, and its path
// in the image. It refuses a container if there is none, or if nothing can be mounted there.
func chooseViewDir(root RootFS, reason string, log *verdict.Log) (dir, at string, err error) {
	over := "" // the volume at the first
	for _, dir := range view.Dirs {
		way, wayErr := root.Way(dir)
		if wayErr != nil {
			return view.Dir, "", verdict.Invalid("%w", wayErr)
		}
		at = way[len(way)-1]
		volume, taken := root.volumeAt(way)
		if !taken {
			if dir != view.Dir {
				log.Note("the container mounts %s over %s: the driver is at %s", request.Quote(over), view.Dir, dir)
			}
			return dir, at, checkViewDir(root, dir, at, reason)
		}
		over = cmp.Or(over, volume.Destination)
	}
	return view.Dir, "", verdict.Invalid("the container mounts a volume at %s, over %s where the NVIDIA driver goes: mount it elsewhere", request.Quote(over), strings.Join(view.Dirs, " or "))
}

// volumeAt returns the first volume over or below the last path of way, or over another one.
func (r RootFS) volumeAt(way []string) (Volume, bool) {
	for _, v := range r.Volumes {
		over := func(name string) bool { return IsBelow(name, v.At) }
		if slices.ContainsFunc(way, over) || IsBelow(v.At, way[len(way)-1]) { // guard: view: no volume there
			return v, true
		}
	}
	return Volume{}, false
}

// checkViewDir refuses a container if its image occupies the view's mount point, which is at there, or
// if that cannot be created.
func checkViewDir(root RootFS, dir, at, reason string) error {
	if criu.HasSeparator(at) { // guard: view: no place with CRIU's separators
		return verdict.Invalid("%s of the image is %s, by a link: CRIU reads that name as another one: remove the link", dir, request.Quote(at))
	}
	if at == "/" { // guard: view: not over the root
		return verdict.Invalid("%s of the image is its root directory, by a link: the NVIDIA driver cannot be mounted there", dir)
	}
	if err := root.CanBeThere(dir); err != nil && !root.Hides(at) {
		return verdict.Precondition("%s: the image has no directory %s, and it cannot be made: %w: make the root file system writable (readOnlyRootFilesystem does no harm), or add that directory to the image", reason, dir, err)
	}
	return nil
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
// container's link into it is replaced.
func place(root RootFS, own string, v View, files []Bind) (ch Changes, err error) {
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
				ch.Links = append(ch.Links, Link{f.Destination, path.Join(v.Dir, f.Name), f.Name})
				continue
			}
			if !errors.Is(err, fs.ErrExist) {
				ch.Note("no link is made in the image, files are mounted: %v", err)
				linkable = false
			}
		}
		ch.mountFile(f, v.Root)
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
