package place

import (
	"cmp"
	"path"
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/memlimit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/procmask"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
)

// Changes is everything that is done for a container, and why. Each part of Resolve returns one;
// with an error, it contains the decisions that led to it. Add joins two.
type Changes struct {
	verdict.Log
	// Nodes are the device nodes of GPUs and of the other Classes, IMEX the numbers of the IMEX
	// channels among them. Groups own nodes that only a group may open.
	Nodes   []device.Node
	Classes []string
	IMEX    []int
	Groups  []uint32
	// View holds the driver's files, nil if the container gets none.
	View   *View
	Mounts []Mount
	// Sockets are the daemons whose sockets are among Mounts.
	Sockets []string
	// Memory are the limits of GPU memory that the container's cgroup gets before it starts.
	Memory []memlimit.Limit
	// Links are symbolic links in the image to files of the view.
	Links []Link
	// Linker describes how the image's loader finds the driver. LinkerFiles are written in the image;
	// if the loader's cache cannot be, it is mounted at CacheAt, or nowhere if that is "".
	Linker      Linker
	LinkerFiles []image.File
	CacheAt     string
	// BundleFiles are made in the bundle for one container, by name. ByPath are links of
	// /dev/dri/by-path, by name.
	BundleFiles []image.File
	ByPath      map[string]string
	// Edits are the changes to config.json besides Mounts.
	Edits        bundle.Edits
	RemovedHooks []string
	// Mask are the files of the mask over /proc/driver, Proc what they show.
	Proc Proc
	Mask []procmask.File
}

// Mount is a bind mount that the container gets.
type Mount struct {
	Source      string   `json:"source"`
	Destination string   `json:"destination"`
	Options     []string `json:"options"`
	// Made is true if the source is not a file of the host, but in the view or the bundle.
	Made bool `json:"-"`
}

// fileOptions are the mount options of a single driver file: never noexec, because libraries and
// programs are mapped executable.
var fileOptions = []string{"bind", "ro", "nosuid", "nodev", "rprivate"} // guard: view: options of single files

// Link is a symbolic link in the image to a file of the view.
type Link struct {
	Path   string `json:"path"`
	Target string `json:"target"`
	// Name is the file's path in the view.
	Name string `json:"-"`
}

// Proc describes what the mask over /proc/driver shows.
type Proc struct {
	// Masked is false for privileged containers.
	Masked bool     `json:"masked"`
	GPUs   []string `json:"gpus"`
	// Capabilities are the capability files of MIG: "gpu0/mig/gi1/access".
	Capabilities []string `json:"capabilities"`
}

// Linker describes how programs in the image find the driver.
type Linker struct {
	// LibC is "glibc", "musl" or empty.
	LibC string `json:"libc"`
	// Directory is the image's own library directory.
	Directory string `json:"directory"`
	// Cache is the state of the loader's cache: "written", "mounted", "unchanged", or "hidden" by
	// one of the container's own mounts.
	Cache string `json:"cache"`
	// Compat is the forward compatibility directory of the image, if it is used.
	Compat string `json:"compat"`
}

// Add joins changes. The error is err or, without one, names a place at which two of them put
// something; then nothing may be done.
func Add(err error, parts ...Changes) (Changes, error) {
	var all Changes
	taken := map[string]bool{}
	for _, part := range parts {
		places := part.places()
		for _, at := range places {
			if taken[at] && err == nil {
				err = verdict.Internal("two parts of the plan decide about %s", at)
			}
		}
		for _, at := range places {
			taken[at] = true
		}
		all.append(part)
	}
	return all, err
}

func (ch *Changes) append(b Changes) {
	ch.Log.Join(b.Log)
	ch.Nodes = append(ch.Nodes, b.Nodes...)
	ch.Groups = append(ch.Groups, b.Groups...)
	ch.Classes = append(ch.Classes, b.Classes...)
	ch.IMEX = append(ch.IMEX, b.IMEX...)
	ch.View = cmp.Or(ch.View, b.View)
	ch.Mounts = append(ch.Mounts, b.Mounts...)
	ch.Sockets = append(ch.Sockets, b.Sockets...)
	ch.Memory = append(ch.Memory, b.Memory...)
	ch.Links = append(ch.Links, b.Links...)
	ch.Linker = Linker{
		cmp.Or(ch.Linker.LibC, b.Linker.LibC), cmp.Or(ch.Linker.Directory, b.Linker.Directory),
		cmp.Or(b.Linker.Cache, ch.Linker.Cache), cmp.Or(ch.Linker.Compat, b.Linker.Compat),
	}
	ch.LinkerFiles = append(ch.LinkerFiles, b.LinkerFiles...)
	ch.CacheAt = cmp.Or(ch.CacheAt, b.CacheAt)
	ch.BundleFiles = append(ch.BundleFiles, b.BundleFiles...)
	if len(b.ByPath) > 0 {
		ch.ByPath = b.ByPath
	}
	e := &ch.Edits
	e.RemoveMount = anyOf(e.RemoveMount, b.Edits.RemoveMount)
	e.RemoveDevice = anyOf(e.RemoveDevice, b.Edits.RemoveDevice)
	e.RemoveRule = anyOf(e.RemoveRule, b.Edits.RemoveRule)
	e.RemoveHook = anyOf(e.RemoveHook, b.Edits.RemoveHook)
	e.Devices = append(e.Devices, b.Edits.Devices...)
	e.Rules = append(e.Rules, b.Edits.Rules...)
	e.AdditionalGids = append(e.AdditionalGids, b.Edits.AdditionalGids...)
	ch.RemovedHooks = append(ch.RemovedHooks, b.RemovedHooks...)
	if b.Proc.Masked {
		ch.Proc, ch.Mask = b.Proc, b.Mask
	}
}

// anyOf returns a function that is true if one of two is; nil is never true.
func anyOf[T any](a, b func(T) bool) func(T) bool {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return func(x T) bool { return a(x) || b(x) }
}

// places returns what there is only one of: the paths at which something is put, and names for the
// rest.
func (c Changes) places() (list []string) {
	if c.View != nil {
		list = append(list, "the view")
	}
	if c.Proc.Masked {
		list = append(list, "the mask")
	}
	if len(c.ByPath) > 0 {
		list = append(list, byPathName)
	}
	for _, n := range c.Nodes {
		list = append(list, "the node "+n.Path) // which can also be a mount
	}
	for _, m := range c.Mounts {
		list = append(list, m.Destination)
	}
	for _, l := range c.Links {
		list = append(list, l.Path)
	}
	for _, m := range c.Memory {
		list = append(list, "the memory of "+m.UUID)
	}
	for _, f := range slices.Concat(c.LinkerFiles, c.BundleFiles) {
		list = append(list, f.Path)
	}
	return list
}

// View holds the driver's files that a container gets.
type View struct {
	Files driver.Files
	// Spec is the layout of the files that are in the view, Root its path on the host.
	Spec view.Spec
	Root string
	// Dir is where the container finds it: one of view.Dirs.
	Dir string
}

// mountFile adds the mount of a file of the host or, if it has a name in it, of the view at viewRoot.
func (ch *Changes) mountFile(f Bind, viewRoot string) {
	if f.Name != "" {
		f.Source = path.Join(viewRoot, f.Name)
	}
	ch.Mounts = append(ch.Mounts, Mount{f.Source, f.Destination, fileOptions, f.Made || f.Name != ""})
}
