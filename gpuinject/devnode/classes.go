package devnode

import (
	"path"
	"slices"
	"strings"
)

// Classes are the kinds of devices besides GPUs. Everything about a class follows from its row, but
// for what its comments name. The numbers of nodes come from the kernel modules' sources:
// nv-caps-imex.c (minor == channel), nvidia-fs (register_chrdev "nvidia-fs…"), gdrdrv.c (one device,
// minor 0), ib_uverbs (IB_UVERBS_MAJOR and a dynamic region of the same name), ucma.c (a misc
// device) and linux_nvswitch.c (minor == instance, 255 for control).
var Classes = []Class{
	{Name: IMEX, CDIKind: "imex-channel", Variable: "NVIDIA_IMEX_CHANNELS", Numbered: true, InCDI: true, Nodes: []Node{
		{Name: "nvidia-caps-imex-channels/channel*", Individual: true, Driver: IMEXDriver, Minor: MinorNumber},
	}},
	{Name: "gds", CDIKind: "gds", Variable: "NVIDIA_GDS", InCDI: true,
		Nodes: []Node{{Name: "nvidia-fs*", Driver: "nvidia-fs*", Minor: MinorAny}},
		// What cuFile reads besides: the assignment of disks to devices, and its configuration.
		Files: []File{{"/run/udev", true}, {"/etc/cufile.json", false}},
		Mask:  []string{"nvidia-fs/version", "nvidia-fs/devcount", "nvidia-fs/bridges", "nvidia-fs/modules", "nvidia-fs/peer_distance"}},
	{Name: "gdrcopy", CDIKind: "gdrcopy", Variable: "NVIDIA_GDRCOPY", InCDI: true,
		Nodes: []Node{{Name: "gdrdrv", Driver: "gdrdrv", Minor: 0}}},
	// NVIDIA's CDI specifications have RDMA adapters, but so have those of other vendors' plugins.
	{Name: "mofed", CDIKind: "mofed", Variable: "NVIDIA_MOFED", NearGPUs: true, Nodes: []Node{
		{Name: "infiniband/uverbs*", Individual: true, Driver: "infiniband_verbs", Minor: MinorAny},
		{Name: "infiniband/rdma_cm", Driver: "rdma_cm", Misc: true},
	}},
	{Name: "nvswitch", CDIKind: "nvswitch", Variable: "NVIDIA_NVSWITCH", InCDI: true, Nodes: []Node{
		{Name: "nvidia-nvswitchctl", Driver: "nvidia-nvswitch", Minor: 255},
		{Name: "nvidia-nvswitch*", Individual: true, Driver: "nvidia-nvswitch", Minor: MinorNumber},
	}},
}

// IMEX is the class whose nodes, the channels, are asked for by number. IMEXDriver is its name in
// <proc>/devices.
const (
	IMEX       = "imex"
	IMEXDriver = "nvidia-caps-imex-channels"
)

// Class is a kind of devices besides GPUs that a container can ask for.
type Class struct {
	// Name is the class in the configuration and in plans.
	Name string
	// CDIKind is the class in CDI names, <vendor>/<kind>=all, and Variable the variable that asks
	// for it, by "enabled". A Numbered class is asked for by the numbers of its nodes instead.
	CDIKind, Variable string
	Numbered          bool
	// InCDI is true if nodes of the class in a specification come from NVIDIA's CDI.
	InCDI bool
	// NearGPUs is true if policy.rdma-adapters decides which of its nodes a container gets.
	NearGPUs bool
	Nodes    []Node
	// Files of the host go with the nodes.
	Files []File
	// Mask are the files below /proc/driver that go with the nodes, if the host has them.
	Mask []string
}

// Node is one kind of nodes of a class.
type Node struct {
	// Name is below /dev; a star at its end stands for a number.
	Name string
	// Individual nodes are allocated one by one.
	Individual bool
	// Driver is the name in <proc>/devices, or for a misc device in <proc>/misc. A star at its end
	// stands for anything.
	Driver string
	Misc   bool
	// Minor is the node's minor number, or MinorNumber or MinorAny.
	Minor int
}

// Rules for minor numbers that are not fixed.
const (
	MinorNumber = -1 // the number in the node's name
	MinorAny    = -2 // the driver assigns them
)

// File is a file or directory of the host, below its dev-root or driver-root.
type File struct {
	Path      string
	InDevRoot bool
}

// Names returns the names of all classes.
func Names() (names []string) {
	for _, c := range Classes {
		names = append(names, c.Name)
	}
	return names
}

// ByName returns a class.
func ByName(name string) (Class, bool) {
	i := slices.IndexFunc(Classes, func(c Class) bool { return c.Name == name })
	if i < 0 {
		return Class{}, false
	}
	return Classes[i], true
}

// IsOfClass reports whether a path in a container is that of a node of a class, or in a directory of
// such nodes.
func IsOfClass(name string) bool {
	for _, c := range Classes {
		for _, n := range c.Nodes {
			dir := path.Join("/dev", path.Dir(n.Name))
			if ok, _ := path.Match("/dev/"+n.Name, name); ok || dir != "/dev" && strings.HasPrefix(name, dir+"/") {
				return true
			}
		}
	}
	return false
}
