/* The simulated libcuda: the part of the driver API that lists devices. */
#include "sim.h"

#define EXPORT __attribute__((visibility("default")))

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_OPERATING_SYSTEM = 304,
	CUDA_ERROR_UNKNOWN = 999,
};

typedef struct {
	char bytes[16];
} CUuuid;

static int initialized;
static unsigned seen[SIM_GPU_COUNT + 1], count;

EXPORT int cuInit(unsigned flags)
{
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_may_open("nvidiactl", O_RDWR))
		return CUDA_ERROR_NO_DEVICE;
	count = sim_visible(seen);
	if (count == 0)
		return CUDA_ERROR_NO_DEVICE;
	/* As seen of driver 580 under a filter of system calls. */
	if (unlink("/tmp/simulated-cuda") && errno == EPERM)
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (!sim_may_open("nvidia-uvm", O_RDWR))
		return CUDA_ERROR_UNKNOWN;
	initialized = 1;
	return CUDA_SUCCESS;
}

EXPORT int cuDriverGetVersion(int *version)
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = SIM_CUDA;
	return CUDA_SUCCESS;
}

EXPORT int cuDeviceGetCount(int *n)
{
	if (!initialized)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!n)
		return CUDA_ERROR_INVALID_VALUE;
	*n = (int)count;
	return CUDA_SUCCESS;
}

/* gpu finds the GPU of a device handle, which is its ordinal. */
static int gpu(int device, const struct sim_gpu **g)
{
	if (!initialized)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (device < 0 || (unsigned)device >= count)
		return CUDA_ERROR_INVALID_DEVICE;
	*g = &sim_gpus[seen[device]];
	return CUDA_SUCCESS;
}

EXPORT int cuDeviceGet(int *device, int ordinal)
{
	const struct sim_gpu *g;
	int rc = gpu(ordinal, &g);

	if (rc == CUDA_SUCCESS)
		*device = ordinal;
	return rc;
}

EXPORT int cuDeviceGetName(char *name, int len, int device)
{
	const struct sim_gpu *g;
	int rc = gpu(device, &g);

	if (rc == CUDA_SUCCESS)
		snprintf(name, (size_t)len, "%s", g->name);
	return rc;
}

static int nibble(char c)
{
	return c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
}

EXPORT int cuDeviceGetUuid_v2(CUuuid *uuid, int device)
{
	const struct sim_gpu *g;
	const char *s;
	int i, rc = gpu(device, &g);

	if (rc != CUDA_SUCCESS)
		return rc;
	for (s = g->uuid + 4, i = 0; i < 16; s += 2) { /* after "GPU-" */
		if (*s == '-')
			s++;
		uuid->bytes[i++] = (char)(nibble(s[0]) << 4 | nibble(s[1]));
	}
	return CUDA_SUCCESS;
}

EXPORT int cuDeviceGetUuid(CUuuid *uuid, int device)
{
	return cuDeviceGetUuid_v2(uuid, device);
}

EXPORT int cuDeviceGetPCIBusId(char *id, int len, int device)
{
	const struct sim_gpu *g;
	int rc = gpu(device, &g);

	if (rc == CUDA_SUCCESS)
		snprintf(id, (size_t)len, "%04X:%02X:%02X.0", g->domain, g->bus, g->device);
	return rc;
}

EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
	const struct sim_gpu *g;
	int rc = gpu(device, &g);

	if (rc == CUDA_SUCCESS)
		*bytes = (size_t)SIM_MEMORY;
	return rc;
}

/* cuDeviceGetAttribute knows the compute capability and nothing else. */
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	const struct sim_gpu *g;
	int rc = gpu(device, &g);

	if (rc != CUDA_SUCCESS)
		return rc;
	switch (attribute) {
	case 75:
		*value = g->major;
		return CUDA_SUCCESS;
	case 76:
		*value = g->minor_cc;
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_INVALID_VALUE;
}

static const struct {
	int code;
	const char *name, *text;
} errors[] = {
	{CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
	{CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	{CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

EXPORT int cuGetErrorString(int code, const char **text)
{
	unsigned i;

	for (i = 0; i < sizeof errors / sizeof errors[0]; i++)
		if (errors[i].code == code) {
			*text = errors[i].text;
			return CUDA_SUCCESS;
		}
	*text = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

EXPORT int cuGetErrorName(int code, const char **name)
{
	unsigned i;

	for (i = 0; i < sizeof errors / sizeof errors[0]; i++)
		if (errors[i].code == code) {
			*name = errors[i].name;
			return CUDA_SUCCESS;
		}
	*name = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

EXPORT const char *nvidia_sim_library(void)
{
	return "libcuda " SIM_VERSION;
}
