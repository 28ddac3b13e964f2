package driver

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/openat"
)

// Discover finds the driver's files. Version is that of the loaded kernel module
// (device.Inventory.DriverVersion). An absent library is not an error here: see Files.Check.
func Discover(cfg config.Host, version string) (Files, error) {
	if version == "" || strings.Trim(version, "0123456789.") != "" {
		return Files{}, fmt.Errorf("find driver files: %.256q is not a driver version", version)
	}
	s, err := NewSearch(cfg, version)
	if err != nil {
		return Files{}, err
	}
	defer s.Close()
	s.libraries(cfg.DriverLibraries)
	s.binaries()
	s.data()
	s.xorg()
	s.wine()
	for _, e := range expected {
		problem := ""
		if e.essential {
			problem = s.absent(e.stem)
		}
		s.Expect(e.capability, e.stem+".so."+version, problem)
	}
	s.compareFileList()
	return s.Files()
}

// expected lists the libraries that Missing reports. Server drivers lack those that are not
// essential.
var expected = []struct {
	capability, stem string
	essential        bool
}{
	{config.Compute, "libcuda", true},
	{config.Utility, "libnvidia-ml", true},
	{config.Video, "libnvcuvid", false},
	{config.Video, "libnvidia-encode", false},
	{config.Graphics, "libGLX_nvidia", false},
	{config.Graphics, "libEGL_nvidia", false},
	{config.NGX, "libnvidia-ngx", false},
}

func (s *Search) absent(stem string) string {
	version := s.files.Version
	for _, other := range s.others {
		if base := path.Base(other); strings.HasPrefix(base, stem+".so.") {
			return fmt.Sprintf("NVIDIA driver library %s was found (%s), but the loaded kernel module is %s: reboot, reload the nvidia module, or reinstall the driver's user-space",
				base, other, version)
		}
	}
	where := "none of the known directories exists below " + s.files.Root
	if len(s.files.Searched) > 0 {
		where = "searched " + strings.Join(s.files.Searched, ", ")
	}
	return fmt.Sprintf("NVIDIA driver %s is loaded, but %s.so.%s was not found (%s): install the driver's user-space, or set host.driver-root or host.driver-libraries in the configuration",
		version, stem, version, where)
}

// IsContainer reports whether libcuda or libnvidia-ml is a mount point, as in a container: then
// this host is itself a container.
func IsContainer(cfg config.Host, version string) bool {
	s, err := NewSearch(cfg, version)
	if err != nil {
		return false
	}
	defer s.Close()
	names := s.cache()
	for _, dir := range append(slices.Clone(cfg.DriverLibraries), libraryDirs()...) {
		for _, stem := range []string{"libcuda.so.", "libnvidia-ml.so."} {
			names = append(names, path.Join(dir, stem+"1"), path.Join(dir, stem+version))
		}
	}
	return slices.ContainsFunc(names, func(name string) bool {
		fd, _, err := s.resolve(name)
		if err != nil {
			return false
		}
		defer unix.Close(fd)
		return openat.IsMountPoint(fd, "")
	})
}
