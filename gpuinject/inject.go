package gpuinject

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/procmask"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/fault"
)

// ldCache is the loader's cache in an image.
const ldCache = "/etc/ld.so.cache"

// Injection is an edited bundle that is ready for runc.
type Injection struct {
	Plan Plan

	job *Job
	// done is closed when what Begin began has come to its end; the others are what it
	// came to.
	done     chan struct{}
	mask     *procmask.Mask
	err      error
	panicked any
}

// Inject makes the changes that Resolve decided on: in the image whose root file
// system is mounted at the host directory root, and in the bundle. It runs before
// `runc create`, while nothing of the container exists (invariant I4).
//
// The caller calls Begin when runc can begin, and closes the Injection. After an error
// the image may hold links and a linker configuration for a directory that nothing is
// mounted on, which is harmless, and the bundle an edited config.json, which goes with it.
func (j *Job) Inject(root string) (*Injection, error) {
	var (
		img    *ldcache.Image
		edits  bundle.Edits
		rootFS *image.Root
		compat []string
		dir    string
		files  []placement
	)
	steps := []struct {
		name string
		run  func() error
	}{
		{"isolation", func() error {
			if err := j.checkIsolation(); err != nil {
				return err
			}
			if j.needsMask() {
				j.planMask()
			}
			return nil
		}},
		{"image", func() (err error) {
			if rootFS, err = image.Open(root); err != nil {
				return fail(Internal, "%w", err)
			}
			img, compat, err = j.inspect(rootFS)
			return err
		}},
		{"view", func() (err error) {
			if dir, err = j.ensureView(compat); err != nil {
				return err
			}
			if edits.Mounts, files, err = j.mounts(dir, img, compat); err != nil {
				return err
			}
			return j.writeDesktop()
		}},
		{"links", func() error {
			edits.Mounts = append(edits.Mounts, j.place(files, false)...)
			return nil
		}},
		{"linker", func() error {
			mounts, err := j.link(rootFS, img, compat)
			edits.Mounts = append(edits.Mounts, mounts...)
			return err
		}},
		{"edit", func() error { return j.edit(edits) }},
	}
	if j.Request.ForeignOnly {
		steps = steps[len(steps)-1:]
	}
	defer func() {
		if rootFS != nil {
			rootFS.Close()
		}
	}()
	for _, step := range steps {
		if err := fault.Point(step.name); err != nil {
			return nil, fail(Internal, "%w", err)
		}
		if err := step.run(); err != nil {
			return nil, err
		}
	}
	return &Injection{Plan: j.Plan, job: j}, nil
}

// inspect looks at the image: its C library and its forward compatibility package.
// leaveOut are the SONAMEs that the latter brings, where it is used.
func (j *Job) inspect(rootFS *image.Root) (img *ldcache.Image, leaveOut []string, err error) {
	j.image, j.targets = rootFS, rootFS.Targets()
	img, err = ldcache.Inspect(rootFS, j.compatDriver())
	if err != nil {
		return nil, nil, fail(Internal, "look at the image: %w", err)
	}
	j.Plan.Linker.LibC, j.Plan.Linker.Directory = string(img.LibC), img.LibDir
	if img.Compat.Dir != "" {
		j.Plan.note("forward compatibility: " + img.Compat.Reason)
	}
	if !j.Request.Has("compute") {
		img.Compat.Use = false
	}
	j.explainCompat(img.Compat.Dir, img.Compat.Reason, img.Compat.Use)
	if img.Compat.Use {
		leaveOut = img.Compat.SONames
		j.Plan.Linker.Compat = img.Compat.Dir
	}
	if img.LibC == "" {
		j.Plan.note("the image has no C library that the driver could use: its files are at " + ViewDir + " all the same")
	}
	return img, leaveOut, nil
}

// ensureView gets the view for what the container is given.
func (j *Job) ensureView(compat []string) (string, error) {
	spec := j.viewSpec(compat)
	dir, err := j.state.Ensure(spec)
	if err != nil {
		return "", fail(Internal, "%w", err)
	}
	j.listFiles(spec)
	return dir, nil
}

// listFiles enters the files of the view in the plan.
func (j *Job) listFiles(spec view.Spec) {
	j.Plan.Libraries, j.Plan.Binaries = []string{}, []string{}
	for _, f := range spec.Files {
		switch top, _, _ := strings.Cut(f.Name, "/"); top {
		case viewBin:
			j.Plan.Binaries = append(j.Plan.Binaries, path.Base(f.Name))
		case viewLib, viewLib32:
			j.Plan.Libraries = append(j.Plan.Libraries, path.Base(f.Name))
		}
	}
	for _, l := range j.files.Libraries {
		if l.Dir != "" {
			j.Plan.Libraries = append(j.Plan.Libraries, l.Name)
		}
	}
	slices.Sort(j.Plan.Libraries)
}

