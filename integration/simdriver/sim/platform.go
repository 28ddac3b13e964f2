package sim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// WSLPackage is the driver package of a host that BecomeWSL made, in the driver root.
const WSLPackage = "usr/lib/wsl/drivers/nv_dispi.inf_amd64_9ab613610b40aa98"

// dxgMinor is what the kernel gave dxg among the misc devices.
const dxgMinor = 125

// BecomeWSL turns the host into a WSL2 distribution: no NVIDIA kernel module, one node
// /dev/dxg, the libraries in /usr/lib/wsl/lib, each under all its names, and a driver
// store.
func (d *Driver) BecomeWSL(ctx context.Context) error {
	lib := "usr/lib/wsl/lib"
	return d.become(ctx, map[string][]string{
		"libcuda":                  {lib + "/libcuda.so", lib + "/libcuda.so.1", lib + "/libcuda.so.1.1", WSLPackage + "/libcuda.so.1.1", WSLPackage + "/libcuda_loader.so"},
		"libnvidia-ml":             {lib + "/libnvidia-ml.so.1", WSLPackage + "/libnvidia-ml.so.1"},
		"libnvidia-ptxjitcompiler": {WSLPackage + "/libnvidia-ptxjitcompiler.so.1"},
		"libdxcore":                {lib + "/libdxcore.so"},
		"nvidia-smi":               {lib + "/nvidia-smi", WSLPackage + "/nvidia-smi"},
	}, map[string]string{
		WSLPackage + "/nvcubins.bin":  "simulated\n",
		WSLPackage + "/nvlddmkm.sys":  "simulated\n",
		"usr/lib/wsl/drivers/c_1/x.d": "of another vendor\n",
	}, []node{{"dxg", d.Majors.Misc, dxgMinor, 0o666, 0}})
}

// BecomeTegra turns the host into a Jetson: no NVIDIA kernel module of PCI GPUs, nodes
// of other drivers, and lists of files.
func (d *Driver) BecomeTegra(ctx context.Context) error {
	lib, lists := "usr/lib/"+multiarch+"/nvidia", "etc/nvidia-container-runtime/host-files-for-container.d/"
	err := d.become(ctx, map[string][]string{
		"libcuda":    {lib + "/libcuda.so.1.1"},
		"libdxcore":  {lib + "/libnvrm_gpu.so"},
		"nvidia-smi": {"usr/sbin/nvidia-smi"},
	}, map[string]string{
		"etc/nv_tegra_release":            "# R36 (release), REVISION: 4.0, GCID: 0, BOARD: generic, EABI: aarch64\n",
		"usr/lib/firmware/tegra234/x.bin": "simulated\n",
		lists + "devices.csv":             "dev, /dev/nvmap\ndev, /dev/nvhost-*\ndev, /dev/nvgpu/igpu0/as\n",
		lists + "drivers.csv": "lib, /" + lib + "/libcuda.so.1.1\nlib, /" + lib + "/libnvrm_gpu.so\nlib, /usr/sbin/nvidia-smi\n" +
			"sym, /usr/lib/" + multiarch + "/libcuda.so\ndir, /usr/lib/firmware/tegra234\nlib, /etc/absent\n",
	}, []node{{"nvmap", d.Majors.Misc, 80, 0o660, 44}, {"nvhost-gpu", d.Majors.FS, 2, 0o660, 44}, {"nvgpu/igpu0/as", d.Majors.GDR, 0, 0o660, 44}})
	if err != nil {
		return err
	}
	return os.Symlink("nvidia/libcuda.so.1.1", filepath.Join(d.Root, "usr/lib", multiarch, "libcuda.so"))
}

// become removes the driver from the host and adds compiled files at places, other files and nodes.
func (d *Driver) become(ctx context.Context, places map[string][]string, files map[string]string, nodes []node) error {
	for _, name := range d.Installed {
		if err := os.Remove(filepath.Join(d.Root, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := d.place(ctx, places); err != nil {
		return err
	}
	for name, content := range files {
		if err := writeFile(filepath.Join(d.Root, name), content, 0o444); err != nil {
			return err
		}
	}
	for _, dir := range []string{filepath.Join(d.DevRoot, "dev"), filepath.Join(d.ProcRoot, "driver")} {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	for _, n := range nodes {
		if err := d.makeNode(n); err != nil {
			return err
		}
	}
	chars, rest, err := hostDevices()
	if err != nil {
		return err
	}
	devices := devicesText(append(chars, deviceDriver{d.Majors.Misc, "misc"}), rest)
	for name, content := range map[string]string{"devices": devices, "misc": fmt.Sprintf("%3d dxg\n200 tun\n", dxgMinor)} {
		if err := writeFile(filepath.Join(d.ProcRoot, name), content, 0o444); err != nil {
			return err
		}
	}
	if err := d.updateCache(ctx); err != nil {
		return err
	}
	return d.openDirectories()
}

// place compiles libraries and programs by name and puts each at its places below the
// driver root. A name that the driver has not, as libdxcore, stands for a library of
// the platform's own.
func (d *Driver) place(ctx context.Context, places map[string][]string) error {
	b, err := newBuilder(d.Dir)
	if err != nil {
		return err
	}
	defer b.close()
	for name, at := range places {
		u := unit{source: "library.c", soname: filepath.Base(at[0]), defines: []string{define("SIM_VERSION", d.Version), define("SIM_LIBRARY", name)}}
		if i := slices.IndexFunc(libraries, func(l library) bool { return l.name == name }); i >= 0 {
			u = d.libraryUnit(libraries[i])
		} else if i := slices.IndexFunc(programs, func(p program) bool { return p.name == name }); i >= 0 {
			u = d.programUnit(programs[i])
		}
		object, err := b.object(ctx, u)
		if err != nil {
			return err
		}
		for _, name := range at {
			if err := copyFile(object, filepath.Join(d.Root, name), 0o555); err != nil {
				return err
			}
		}
	}
	return nil
}
