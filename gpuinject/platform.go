package gpuinject

import (
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
)

// jetpackAll asks for every list of a Tegra, not just the base ones: images of
// JetPack 4 that bring no CUDA of their own (toolkit.md 1.4).
const jetpackAll = "NVIDIA_REQUIRE_JETPACK=csv-mounts=all"

// Roots are where this configuration has the file systems of the host.
func Roots(h config.Host) device.Roots {
	return device.Roots{Proc: h.ProcRoot, Dev: h.DevRoot, Sys: h.SysRoot, Driver: h.DriverRoot}
}

// DriverFiles looks for the driver's files as the host's platform has them. all is of
// a Tegra: see driver.DiscoverTegra.
func DriverFiles(h config.Host, inv *device.Inventory, all bool) (*driver.Files, error) {
	switch inv.Platform {
	case device.WSL:
		return driver.DiscoverWSL(h)
	case device.Tegra:
		return driver.DiscoverTegra(h, all)
	}
	return driver.Discover(h, inv.DriverVersion)
}

// FindHost looks at the GPUs of the host and for the driver's files, for tools that
// show what a container would find. Where only the files cannot be looked for, the
// inventory comes with the error.
func FindHost(h config.Host) (*device.Inventory, *driver.Files, error) {
	inv, err := device.Discover(Roots(h))
	if err != nil {
		return nil, nil, err
	}
	files, err := DriverFiles(h, inv, false)
	if err != nil {
		return inv, nil, err
	}
	if files.Nested {
		inv.OnlyPresent()
	}
	return inv, files, nil
}

// manifestFor is the name of the manifest: a Tegra has two.
func (j *Job) manifestFor() string {
	if j.allLists() {
		return "driver-all.json"
	}
	return manifestName
}

func (j *Job) allLists() bool {
	return j.inv.Platform == device.Tegra && slices.Contains(j.bundle.Spec.Process.Env, jetpackAll)
}

// withinContainer counts only the GPUs that have a node, where this host is a container
// itself. What says so is kept with the driver's files, which are read anyway.
func (j *Job) withinContainer() {
	// An error is that of findFiles, which a container that is granted nothing does not
	// get to.
	if err := j.loadManifest(); err == nil && j.manifest.Files.Nested {
		j.inv.OnlyPresent()
	}
}

// findNodes finds the nodes of the GPUs. On a Tegra the lists of files name them.
func (j *Job) findNodes() (err error) {
	if j.inv.Platform == device.Tegra {
		if err := j.findFiles(); err != nil || len(j.set.GPUs) == 0 {
			return err
		}
		j.nodes, err = j.inv.NodesAt(j.files.Nodes)
	} else {
		j.nodes, err = j.inv.Nodes(j.set, j.Request.Capabilities)
	}
	if err != nil {
		return fail(Precondition, "%w", err)
	}
	return nil
}

// compatDriver is the version that a forward compatibility package of the image is
// judged by. Those packages are for PCI GPUs: under WSL2 the driver is Windows', and a
// Tegra's are other packages.
func (j *Job) compatDriver() string {
	if j.inv.Platform != "" {
		return ""
	}
	return j.inv.DriverVersion
}

// platformDirs are the directories of libraries that are not in the view, for the
// linker.
func platformDirs(files driver.Files) (dirs []string) {
	for _, l := range files.Libraries {
		if l.Dir != "" && !slices.Contains(dirs, l.Dir) {
			dirs = append(dirs, l.Dir)
		}
	}
	return dirs
}
