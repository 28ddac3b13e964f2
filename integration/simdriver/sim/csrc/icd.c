/* The driver's end of the loaders: what libvulkan, libEGL, libOpenCL, libvdpau and
 * libgbm ask a driver for once they have found its library. With NVIDIA_SIM_TRACE in
 * the environment each call says on standard error which library was found; no device
 * is ever listed. One source for several libraries: a loader asks for its own names. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static void say(const char *call)
{
	static const char prefix[] = SIM_LIBRARY " " SIM_VERSION " ";

	if (!getenv("NVIDIA_SIM_TRACE"))
		return;
	if (write(2, prefix, sizeof(prefix) - 1) < 0 || write(2, call, strlen(call)) < 0 || write(2, "\n", 1) < 0)
		return;
}

EXPORT const char *nvidia_sim_library(void)
{
	return getenv("NVIDIA_SIM_QUIET") ? "" : SIM_LIBRARY " " SIM_VERSION;
}

/* Vulkan: the loader's LoaderDriverInterface.md. */
EXPORT int vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t *version)
{
	say("vulkan driver");
	if (*version > 5)
		*version = 5;
	return 0;
}

static int create_instance(const void *info, const void *allocator, void **instance)
{
	(void)info, (void)allocator, (void)instance;
	say("vkCreateInstance");
	return -9; /* VK_ERROR_INCOMPATIBLE_DRIVER */
}

static int enumerate_version(uint32_t *version)
{
	*version = 1 << 22 | 4 << 12;
	return 0;
}

static int enumerate_nothing(const char *layer, uint32_t *count, void *list)
{
	(void)layer, (void)list;
	*count = 0;
	return 0;
}

EXPORT void *vk_icdGetInstanceProcAddr(void *instance, const char *name)
{
	(void)instance;
	if (strcmp(name, "vkCreateInstance") == 0)
		return (void *)create_instance;
	if (strcmp(name, "vkEnumerateInstanceVersion") == 0)
		return (void *)enumerate_version;
	if (strcmp(name, "vkEnumerateInstanceExtensionProperties") == 0)
		return (void *)enumerate_nothing;
	return NULL;
}

EXPORT void *vkGetInstanceProcAddr(void *instance, const char *name)
{
	return vk_icdGetInstanceProcAddr(instance, name);
}

/* EGL: libeglabi.h of libglvnd. Zero refuses the loader. */
EXPORT unsigned int __egl_Main(uint32_t version, const void *exports, void *vendor, void *imports)
{
	(void)version, (void)exports, (void)vendor, (void)imports;
	say("EGL vendor");
	return 0;
}

/* OpenCL: the extension cl_khr_icd. */
static int platforms(uint32_t entries, void *list, uint32_t *count)
{
	(void)entries, (void)list;
	say("OpenCL platform");
	if (count)
		*count = 0;
	return -1001; /* CL_PLATFORM_NOT_FOUND_KHR */
}

static int platform_info(void *platform, uint32_t name, size_t size, void *value, size_t *needed)
{
	(void)platform, (void)name, (void)size, (void)value, (void)needed;
	return -32; /* CL_INVALID_PLATFORM */
}

EXPORT void *clGetExtensionFunctionAddress(const char *name)
{
	if (strcmp(name, "clIcdGetPlatformIDsKHR") == 0)
		return (void *)platforms;
	if (strcmp(name, "clGetPlatformInfo") == 0)
		return (void *)platform_info;
	return NULL;
}

EXPORT int clGetPlatformInfo(void *platform, uint32_t name, size_t size, void *value, size_t *needed)
{
	return platform_info(platform, name, size, value, needed);
}

/* VDPAU: vdpau_x11.h. */
EXPORT int vdp_imp_device_create_x11(void *display, int screen, uint32_t *device, void **get)
{
	(void)display, (void)screen, (void)device, (void)get;
	say("VDPAU driver");
	return 1; /* VDP_STATUS_NO_IMPLEMENTATION */
}

/* GBM: gbm_backend_abi.h of Mesa. */
static void *create_device(int fd, uint32_t version)
{
	(void)fd, (void)version;
	say("GBM device");
	return NULL;
}

EXPORT const void *gbmint_get_backend(const void *core)
{
	static const struct {
		uint32_t version;
		const char *name;
		void *(*create)(int, uint32_t);
	} backend = {0, "nvidia-drm", create_device};

	(void)core;
	say("GBM backend");
	return &backend;
}
