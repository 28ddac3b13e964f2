package nvml

import (
	"errors"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// ErrNoCgo is the answer of a build that cannot load a shared library.
var ErrNoCgo = errors.New("this nvidia-shimctl was built without cgo and cannot ask NVML")

// libraryName is NVML's SONAME. Under WSL2 the file's name carries no version.
const libraryName = "libnvidia-ml.so.1"

// libraryPath finds the libnvidia-ml of the loaded kernel module among the driver's
// files: an ordinary file of root's that nobody else can write.
func libraryPath(host config.Host) (string, error) {
	_, files, err := gpuinject.FindHost(host)
	if err != nil {
		return "", err
	}
	if err := files.Check([]string{"utility"}); err != nil {
		return "", err
	}
	for _, l := range files.Libraries {
		if l.SOName == libraryName && l.Bits == 64 {
			return l.Path, nil
		}
	}
	// A Tegra need not have it.
	return "", errors.New(libraryName + " is not among the driver's files")
}

// brands are NVML's (nvmlBrandType_t) in the spelling of NVIDIA_REQUIRE_* conditions
// (toolkit.md 1.4), by number.
var brands = []string{
	"unknown", "quadro", "tesla", "nvs", "grid", "geforce", "titan", "vapps", "vpc", "vcs", "vws", "cloudgaming",
	"quadrortx", "nvidiartx", "nvidia", "geforcertx", "titanrtx",
}

// brand names a number; one that is newer than the table is "unknown", which is what
// the images' conditions mean by it.
func brand(n int) string {
	if n < 0 || n >= len(brands) {
		return brands[0]
	}
	return brands[n]
}

// busID turns NVML's PCI address, "00000000:65:00.0", into that of procfs,
// "0000:65:00.0". Domains beyond 16 bits keep what they need.
func busID(nvml string) string {
	domain, rest, ok := strings.Cut(strings.ToLower(nvml), ":")
	if !ok {
		return nvml
	}
	for len(domain) > 4 && domain[0] == '0' {
		domain = domain[1:]
	}
	return domain + ":" + rest
}

// profile is the name of a MIG device's profile, "1g.18gb", which NVML has at the end
// of "NVIDIA H200 MIG 1g.18gb".
func profile(name string) string {
	if _, after, ok := strings.Cut(name, "MIG "); ok {
		return after
	}
	return name
}