// link tells the image's dynamic loader where the driver is. Where the image
// cannot be written, a generated cache is mounted over its own: nobody can run
// ldconfig there, so that a mounted file cannot be replaced does no harm.
func (j *Job) link(rootFS *image.Root, img *ldcache.Image, compat []string) ([]specs.Mount, error) {
	dirs := []string{path.Join(ViewDir, viewLib)}
	if slices.ContainsFunc(j.files.Libraries, func(l driver.Library) bool { return l.Bits == 32 }) {
		dirs = append(dirs, path.Join(ViewDir, viewLib32))
	}
	dirs = append(dirs, platformDirs(j.files)...)
	files, notes := img.Update(rootFS, dirs, loaderLibraries(j.files, compat))
	for _, n := range notes {
		j.Plan.note(n)
	}
	j.Plan.Linker.Cache = "unchanged"
	writable := !rootFS.IsHost()
	var mounts []specs.Mount
	for _, f := range files {
		if writable {
			err := rootFS.WriteFile(f.Path, f.Data, f.Mode, f.Mkdir)
			if err == nil {
				if f.Path == ldCache {
					j.Plan.Linker.Cache = "written"
				}
				continue
			}
			j.Plan.note(fmt.Sprintf("%s was not written in the image: %v", f.Path, err))
		}
		if f.Path != ldCache {
			continue
		}
		if err := bundle.WriteFile(j.bundle.Dir, cacheName, f.Data, 0o644); err != nil {
			return nil, fail(Internal, "%w", err)
		}
		mounts = append(mounts, specs.Mount{Source: filepath.Join(j.bundle.Dir, cacheName), Destination: ldCache, Type: "bind", Options: fileOptions})
		j.Plan.Linker.Cache = "mounted"
	}
	return mounts, nil
}

// edit writes the configuration.
func (j *Job) edit(e bundle.Edits) error {
	if err := j.apply(e); err != nil {
		return err
	}
	if err := j.bundle.Save(); err != nil {
		return fail(Internal, "%w", err)
	}
	return nil
}

// apply edits the configuration in memory.
func (j *Job) apply(e bundle.Edits) error {
	if j.taken {
		if err := j.undoCDI(); err != nil {
			return err
		}
	}
	linux := j.bundle.Spec.Linux
	userns := inUserNamespace(linux)
	for _, n := range j.nodes {
		if userns && n.HostPath != n.Path {
			// Nobody may mknod in a user namespace, so runc binds the host's node,
			// which it expects at the same path (rootfs_linux.go, createDeviceNode).
			// With another dev-root it is elsewhere.
			e.Mounts = append(e.Mounts, specs.Mount{Source: n.HostPath, Destination: n.Path, Type: "bind", Options: nodeOptions})
		} else {
			mode, uid, gid := n.Mode, n.UID, n.GID
			e.Devices = append(e.Devices, specs.LinuxDevice{
				Path: n.Path, Type: "c", Major: int64(n.Major), Minor: int64(n.Minor), FileMode: &mode, UID: &uid, GID: &gid,
			})
		}
		major, minor := int64(n.Major), int64(n.Minor)
		e.Rules = append(e.Rules, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rw"})
		// A node that only a group may use (render, video): a program of the image
		// that is not root gets that group.
		if !needsGroup(n) {
			continue
		}
		if !j.Config.Container.AdditionalGIDs {
			j.Plan.note(fmt.Sprintf("%s belongs to group %d, which is not added to the process: container.additional-gids is false", n.Path, n.GID))
			continue
		}
		gid, ok := n.GID, true
		if userns {
			gid, ok = containerID(linux.GIDMappings, n.GID)
		}
		switch {
		case !ok:
			// setgroups(2) fails for it, and so would the container.
			j.Plan.note(fmt.Sprintf("%s belongs to group %d, which the container's user namespace does not have: it cannot be opened there", n.Path, n.GID))
		case !slices.Contains(e.AdditionalGids, gid):
			e.AdditionalGids = append(e.AdditionalGids, gid)
		}
	}
	j.explainHooks()
	j.addForeign(&e)
	e.RemoveHook = isForeignHook
	if j.Request.Mounted && userns {
		e.RemoveMount = isIDMappedListMount
	}
	removed, err := j.bundle.Apply(e)
	if err != nil {
		return fail(Invalid, "%w", err)
	}
	j.Plan.RemovedHooks = append([]string{}, removed...)
	j.Plan.setMounts(e.Mounts)
	return nil
}

// needsGroup tells a node that a program needs its group for.
func needsGroup(n device.Node) bool {
	return n.GID != 0 && n.Mode.Perm()&0o006 != 0o006 && n.Mode.Perm()&0o060 == 0o060
}

// isIDMappedListMount tells a mount of the device list that runc would have to map to
// the ids of a user namespace. It cannot: /dev/null is on devtmpfs, which has no
// mapped mounts, and the container would not start (containerd maps every mount of
// such a pod). The list has been read, and nothing in a container reads it.
func isIDMappedListMount(m specs.Mount) bool {
	return len(m.UIDMappings)+len(m.GIDMappings) > 0 && path.Clean(m.Source) == "/dev/null" &&
		strings.HasPrefix(path.Clean("/"+m.Destination), request.DeviceListDir+"/")
}

// containerID is the id of a user namespace that a host's id has there.
func containerID(mappings []specs.LinuxIDMapping, host uint32) (uint32, bool) {
	for _, m := range mappings {
		if host >= m.HostID && host-m.HostID < m.Size {
			return m.ContainerID + host - m.HostID, true
		}
	}
	return 0, false
}
