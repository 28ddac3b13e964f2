package place

import (
	"cmp"
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/procmask"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
)

// Changes is everything that is done for a container, and why. Each part of Resolve returns one;
// with an error, it contains the decisions that led to it. Add joins two.
type Changes struct {
	verdict.Log
	// Nodes are device nodes of other classes and GPUs, Groups those to which nodes belong that only
	// a group may open. IMEX are the numbers of the IMEX channels among the nodes.
	Nodes   []device.Node
	Groups  []uint32
	Classes []string
	IMEX    []int
	// View holds the driver's files, nil if the container gets none.
	View   *View
	Mounts []Mount
	// Sockets are the daemons whose sockets are among Mounts.
	Sockets []string
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
	// Edits are the changes to config.json. Mounts are added to them.
	Edits        bundle.Edits
	RemovedHooks []string
	// Mask are the files of the mask over /proc/driver, Proc what they show.
	Proc Proc
	Mask []procmask.File
}

// Mount is a mount that the container gets.
type Mount struct {
	Source      string   `json:"source"`
	Destination string   `json:"destination"`
	Options     []string `json:"options"`
	// Made is true if the source is not a file of the host, but in the view or the bundle.
	Made bool `json:"-"`
}

// fileOptions are the mount options of a single driver file: never noexec, because libraries and
// programs are mapped executable.
var fileOptions = []string{"bind", "ro", "nosuid", "nodev", "rprivate"}

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

// Add joins two changes. The error names a place at which both put something; then nothing may be
// done.
func Add(a, b Changes) (Changes, error) {
	var err error
	have := a.places()
	for _, at := range b.places() {
		if slices.Contains(have, at) {
			err = verdict.Internal("two parts of the plan decide about %s", at)
		}
	}
	a.Log.Join(b.Log)
	a.Nodes = slices.Concat(a.Nodes, b.Nodes)
	a.Groups = slices.Concat(a.Groups, b.Groups)
	a.Classes = slices.Concat(a.Classes, b.Classes)
	a.IMEX = slices.Concat(a.IMEX, b.IMEX)
	a.View = cmp.Or(a.View, b.View)
	a.Mounts = slices.Concat(a.Mounts, b.Mounts)
	a.Sockets = slices.Concat(a.Sockets, b.Sockets)
	a.Links = slices.Concat(a.Links, b.Links)
	a.Linker = Linker{
		cmp.Or(a.Linker.LibC, b.Linker.LibC), cmp.Or(a.Linker.Directory, b.Linker.Directory),
		cmp.Or(b.Linker.Cache, a.Linker.Cache), cmp.Or(a.Linker.Compat, b.Linker.Compat),
	}
	a.LinkerFiles = slices.Concat(a.LinkerFiles, b.LinkerFiles)
	a.CacheAt = cmp.Or(a.CacheAt, b.CacheAt)
	a.BundleFiles = slices.Concat(a.BundleFiles, b.BundleFiles)
	if len(b.ByPath) > 0 {
		a.ByPath = b.ByPath
	}
	a.Edits = bundle.Edits{
		RemoveMount:    anyOf(a.Edits.RemoveMount, b.Edits.RemoveMount),
		RemoveDevice:   anyOf(a.Edits.RemoveDevice, b.Edits.RemoveDevice),
		RemoveRule:     anyOf(a.Edits.RemoveRule, b.Edits.RemoveRule),
		RemoveHook:     anyOf(a.Edits.RemoveHook, b.Edits.RemoveHook),
		Devices:        slices.Concat(a.Edits.Devices, b.Edits.Devices),
		Rules:          slices.Concat(a.Edits.Rules, b.Edits.Rules),
		AdditionalGids: slices.Concat(a.Edits.AdditionalGids, b.Edits.AdditionalGids),
	}
	a.RemovedHooks = slices.Concat(a.RemovedHooks, b.RemovedHooks)
	if b.Proc.Masked {
		a.Proc, a.Mask = b.Proc, b.Mask
	}
	return a, err
}

// Append joins what a part returns. Its decisions count even with an error.
func (ch *Changes) Append(more Changes, err error) error {
	all, contradiction := Add(*ch, more)
	*ch = all
	return cmp.Or(err, contradiction)
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
	for _, f := range slices.Concat(c.LinkerFiles, c.BundleFiles) {
		list = append(list, f.Path)
	}
	return list
}
