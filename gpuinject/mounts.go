package gpuinject

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/sockets"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
)

// fileOptions are those of a single driver file. Libraries and programs are mapped executable, so
// never noexec.
var fileOptions = []string{"bind", "ro", "nosuid", "nodev", "rprivate"}

// nodeOptions are those of a device node that is bound.
var nodeOptions = []string{"bind", "nosuid", "noexec", "rprivate"}

// viewOptions are those of the view, which is a tree of mounts.
var viewOptions = []string{"rbind", "ro", "nosuid", "nodev", "rprivate"}

// directNames are in the image's own library directory as well: programs look for these files by
// path, or there is no cache to find them by.
var directNames = []string{"libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1"}

// directPrograms are in /usr/bin as well: scripts call them whatever PATH says.
var directPrograms = []string{"nvidia-smi"}

// placement is a file that the container finds at a place of its own besides the view.
type placement struct {
	// source is the file on the host, for a bind. target is its name in the container's view, for a
	// link, or "" if it is not in the view. If a library has a link without a version, target is
	// that: it stays good after an upgrade of the driver.
	source, target string
	dest           string
}

// planFiles decides how the driver's files get into the container: the view, links and mounts
// beside it, the loader's files, and the edits of config.json. all are the driver's files, mine
// those that the container gets.
func planFiles(c Container, h host.Host, root *image.Root, g grant, nodes []device.Node, all, mine driver.Files, p *Plan) error {
	img, leaveOut := inspect(h, root, g, p)
	st, err := state.Open(c.Config.Host.StateDir)
	if err != nil {
		return fail(Precondition, "%w", err)
	}
	p.view = viewSpec(mine, leaveOut)
	p.listFiles(p.view, mine)
	vols, err := findVolumes(c, root, all)
	if err != nil {
		return err
	}
	viewAt, err := checkViewDir(root, vols)
	if err != nil {
		return err
	}
	viewRoot := view.Path(st, p.view)
	p.edits.Mounts = []specs.Mount{{Source: viewRoot, Destination: ViewDir, Type: "bind", Options: viewOptions}}
	places, err := placements(viewRoot, root, img, mine, leaveOut, p)
	if err != nil {
		return err
	}
	if data := profile(g, p); data != nil {
		p.bundleFiles = append(p.bundleFiles, bundleFile{profileName, data})
		places = append(places, placement{source: bundlePath(c, profileName), dest: profileDest})
	}
	if p.byPath = byPathLinks(nodes); len(p.byPath) > 0 {
		// This mount comes after /dev, a mount itself, and runc makes the nodes of linux.devices
		// after all mounts: links in it lead to them.
		places = append(places, placement{source: bundlePath(c, byPathName), dest: byPathDest})
	}
	if err := place(root, vols, viewAt, places, p); err != nil {
		return err
	}
	if err := mountSockets(c, root, vols, g, p); err != nil {
		return err
	}
	planLinker(c, root, img, mine, leaveOut, p)
	return planEdits(c, nodes, all, g, p)
}

// inspect records the C library and the forward compatibility package of the image. leaveOut are
// the SONAMEs that the latter supplies, if it is used.
func inspect(h host.Host, root *image.Root, g grant, p *Plan) (img image.Image, leaveOut []string) {
	img = root.Inspect(h.CompatDriver)
	p.Linker = PlanLinker{LibC: string(img.LibC), Directory: img.LibDir, Cache: "unchanged"}
	compute := g.request.Has(request.Compute)
	switch compat := img.Compat; {
	case compat.Dir == "":
	case !compute:
		p.decide("forward compatibility", "not used", "%s: the container does not have the capability compute", compat.Dir)
	case compat.Use:
		p.note("forward compatibility: %s", compat.Reason)
		p.decide("forward compatibility", "used", "%s: %s", compat.Dir, compat.Reason)
		p.Linker.Compat = compat.Dir
		for _, e := range compat.Entries {
			leaveOut = append(leaveOut, e.Name)
		}
	default:
		p.note("forward compatibility: %s", compat.Reason)
		p.decide("forward compatibility", "not used", "%s: %s", compat.Dir, compat.Reason)
	}
	if !compute {
		img.Compat.Use = false
	}
	if img.LibC == "" {
		p.note("the image has no C library that the driver could use: its files are at %s all the same", ViewDir)
	}
	return img, leaveOut
}

