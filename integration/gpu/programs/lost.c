// A library to preload into the program that asks NVML: the GPU of index $LOST is lost.
#include <dlfcn.h>
#include <stdlib.h>

#define GPU_IS_LOST 15

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
	const char *lost = getenv("LOST");
	if (lost && strtoul(lost, NULL, 10) == index)
		return GPU_IS_LOST;
	void *nvml = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD);
	int (*call)(unsigned, void **) = (int (*)(unsigned, void **))dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
	return call(index, device);
}
