package device

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Platform is a kind of host whose GPUs are not, or not only, PCI devices of the
// NVIDIA kernel module.
type Platform string

// The platforms besides the ordinary one, which is "".
const (
	// WSL is Linux under Windows: one node gives all GPUs that Windows shares.
	WSL Platform = "wsl"
	// Tegra is a system-on-chip (Jetson): files on disk say which nodes and libraries
	// its GPU needs.
	Tegra Platform = "tegra"
)

// String is the platform for people.
func (p Platform) String() string {
	return map[Platform]string{WSL: "Windows, by WSL2", Tegra: "a Tegra, by its lists of files"}[p]
}

// Where a platform is recognised, in the driver root and in sysfs (toolkit.md 3.1).
const (
	dxcore       = "usr/lib/wsl/lib/libdxcore.so"
	tegraRelease = "etc/nv_tegra_release"
	socFamily    = "devices/soc0/family"
)

// discoverPlatform completes what procfs said, inv, or stands in for it where no
// kernel module is loaded (inv is nil). It returns nil on an ordinary host.
func discoverPlatform(roots Roots, inv *Inventory) *Inventory {
	switch {
	case isTegra(roots):
		if inv == nil {
			inv = &Inventory{Roots: roots}
		}
		inv.Platform = Tegra
		if len(inv.GPUs) == 0 {
			inv.GPUs = []GPU{{Minor: -1, Model: "the GPU of this Tegra"}}
		}
		return inv
	case inv == nil && isWSL(roots):
		return &Inventory{Roots: roots, Platform: WSL, GPUs: []GPU{{Minor: -1, Model: "every GPU that Windows shares with WSL2"}}}
	}
	return nil
}

func isWSL(roots Roots) bool {
	for _, name := range []string{filepath.Join(roots.Dev, "dev", dxg), filepath.Join(roots.Driver, dxcore)} {
		if _, err := os.Lstat(name); err != nil {
			return false
		}
	}
	return true
}

// isTegra goes by what NVIDIA's container toolkit goes by.
func isTegra(roots Roots) bool {
	if _, err := os.Stat(filepath.Join(roots.Driver, tegraRelease)); err == nil {
		return true
	}
	family, err := readBounded(filepath.Join(roots.Sys, socFamily))
	return err == nil && bytes.HasPrefix(bytes.ToLower(family), []byte("tegra"))
}

// platformGiven is Given. A Tegra's nodes are many, and none stands for its GPU.
func (inv *Inventory) platformGiven(numbers []Number) (Set, error) {
	if inv.Platform != WSL {
		return Set{}, nil
	}
	nodes, err := inv.wslNodes()
	if err == nil && slices.Contains(numbers, Number{int64(nodes[0].Major), int64(nodes[0].Minor)}) {
		return Set{GPUs: inv.GPUs}, nil
	}
	return Set{}, err
}

// maybeTegra tells from what procfs said whether to look further. A Tegra's kernel
// module for displays reports no GPU, or one without a UUID; later ones report the
// GPU itself, by name.
func (inv *Inventory) maybeTegra() bool {
	return !slices.ContainsFunc(inv.GPUs, func(g GPU) bool {
		return g.UUID != "" && !strings.Contains(g.Model, "(nvgpu)") && !strings.Contains(g.Model, "NVIDIA Thor")
	})
}
