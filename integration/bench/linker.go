package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
)

// linkerRuns is how often the linker step is timed.
const linkerRuns = 50

// touched are the files of an image that the linker step writes.
var touched = []string{"etc/ld.so.cache", "etc/ld.so.conf", "etc/ld.so.conf.d/000-nvidia-shim.conf"}

// linkerStep times what the shim does for an image's dynamic loader: look at the
// image, compute the files, write them. Before each run the image is as it was.
func linkerStep(imageTar, work string, host config.Host, version string) ([]float64, error) {
	root := filepath.Join(work, "image")
	if err := os.Mkdir(root, 0o755); err != nil {
		return nil, err
	}
	defer os.RemoveAll(root)
	if err := images.Unpack(imageTar, root); err != nil {
		return nil, err
	}
	files, err := driver.Discover(host, version)
	if err != nil {
		return nil, err
	}
	libs := libraries(files.For([]string{"compute", "utility"}))

	original := map[string][]byte{}
	for _, name := range touched {
		if data, err := os.ReadFile(filepath.Join(root, name)); err == nil {
			original[name] = data
		}
	}
	var times []float64
	for range linkerRuns {
		for _, name := range touched {
			if err := os.Remove(filepath.Join(root, name)); err != nil && !os.IsNotExist(err) {
				return nil, err
			}
			if data, ok := original[name]; ok {
				if err := os.WriteFile(filepath.Join(root, name), data, 0o644); err != nil {
					return nil, err
				}
			}
		}
		began := time.Now()
		if err := link(root, version, libs); err != nil {
			return nil, err
		}
		times = append(times, milliseconds(time.Since(began)))
	}
	return times, nil
}

// link is the linker step.
func link(dir, version string, libs []ldcache.Library) error {
	root, err := image.Open(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	img, err := ldcache.Inspect(root, version)
	if err != nil {
		return err
	}
	files, _ := img.Update(root, []string{path.Join(gpuinject.ViewDir, "lib64")}, libs)
	if len(files) == 0 {
		return fmt.Errorf("nothing to write in the image")
	}
	for _, f := range files {
		if err := root.WriteFile(f.Path, f.Data, f.Mode, f.Mkdir); err != nil {
			return err
		}
	}
	return nil
}

// libraries are the driver's as a container finds them.
func libraries(files driver.Files) []ldcache.Library {
	var libs []ldcache.Library
	for _, l := range files.Libraries {
		for _, name := range append([]string{l.SOName}, l.Links...) {
			if name != "" && l.Subdir == "" {
				libs = append(libs, ldcache.Library{Name: name, Path: path.Join(gpuinject.ViewDir, "lib64", name), Flags: l.Flags})
			}
		}
	}
	return libs
}