// checkViewDir refuses a container whose own mounts, or whose image, take the view's place. It
// returns that place in the image.
func checkViewDir(root *image.Root, vols volumes) (string, error) {
	at, err := root.Target(ViewDir)
	if err != nil {
		return "", fail(Invalid, "%s of the image: %w", ViewDir, err)
	}
	m, ok := vols.covering(at)
	if !ok {
		m, ok = vols.below(at)
	}
	if ok {
		return "", fail(Invalid, "the container mounts %s at %s, over %s where the NVIDIA driver goes: remove that mount", request.Quote(m.Source), request.Quote(m.Destination), ViewDir)
	}
	if at == "/" {
		return "", fail(Invalid, "%s of the image is its root directory, by a link: the NVIDIA driver cannot be mounted there", ViewDir)
	}
	return at, nil
}

// placements lists the files that the container finds outside the view as well: a handful of
// libraries and programs, files that consuming libraries open at fixed paths, and what is in no
// view.
func placements(viewRoot string, root *image.Root, img image.Image, files driver.Files, leaveOut []string, p *Plan) (list []placement, err error) {
	inView := func(name, dest string) placement {
		return placement{path.Join(viewRoot, name), path.Join(ViewDir, name), dest}
	}
	for _, l := range files.Libraries {
		put := func(name, dest string) {
			if l.Dir != "" { // in no view, but at its own path
				list = append(list, placement{source: l.Path, dest: dest})
			} else {
				list = append(list, inView(libraryName(l, name), dest))
			}
		}
		if l.Dir != "" {
			put(l.Name, path.Join(l.Dir, l.Name))
		}
		dir := img.LibDir
		if l.Bits == 32 {
			dir = img.LibDir32
		}
		if dir == "" || isSupplied(l, leaveOut) {
			continue
		}
		if name, ok := pluginName(l); ok {
			put(name, path.Join(pluginDir(dir), l.Subdir, name))
			continue
		}
		for _, name := range directNames {
			if l.Bits == 64 && (name == l.SOName || slices.Contains(l.Links, name)) {
				put(name, path.Join(dir, name))
			}
		}
	}
	for _, b := range files.Binaries {
		if slices.Contains(directPrograms, b.Name) {
			list = append(list, inView(path.Join(viewBin, b.Name), path.Join("/usr/bin", b.Name)))
		}
	}
	for _, d := range files.Data {
		dest, err := dataDest(d, root, img, p)
		switch {
		case err != nil:
			return nil, err
		case dest == "":
		case d.Direct:
			list = append(list, placement{source: d.Path, dest: dest})
		default:
			list = append(list, inView(dataName(d), dest))
		}
	}
	return list, nil
}

// place decides how each file gets to its place: by a link if it is in the view and the image has
// nothing there, else by a bind. runc needs some hundred system calls to make the mount point of a
// bind. own is where the view is in the image; a link of an earlier container that leads into it is
// replaced.
func place(root *image.Root, vols volumes, own string, places []placement, p *Plan) error {
	linkable := !root.IsHost()
	for _, f := range places {
		at, err := root.Target(f.dest)
		if err != nil {
			return fail(Invalid, "%s of the image: %w", f.dest, err)
		}
		// Nothing may be made in a volume of the container's own, and the loader finds the driver
		// without.
		if m, ok := vols.covering(at); ok {
			p.note("not mounted at %s: the container mounts %s there", f.dest, request.Quote(m.Destination))
			continue
		}
		if f.target != "" && linkable && !vols.hides(at) {
			err := root.CanMakeLink(f.dest, own)
			if err == nil {
				p.links = append(p.links, f)
				p.Links = append(p.Links, PlanLink{Path: f.dest, Target: f.target})
				continue
			}
			if !errors.Is(err, fs.ErrExist) {
				p.note("no link is made in the image, files are mounted: %v", err)
				linkable = false
			}
		}
		p.edits.Mounts = append(p.edits.Mounts, fileMount(f.source, f.dest))
	}
	return nil
}

