package wsl

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/devnode"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
)

// Name is the platform's name in JSON.
const Name = "wsl"

// The places at which Windows shows its driver: what programs link with, and the driver store, a
// directory for each driver package of Windows.
const (
	libraryDir = "/usr/lib/wsl/lib"
	storeDir   = "/usr/lib/wsl/drivers"
)

// Is reports whether this host is WSL2.
func Is(cfg config.Host) bool {
	for _, name := range []string{filepath.Join(cfg.DevRoot, devnode.WSL), filepath.Join(cfg.DriverRoot, libraryDir, "libdxcore.so")} {
		if _, err := os.Lstat(name); err != nil {
			return false
		}
	}
	return true
}

// GPUs returns one device that stands for all GPUs: they share one node and cannot be told apart.
// NVIDIA's device plugin calls it "all" since 0.19.1, and before by the UUID that NVML reports for
// one of them.
func GPUs() []device.GPU {
	return []device.GPU{{Minor: -1, Model: "every GPU that Windows shares with WSL2", Alias: "all"}}
}

// Nodes returns the nodes that a container gets, with or without a GPU.
func Nodes(cfg config.Host) ([]device.Node, error) {
	name := path.Base(devnode.WSL)
	node, err := device.MiscNode(cfg, name, name)
	if err != nil {
		return nil, err
	}
	return []device.Node{node}, nil
}

// onlyHere maps the stems of libraries that only this driver has to their capabilities. All of them
// find the driver store through dxcore.
var onlyHere = map[string][]string{
	"libdxcore":           driver.EveryCapability,
	"libcuda_loader":      {config.Compute},
	"libnvdxgdmal":        {config.Compute},
	"libnvdxdlkernels":    {config.Compute},
	"libnvidia-ml_loader": {config.Utility},
	"libnvoptix_loader":   {config.Graphics},
	"libnvwgf2umx":        {config.Graphics},
	"libd3d12":            {config.Graphics},
	"libd3d12core":        {config.Graphics},
}

// DriverFiles finds the driver's files. Their names carry no version.
func DriverFiles(cfg config.Host) (driver.Files, error) {
	s, err := driver.NewSearch(cfg, "")
	if err != nil {
		return driver.Files{}, err
	}
	defer s.Close()
	packages := storePackages(s)
	dirs := []string{libraryDir}
	if len(packages) == 1 {
		// Of several packages dxcore picks the adapter's, which is not known here.
		dirs = append(dirs, packages[0])
	}
	for _, dir := range dirs {
		addLibraries(s, dir)
	}
	all := append([]string{libraryDir}, packages...)
	s.Program(driver.Binary{Name: "nvidia-smi", Capabilities: []string{config.Utility}}, all)
	for _, dir := range all {
		s.Direct(dir)
	}
	for _, e := range [][2]string{{config.Compute, "libcuda.so.1"}, {config.Utility, "libnvidia-ml.so.1"}, {config.Compute, "libdxcore.so"}} {
		s.Expect(e[0], e[1], fmt.Sprintf("this is WSL2, but %s was not found in %s: install NVIDIA's driver for Windows there, restart WSL (wsl --shutdown), and see that nvidia-smi works",
			e[1], path.Join(cfg.DriverRoot, libraryDir)))
	}
	return s.Files()
}

// storePackages returns NVIDIA's packages of the driver store, those with a libcuda, sorted.
func storePackages(s *driver.Search) []string {
	var packages []string
	for _, name := range s.Names(storeDir) {
		dir := path.Join(storeDir, name)
		// nv_dispi.inf_amd64_…, nvlti.inf_amd64_…: NVIDIA's names begin so.
		if strings.HasPrefix(strings.ToLower(name), "nv") && s.Exists(path.Join(dir, "libcuda.so.1.1")) {
			packages = append(packages, dir)
		}
	}
	return packages
}

// addLibraries takes the libraries of one directory. libcuda.so, .so.1 and .so.1.1 are three files
// there with one SONAME: the longest name is taken, the others are links.
func addLibraries(s *driver.Search, dir string) {
	s.Searched(dir)
	names := slices.Clone(s.Names(dir))
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	for _, name := range names {
		stem, version, ok := driver.SplitName(name)
		caps := onlyHere[stem]
		if caps == nil {
			caps = driver.Capabilities(stem)
		}
		if !ok || len(caps) == 0 || strings.Trim(version, "0123456789.") != "" {
			continue
		}
		file := path.Join(dir, name)
		if err := s.Library(file, driver.Library{Name: name, Capabilities: caps}, true); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.Refuse(file, err.Error())
		}
	}
}
