package nvml

import (
	"errors"
	"fmt"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
)

// SONAMEs. Under WSL2 the files' names carry no version.
const (
	nvmlName = "libnvidia-ml.so.1"
	cudaName = "libcuda.so.1"
)

// errAbsent means that the driver of this host has no such library.
var errAbsent = errors.New("is not among the driver's files")

// libraryPath finds the library for the loaded kernel module among the driver's files, which only
// root can change.
func libraryPath(cfg config.Host, soname string) (string, error) {
	_, files, err := host.Find(cfg)
	if err != nil {
		return "", err
	}
	if err := files.Check([]string{config.Utility}); err != nil {
		return "", err
	}
	for _, l := range files.Libraries {
		if l.SOName == soname && l.Bits == 64 {
			return l.Path, nil
		}
	}
	return "", fmt.Errorf("%s %w", soname, errAbsent)
}

// brands are NVML's brands (nvmlBrandType_t) as NVIDIA_REQUIRE_* conditions spell them, by number.
var brands = []string{
	"unknown", "quadro", "tesla", "nvs", "grid", "geforce", "titan", "vapps", "vpc", "vcs", "vws", "cloudgaming",
	"quadrortx", "nvidiartx", "nvidia", "geforcertx", "titanrtx",
}

// brand returns the name of brand n. A brand that is newer than the table is "unknown", as in the
// conditions of images.
func brand(n int) string {
	if n < 0 || n >= len(brands) {
		return brands[0]
	}
	return brands[n]
}

// profile returns the profile "1g.18gb" of a MIG device named "NVIDIA H200 MIG 1g.18gb".
func profile(name string) string {
	if _, after, ok := strings.Cut(name, "MIG "); ok {
		return after
	}
	return name
}