func fileMount(source, dest string) specs.Mount {
	return specs.Mount{Source: source, Destination: dest, Type: "bind", Options: fileOptions}
}

// mountSockets adds the mounts of the sockets that the operator lets containers have, of the
// daemons that run: each place once, by whatever name, and none if the container has a mount there
// itself. A socket that is not as it should be is not given, and the plan says so.
func mountSockets(c Container, root *image.Root, vols volumes, g grant, p *Plan) error {
	var taken []string
	for _, d := range sockets.Daemons {
		if !slices.Contains(c.Config.Container.Sockets, d.Name) || !g.request.Has(d.Capability) {
			continue
		}
		mounts, err := d.Mounts(c.Config.Host, c.Said.Env[sockets.EnvMPS] != "", len(g.set.MIG) > 0)
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
		for _, m := range mounts {
			at, err := root.Target(m.Destination)
			if err != nil {
				return fail(Invalid, "%s of the image: %w", m.Destination, err)
			}
			if slices.Contains(taken, at) {
				continue
			}
			taken = append(taken, at)
			if v, ok := vols.covering(at); ok {
				p.note("not mounted at %s: the container mounts %s there", m.Destination, request.Quote(v.Destination))
				continue
			}
			p.edits.Mounts = append(p.edits.Mounts, m)
		}
	}
	return nil
}

// planLinker decides how the image's dynamic loader finds the driver: by files written in the
// image. If the image cannot be written, a generated cache is mounted over its own: ldconfig cannot
// run there, so that a mounted file that cannot be replaced does no harm.
func planLinker(c Container, root *image.Root, img image.Image, files driver.Files, leaveOut []string, p *Plan) {
	entries, dirs := loaderEntries(files, leaveOut)
	loaderFiles, notes := root.LoaderFiles(img, dirs, entries)
	for _, n := range notes {
		p.note("%s", n)
	}
	for _, f := range loaderFiles {
		err := root.CanWriteFile(f.Path)
		switch {
		case errors.Is(err, unix.EROFS):
			p.mountCache(c, f, err)
			continue
		case err != nil: // something in the image is in the way, of a mount too
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
	if f.Path != image.CachePath {
		return
	}
	p.bundleFiles = append(p.bundleFiles, bundleFile{cacheName, f.Data})
	p.edits.Mounts = append(p.edits.Mounts, fileMount(bundlePath(c, cacheName), image.CachePath))
	p.Linker.Cache = "mounted"
}

// planEdits completes the edits of config.json.
func planEdits(c Container, nodes []device.Node, all driver.Files, g grant, p *Plan) error {
	addNodes(c, nodes, &p.edits, p)
	planHooks(c, p)
	p.edits.RemoveHook = isNVIDIAHook
	removeList := g.request.Source == request.FromMounts && inUserNamespace(c.Bundle.Spec.Linux)
	p.edits.RemoveMount = func(m specs.Mount) bool {
		return isCDIMount(c, all, m) || removeList && isMappedListMount(m)
	}
	if c.Said.EditedByCDI {
		p.edits.RemoveRule = isCDIRule(nodes)
		for _, m := range c.Bundle.Spec.Mounts {
			if isCDIMount(c, all, m) && isSocketMount(m) {
				p.note("not mounted: %s, which CDI gives every container; see container.sockets", m.Destination)
			}
		}
	}
	p.setMounts(p.edits.Mounts)
	p.nodes, p.files = nodes, all.For(g.request.Capabilities)
	if err := c.Bundle.CheckDevices(p.edits.Devices); err != nil {
		return fail(Invalid, "%w", err)
	}
	return nil
}

// isMappedListMount reports whether a mount is one of the device list that runc would have to map
// to the ids of a user namespace. It cannot: /dev/null is on devtmpfs, which has no mapped mounts,
// and the container would not start (containerd maps every mount of such a pod). The list has been
// read, and nothing in a container reads it.
func isMappedListMount(m specs.Mount) bool {
	return len(m.UIDMappings)+len(m.GIDMappings) > 0 && path.Clean(m.Source) == "/dev/null" &&
		strings.HasPrefix(path.Clean("/"+m.Destination), request.DeviceListDir+"/")
}
