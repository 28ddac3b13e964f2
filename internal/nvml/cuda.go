//go:build cgo

package nvml

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

// 75 and 76 are CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
enum { MAJOR = 75, MINOR = 76 };

static int version(void *lib, int *out) {
	int (*get)(int *) = (int (*)(int *))dlsym(lib, "cuDriverGetVersion");
	return get ? get(out) : -1;
}

// count starts the driver and counts its GPUs.
static int count(void *lib, int *out) {
	int (*init)(unsigned) = (int (*)(unsigned))dlsym(lib, "cuInit");
	int (*get)(int *) = (int (*)(int *))dlsym(lib, "cuDeviceGetCount");
	int rc = init ? init(0) : -1;
	return rc ? rc : get ? get(out) : -1;
}

static int capability(void *lib, int gpu, int *major, int *minor) {
	int (*get)(int *, int, int) = (int (*)(int *, int, int))dlsym(lib, "cuDeviceGetAttribute");
	int rc = get ? get(major, MAJOR, gpu) : -1;
	return rc ? rc : get(minor, MINOR, gpu);
}
*/
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
)

// cudaFacts returns what libcuda knows of the host, as NVIDIA's stack asks it on a Tegra. Without a
// GPU that starts, the version of CUDA is still known.
func cudaFacts(host config.Host) (f device.Facts, err error) {
	path, err := libraryPath(host, cudaName)
	if err == nil {
		err = isolated(host, func() error {
			f, err = readCUDA(path)
			return err
		})
	}
	return f, err
}

func readCUDA(path string) (device.Facts, error) {
	f := device.Facts{CUDAOnly: true, GPUs: []device.GPUFacts{}}
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	lib := C.dlopen(name, C.RTLD_LAZY)
	if lib == nil {
		return f, fmt.Errorf("load libcuda: %s", C.GoString(C.dlerror()))
	}
	var cuda, count, major, minor C.int
	if rc := C.version(lib, &cuda); rc != 0 {
		return f, fmt.Errorf("libcuda cannot tell the CUDA version: error %d (%s)", rc, path)
	}
	f.CUDA = cudaVersion(int(cuda))
	if C.count(lib, &count) != 0 {
		return f, nil
	}
	for i := range int(count) {
		g := device.GPUFacts{Index: i, Instances: []device.InstanceFacts{}}
		if C.capability(lib, C.int(i), &major, &minor) == 0 {
			g.Arch = fmt.Sprintf("%d.%d", major, minor)
		}
		f.GPUs = append(f.GPUs, g)
	}
	return f, nil
}
