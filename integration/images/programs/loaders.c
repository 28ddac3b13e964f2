/*
 * loaders: asks the loaders of the image for drivers, as programs do, and prints one
 * line for each: "<loader> <result of the call>" or "<loader> <the linker's message>".
 * What drivers are found is for them to say, and for the loaders' own debug output.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void *find(const char *loader, const char *library, const char *function)
{
	void *handle = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
	void *address = handle ? dlsym(handle, function) : NULL;

	if (!address)
		printf("%s %s\n", loader, dlerror());
	return address;
}

int main(void)
{
	struct {
		int type;
		const void *next;
		uint32_t flags;
		const void *application;
		uint32_t layers;
		const void *layer_names;
		uint32_t extensions;
		const void *extension_names;
	} instance_info = {1, NULL, 0, NULL, 0, NULL, 0, NULL}; /* VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO */
	void *instance = NULL, *get = NULL, *(*address)(const char *);
	int (*vulkan)(const void *, const void *, void **), (*opencl)(uint32_t, void *, uint32_t *);
	int (*vdpau)(void *, int, uint32_t *, void **), (*devices)(int32_t, void *, int32_t *);
	void *(*gbm)(int);
	uint32_t n = 0, device = 0;
	int32_t count = 0;

	setenv("VDPAU_DRIVER", "nvidia", 1);	 /* instead of asking an X server */
	setenv("GBM_BACKEND", "nvidia-drm", 1); /* instead of asking a DRM node */
	setvbuf(stdout, NULL, _IOLBF, 0);
	if ((vulkan = find("vulkan", "libvulkan.so.1", "vkCreateInstance")))
		printf("vulkan %d\n", vulkan(&instance_info, NULL, &instance));
	if ((address = find("egl", "libEGL.so.1", "eglGetProcAddress"))) {
		devices = (int (*)(int32_t, void *, int32_t *))address("eglQueryDevicesEXT");
		printf("egl %d\n", devices ? devices(0, NULL, &count) : -1);
	}
	if ((opencl = find("opencl", "libOpenCL.so.1", "clGetPlatformIDs")))
		printf("opencl %d\n", opencl(0, NULL, &n));
	if ((vdpau = find("vdpau", "libvdpau.so.1", "vdp_device_create_x11")))
		printf("vdpau %d\n", vdpau(NULL, 0, &device, &get));
	if ((gbm = find("gbm", "libgbm.so.1", "gbm_create_device")))
		printf("gbm %p\n", gbm(open("/dev/null", O_RDWR)));
	return 0;
}
