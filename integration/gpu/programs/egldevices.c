// Lists the EGL devices, one line each, initializes each and has it clear a buffer
// of 16 by 16 pixels: no window system is needed. Only libEGL.so.1, the vendor
// neutral one, is opened by name; it finds NVIDIA's by its vendor file.
//
// Types and numbers are those of the EGL registry: EGL 1.5, EXT_device_enumeration,
// EXT_device_query, EXT_device_persistent_id, EXT_platform_device, NV_device_cuda.
#include <stdint.h>

#include "show.h"

typedef unsigned Bool;
typedef int Int;
typedef void *Device, *Display, *Config, *Context, *Surface;

enum {
	EGL_EXTENSIONS = 0x3055, EGL_VENDOR = 0x3053, EGL_NONE = 0x3038, EGL_SURFACE_TYPE = 0x3033, EGL_PBUFFER_BIT = 1,
	EGL_RENDERABLE_TYPE = 0x3040, EGL_OPENGL_ES2_BIT = 4, EGL_OPENGL_ES_API = 0x30A0, EGL_CONTEXT_CLIENT_VERSION = 0x3098,
	EGL_HEIGHT = 0x3056, EGL_WIDTH = 0x3057, EGL_RED_SIZE = 0x3024, EGL_GREEN_SIZE = 0x3023, EGL_BLUE_SIZE = 0x3022,
	EGL_PLATFORM_DEVICE_EXT = 0x313F, EGL_CUDA_DEVICE_NV = 0x323A, EGL_DRM_DEVICE_FILE_EXT = 0x3233, EGL_DEVICE_UUID_EXT = 0x335C,
	GL_COLOR_BUFFER_BIT = 0x4000, GL_RGBA = 0x1908, GL_UNSIGNED_BYTE = 0x1401, GL_RENDERER = 0x1F01,
};

static void *egl;
static void *(*proc)(const char *);

// ext is an extension's function, or the end.
static void *ext(const char *name) {
	void *p = proc(name);
	if (!p) {
		printf("no function %s\n", name);
		exit(1);
	}
	return p;
}

static int error(void) { return ((Int(*)(void))find(egl, "eglGetError"))(); }

// draw has the device clear a buffer and reads one pixel of it back.
static void draw(Display display) {
	static const Int wanted[] = {EGL_SURFACE_TYPE, EGL_PBUFFER_BIT, EGL_RENDERABLE_TYPE, EGL_OPENGL_ES2_BIT,
	                             EGL_RED_SIZE, 8, EGL_GREEN_SIZE, 8, EGL_BLUE_SIZE, 8, EGL_NONE};
	static const Int size[] = {EGL_WIDTH, 16, EGL_HEIGHT, 16, EGL_NONE};
	static const Int version[] = {EGL_CONTEXT_CLIENT_VERSION, 2, EGL_NONE};
	Config config;
	Int count = 0;
	((Bool(*)(unsigned))find(egl, "eglBindAPI"))(EGL_OPENGL_ES_API);
	if (!((Bool(*)(Display, const Int *, Config *, Int, Int *))find(egl, "eglChooseConfig"))(display, wanted, &config, 1, &count) || count < 1) {
		printf(" draw: no configuration (0x%x)", error());
		return;
	}
	Surface surface = ((Surface(*)(Display, Config, const Int *))find(egl, "eglCreatePbufferSurface"))(display, config, size);
	Context context = ((Context(*)(Display, Config, Context, const Int *))find(egl, "eglCreateContext"))(display, config, NULL, version);
	if (!surface || !context || !((Bool(*)(Display, Surface, Surface, Context))find(egl, "eglMakeCurrent"))(display, surface, surface, context)) {
		printf(" draw: no context (0x%x)", error());
		return;
	}
	unsigned char pixel[4] = {0};
	((void (*)(float, float, float, float))ext("glClearColor"))(0, 1, 0, 1);
	((void (*)(unsigned))ext("glClear"))(GL_COLOR_BUFFER_BIT);
	((void (*)(Int, Int, Int, Int, unsigned, unsigned, void *))ext("glReadPixels"))(8, 8, 1, 1, GL_RGBA, GL_UNSIGNED_BYTE, pixel);
	const unsigned char *renderer = ((const unsigned char *(*)(unsigned))ext("glGetString"))(GL_RENDERER);
	printf(" draw %s by \"%s\"", pixel[0] == 0 && pixel[1] == 255 && pixel[2] == 0 ? "ok" : "WRONG", renderer ? (const char *)renderer : "");
	((Bool(*)(Display, Surface, Surface, Context))find(egl, "eglMakeCurrent"))(display, NULL, NULL, NULL);
}

int main(void) {
	egl = open_library("libEGL.so.1");
	proc = (void *(*)(const char *))find(egl, "eglGetProcAddress");
	const char *(*string)(Device, Int) = (const char *(*)(Device, Int))ext("eglQueryDeviceStringEXT");
	Bool (*attribute)(Device, Int, intptr_t *) = (Bool(*)(Device, Int, intptr_t *))ext("eglQueryDeviceAttribEXT");
	Device devices[64];
	Int count = 0;
	if (!((Bool(*)(Int, Device *, Int *))ext("eglQueryDevicesEXT"))(64, devices, &count)) {
		printf("eglQueryDevicesEXT failed: 0x%x\n", error());
		return 1;
	}
	printf("count %d\n", count);
	for (Int k = 0; k < count; k++) {
		printf("device %d ", k);
		const char *extensions = string(devices[k], EGL_EXTENSIONS);
		if (!extensions)
			extensions = "";
		unsigned char uuid[16];
		Int size = 0;
		intptr_t cuda;
		// glvnd has the entry point also where no vendor serves it.
		if (strstr(extensions, "EGL_EXT_device_persistent_id") &&
		    ((Bool(*)(Device, Int, Int, void *, Int *))ext("eglQueryDeviceBinaryEXT"))(devices[k], EGL_DEVICE_UUID_EXT, sizeof uuid, uuid, &size) && size == sizeof uuid)
			show_uuid(uuid);
		else
			printf("no-uuid");
		if (strstr(extensions, "EGL_NV_device_cuda") && attribute(devices[k], EGL_CUDA_DEVICE_NV, &cuda))
			printf(" cuda %ld", (long)cuda);
		if (strstr(extensions, "EGL_EXT_device_drm")) {
			const char *drm = string(devices[k], EGL_DRM_DEVICE_FILE_EXT);
			printf(" drm %s", drm ? drm : "-");
		}
		Display display = ((Display(*)(unsigned, void *, const Int *))ext("eglGetPlatformDisplayEXT"))(EGL_PLATFORM_DEVICE_EXT, devices[k], NULL);
		Int major = 0, minor = 0;
		if (!display || !((Bool(*)(Display, Int *, Int *))find(egl, "eglInitialize"))(display, &major, &minor)) {
			printf(" initialize failed: 0x%x\n", error());
			continue;
		}
		const char *vendor = ((const char *(*)(Display, Int))find(egl, "eglQueryString"))(display, EGL_VENDOR);
		printf(" initialized %d.%d vendor \"%s\"", major, minor, vendor ? vendor : "");
		draw(display);
		printf("\n");
		((Bool(*)(Display))find(egl, "eglTerminate"))(display);
		fflush(stdout);
	}
	return 0;
}
