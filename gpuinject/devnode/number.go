package devnode

import (
	"path"
	"slices"
	"strings"
)

// Number is a device number.
type Number struct{ Major, Minor int64 }

// DriverMajor is registered for NVIDIA's driver (Documentation/admin-guide/devices.txt of Linux).
const DriverMajor = 195

// WSL is the one device node of WSL2. It is a misc device with a dynamic minor number and the same
// name (dxg_drv_init in drivers/hv/dxgkrnl/dxgmodule.c of Microsoft's kernel).
const WSL = "/dev/dxg"

// prefixes of the paths of nodes: those of the ordinary driver, of WSL2 and of a Tegra.
var prefixes = []string{"/dev/nvidia", WSL, "/dev/nvhost-", "/dev/nvmap", "/dev/nvgpu/"}

// IsDriver reports whether a path in a container is that of a node of a GPU driver, on any platform.
func IsDriver(name string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(path.Clean(name), p) })
}
