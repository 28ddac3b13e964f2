package gpu

import (
	"debug/elf"
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
)

//go:embed programs
var sources embed.FS

// Programs are the names of the C programs that the tests run on the GPUs.
var Programs = []string{"vectoradd", "mapbar", "hold", "count", "suspend", "loads", "egldevices", "vkdevices", "cldevices", "video", "limits"}

// LostLibrary is a library that Compile makes beside Programs.
const LostLibrary = "lost.so"

// Compile makes Programs and LostLibrary in the existing directory dir with the host's
// gcc. They need the C library alone; all else they open by name.
func Compile(dir string) error {
	work, err := os.MkdirTemp("", "nvgpu")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := os.CopyFS(work, sources); err != nil {
		return err
	}
	for _, name := range append(slices.Clone(Programs), LostLibrary) {
		source, isLibrary := strings.CutSuffix(name, ".so")
		args := []string{"-O2", "-s", "-o", filepath.Join(dir, name), filepath.Join(work, "programs", source+".c"), "-ldl"}
		if isLibrary {
			args = append(args, "-shared", "-fPIC")
		}
		if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("gcc %s.c: %w: %s", source, err, out)
		}
	}
	return nil
}

// shellPrograms are what the images have of the host's own programs.
var shellPrograms = []string{"sh", "cat", "ls", "find", "grep", "mknod", "stat", "sleep", "true", "id", "mount", "env", "rm", "head"}

// ProgramsImage is an image of the host's own programs and C library, and of those
// that Compile made in dir.
func ProgramsImage(ref, dir string, more ...images.File) (images.Image, error) {
	files := more
	for _, name := range Programs {
		files = append(files, images.FromHost("usr/bin/"+name, 0o755, filepath.Join(dir, name)))
	}
	return images.FromHostPrograms(ref, shellPrograms, files...)
}

// GraphicsRef is the reference of GraphicsImage, and graphicsTar its file's name.
const (
	GraphicsRef = "test/graphics:latest"
	graphicsTar = "graphics.tar"
)

// packedGraphics is the tar of GraphicsImage that integration/gpu/pack made in dir. ctr, which
// imports it, runs in another directory.
func packedGraphics(dir string) (string, error) {
	name, err := filepath.Abs(filepath.Join(dir, graphicsTar))
	if err == nil {
		_, err = os.Stat(name)
	}
	return name, err
}

// GraphicsImage is ProgramsImage with the vendor-neutral loaders of EGL, Vulkan and
// OpenCL, as an image of a graphics program has them: nothing of NVIDIA's but the
// line by which OpenCL images name its library. The loaders are the host's, or those
// of its apt archive, unpacked below work and not installed.
func GraphicsImage(dir, work string) (images.Image, error) {
	files, err := loaders(work)
	if err != nil {
		return images.Image{}, err
	}
	files = append(files, images.Text("etc/OpenCL/vendors/nvidia.icd", 0o644, "libnvidia-opencl.so.1\n"))
	image, err := ProgramsImage(GraphicsRef, dir, files...)
	if err != nil {
		return image, err
	}
	// What a package brought is also found as the host's, where both have it.
	seen, once := map[string]bool{}, []images.File{}
	for _, f := range image.Layers[0].Files {
		if !seen[f.Path] {
			seen[f.Path] = true
			once = append(once, f)
		}
	}
	image.Layers[0].Files = once
	return image, nil
}

// loaderLibraries are what the programs of graphics and OpenCL open by name, and
// what NVIDIA's libraries for EGL and Vulkan need besides: GLX_nvidia, which is
// NVIDIA's Vulkan driver too, is linked to Xlib.
var loaderLibraries = []string{"libEGL.so.1", "libGLdispatch.so.0", "libvulkan.so.1", "libOpenCL.so.1", "libX11.so.6", "libXext.so.6"}

// loaderPackages are Debian's packages of these and of what they need.
var loaderPackages = []string{
	"libegl1", "libglvnd0", "libvulkan1", "ocl-icd-libopencl1",
	"libx11-6", "libxext6", "libxcb1", "libxau6", "libxdmcp6", "libbsd0", "libmd0",
}

func loaders(work string) ([]images.File, error) {
	var files []images.File
	for _, name := range loaderLibraries {
		if host, ok := images.HostLibrary(name); ok {
			files = append(files, images.FromHost(images.LibraryPath(name), 0o755, host))
		}
	}
	if len(files) == len(loaderLibraries) {
		return files, nil
	}
	files, err := loadersFromArchive(work)
	if err != nil {
		return nil, fmt.Errorf("this host lacks some of %s (Debian: libegl1 libvulkan1 ocl-icd-libopencl1 libx11-6 libxext6), and %w: install them, or set NVIDIA_SHIM_GPU_IMAGES to what integration/gpu/pack made elsewhere",
			strings.Join(loaderLibraries, ", "), err)
	}
	return files, nil
}

// loadersFromArchive fetches loaderPackages and unpacks them below work.
func loadersFromArchive(work string) ([]images.File, error) {
	root, err := images.UnpackPackages(work, loaderPackages)
	if err != nil {
		return nil, err
	}
	libs, err := filepath.Glob(filepath.Join(root, "usr/lib/*/lib*.so.*"))
	if err != nil {
		return nil, err
	}
	byName := map[string]bool{}
	var files []images.File
	for _, lib := range libs {
		info, err := os.Lstat(lib)
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		name, err := soname(lib)
		if err != nil {
			return nil, err
		}
		byName[name] = true
		files = append(files, images.FromHost(images.LibraryPath(name), 0o755, lib))
	}
	for _, name := range loaderLibraries {
		if !byName[name] {
			return nil, fmt.Errorf("%s is in none of the packages %s", name, strings.Join(loaderPackages, " "))
		}
	}
	return files, nil
}

// soname is the name by which programs open a library.
func soname(path string) (string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	names, err := f.DynString(elf.DT_SONAME)
	if err == nil && len(names) == 0 {
		return filepath.Base(path), nil
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return names[0], nil
}

// WriteParts makes what a GPU host without compiler and network needs: the compiled
// programs in dir/programs and the image of graphics programs in dir/images.
func WriteParts(dir string) error {
	programs, tars := filepath.Join(dir, "programs"), filepath.Join(dir, "images")
	for _, d := range []string{programs, tars} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := Compile(programs); err != nil {
		return err
	}
	return writeGraphics(programs, filepath.Join(tars, graphicsTar))
}

// writeGraphics writes the image of graphics programs.
func writeGraphics(programs, tar string) error {
	work, err := os.MkdirTemp("", "nvgpu")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	image, err := GraphicsImage(programs, work)
	if err != nil {
		return err
	}
	return image.Write(tar)
}
