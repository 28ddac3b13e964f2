/*
 * cucount: loads libcuda.so.1 as a CUDA program does and prints
 *
 *	libcuda <path of the file that was loaded>
 *	driver <cuDriverGetVersion>
 *	count <cuDeviceGetCount>
 *	<ordinal> GPU-<uuid>          one line for each device
 *
 * A failing call prints "<call> <number>" and ends the program with 1.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>

static void *handle;

static int missing(const char *name)
{
	printf("%s absent\n", name);
	return 1;
}

static int failed(const char *name, int result)
{
	printf("%s %d\n", name, result);
	return 1;
}

static void print_uuid(int ordinal, const unsigned char *b)
{
	int i;

	printf("%d GPU-", ordinal);
	for (i = 0; i < 16; i++)
		printf("%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", b[i]);
	printf("\n");
}

int main(void)
{
	int (*init)(unsigned int), (*version)(int *), (*count)(int *), (*get)(int *, int), (*uuid)(void *, int);
	struct link_map *map = NULL;
	unsigned char bytes[16];
	int result, n = 0, i, device;

	handle = dlopen("libcuda.so.1", RTLD_NOW);
	if (!handle) {
		printf("libcuda %s\n", dlerror());
		return 1;
	}
	if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map)
		printf("libcuda %s\n", map->l_name);
	version = (int (*)(int *))dlsym(handle, "cuDriverGetVersion");
	if (!version)
		return missing("cuDriverGetVersion");
	if ((result = version(&n)) != 0)
		return failed("cuDriverGetVersion", result);
	printf("driver %d\n", n);
	init = (int (*)(unsigned int))dlsym(handle, "cuInit");
	if (!init)
		return missing("cuInit");
	if ((result = init(0)) != 0)
		return failed("cuInit", result);
	count = (int (*)(int *))dlsym(handle, "cuDeviceGetCount");
	if (!count)
		return missing("cuDeviceGetCount");
	if ((result = count(&n)) != 0)
		return failed("cuDeviceGetCount", result);
	printf("count %d\n", n);
	get = (int (*)(int *, int))dlsym(handle, "cuDeviceGet");
	/* The second version tells MIG instances apart. */
	uuid = (int (*)(void *, int))dlsym(handle, "cuDeviceGetUuid_v2");
	if (!uuid)
		uuid = (int (*)(void *, int))dlsym(handle, "cuDeviceGetUuid");
	if (!get || !uuid)
		return n ? missing("cuDeviceGetUuid") : 0;
	for (i = 0; i < n; i++) {
		if ((result = get(&device, i)) != 0)
			return failed("cuDeviceGet", result);
		if ((result = uuid(bytes, device)) != 0)
			return failed("cuDeviceGetUuid", result);
		print_uuid(i, bytes);
	}
	return 0;
}
