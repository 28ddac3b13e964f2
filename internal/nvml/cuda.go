//go:build cgo

package nvml

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

static int init(void *lib) {
	int (*call)(unsigned) = (int (*)(unsigned))dlsym(lib, "cuInit");
	return call ? call(0) : -1;
}

static int get(void *lib, const char *name, int *out) {
	int (*call)(int *) = (int (*)(int *))dlsym(lib, name);
	return call ? call(out) : -1;
}

static int version(void *lib, int *out) { return get(lib, "cuDriverGetVersion", out); }
static int count(void *lib, int *out) { return get(lib, "cuDeviceGetCount", out); }

// attribute 75 is CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 76 _MINOR.
static int attribute(void *lib, int which, int gpu, int *out) {
	int (*call)(int *, int, int) = (int (*)(int *, int, int))dlsym(lib, "cuDeviceGetAttribute");
	return call ? call(out, which, gpu) : -1;
}
*/
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
)

// cudaFacts returns what libcuda knows about the host, which NVIDIA's stack asks on a Tegra. If no
// GPU starts, the version of CUDA is still known. cuInit removes a file that it made, and fails if
// it cannot (driver 580).
func cudaFacts(host config.Host) (f device.Facts, err error) {
	path, err := libraryPath(host, cudaName)
	if err == nil {
		err = isolated(host, unlink, func() error {
			f, err = readCUDA(path)
			return err
		})
	}
	return f, err
}

func openCUDA(path string) (unsafe.Pointer, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	lib := C.dlopen(name, C.RTLD_LAZY)
	if lib == nil {
		return nil, fmt.Errorf("load libcuda: %s", C.GoString(C.dlerror()))
	}
	return lib, nil
}

func readCUDA(path string) (device.Facts, error) {
	f := device.Facts{CUDAOnly: true, GPUs: []device.GPUFacts{}}
	lib, err := openCUDA(path)
	if err != nil {
		return f, err
	}
	var cuda, count, major, minor C.int
	if rc := C.version(lib, &cuda); rc != 0 {
		return f, fmt.Errorf("libcuda does not report the CUDA version: error %d (%s)", rc, path)
	}
	f.CUDA = cudaVersion(int(cuda))
	if C.init(lib) != 0 || C.count(lib, &count) != 0 {
		return f, nil
	}
	for i := range int(count) {
		g := device.GPUFacts{Index: i, Instances: []device.InstanceFacts{}}
		if C.attribute(lib, 75, C.int(i), &major) == 0 && C.attribute(lib, 76, C.int(i), &minor) == 0 {
			g.Arch = fmt.Sprintf("%d.%d", major, minor)
		}
		f.GPUs = append(f.GPUs, g)
	}
	return f, nil
}

// cudaVersion turns 13000 into "13.0" (nvml.h, NVML_CUDA_DRIVER_VERSION_MAJOR).
func cudaVersion(n int) string { return fmt.Sprintf("%d.%d", n/1000, n%1000/10) }
