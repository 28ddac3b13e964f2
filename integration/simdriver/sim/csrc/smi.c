/*
 * The simulated nvidia-smi. Like the real one it links to nothing of the driver
 * and opens libnvidia-ml.so.1 by name, so it works exactly where the loader
 * finds the library; messages and exit codes are the real ones.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "start.h"

__asm__(".symver dlopen, dlopen@" FIRST_GLIBC);
__asm__(".symver dlsym, dlsym@" FIRST_GLIBC);

enum {
	EXIT_USAGE = 2,
	EXIT_NO_DEVICES = 6,
	EXIT_NO_DRIVER = 9,
	EXIT_NO_LIBRARY = 12,
	EXIT_OTHER = 255,
};

typedef struct device *nvmlDevice_t;

typedef struct {
	char busIdLegacy[16];
	unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
	char busId[32];
} nvmlPciInfo_t;

typedef struct {
	unsigned long long total, free, used;
} nvmlMemory_t;

static void *library;

/* find looks a function up, or ends the program as the real one does when the
 * library belongs to another driver. */
static void *find(const char *name)
{
	void *f = dlsym(library, name);

	if (!f) {
		printf("Failed to initialize NVML: Function Not Found\n");
		exit(EXIT_OTHER);
	}
	return f;
}

struct gpu {
	unsigned index, minor, max_mig;
	char name[96], uuid[96];
	nvmlPciInfo_t pci;
	nvmlMemory_t memory;
	nvmlDevice_t handle;
};

static void read_gpu(unsigned i, struct gpu *g)
{
	int (*handle)(unsigned, nvmlDevice_t *) = find("nvmlDeviceGetHandleByIndex_v2");
	int (*name)(nvmlDevice_t, char *, unsigned) = find("nvmlDeviceGetName");
	int (*uuid)(nvmlDevice_t, char *, unsigned) = find("nvmlDeviceGetUUID");
	int (*minor)(nvmlDevice_t, unsigned *) = find("nvmlDeviceGetMinorNumber");
	int (*pci)(nvmlDevice_t, nvmlPciInfo_t *) = find("nvmlDeviceGetPciInfo_v3");
	int (*memory)(nvmlDevice_t, nvmlMemory_t *) = find("nvmlDeviceGetMemoryInfo");
	int (*max)(nvmlDevice_t, unsigned *) = find("nvmlDeviceGetMaxMigDeviceCount");

	memset(g, 0, sizeof *g);
	g->index = i;
	if (handle(i, &g->handle) || name(g->handle, g->name, sizeof g->name) ||
	    uuid(g->handle, g->uuid, sizeof g->uuid) || minor(g->handle, &g->minor) ||
	    pci(g->handle, &g->pci) || memory(g->handle, &g->memory) || max(g->handle, &g->max_mig)) {
		printf("Unable to determine the device handle for GPU%u: Unknown Error\n", i);
		exit(EXIT_OTHER);
	}
}

/* list_mig prints the MIG devices of a GPU as `nvidia-smi -L` does. */
static void list_mig(const struct gpu *g)
{
	int (*handle)(nvmlDevice_t, unsigned, nvmlDevice_t *) = find("nvmlDeviceGetMigDeviceHandleByIndex");
	int (*name)(nvmlDevice_t, char *, unsigned) = find("nvmlDeviceGetName");
	int (*uuid)(nvmlDevice_t, char *, unsigned) = find("nvmlDeviceGetUUID");
	char n[96], u[96];
	nvmlDevice_t mig;
	unsigned i;

	for (i = 0; i < g->max_mig; i++) {
		if (handle(g->handle, i, &mig) || name(mig, n, sizeof n) || uuid(mig, u, sizeof u))
			continue;
		printf("  %-15s Device %2u: (UUID: %s)\n", strstr(n, "MIG") ? strstr(n, "MIG") : n, i, u);
	}
}

static void list(unsigned count)
{
	struct gpu g;
	unsigned i;

	for (i = 0; i < count; i++) {
		read_gpu(i, &g);
		printf("GPU %u: %s (UUID: %s)\n", g.index, g.name, g.uuid);
		list_mig(&g);
	}
}

/* print_field prints one field of --query-gpu, or returns 0 if it is unknown. */
static int print_field(const struct gpu *g, const char *field, const char *version)
{
	if (!strcmp(field, "index"))
		printf("%u", g->index);
	else if (!strcmp(field, "uuid") || !strcmp(field, "gpu_uuid"))
		printf("%s", g->uuid);
	else if (!strcmp(field, "pci.bus_id") || !strcmp(field, "gpu_bus_id"))
		printf("%s", g->pci.busId);
	else if (!strcmp(field, "name") || !strcmp(field, "gpu_name"))
		printf("%s", g->name);
	else if (!strcmp(field, "driver_version"))
		printf("%s", version);
	else if (!strcmp(field, "memory.total"))
		printf("%llu MiB", g->memory.total >> 20);
	else
		return 0;
	return 1;
}

static int query(unsigned count, const char *fields, int header, const char *version)
{
	char copy[512], *field;
	struct gpu g;
	unsigned i;

	if (header) {
		for (i = 0; fields[i]; i++)
			fields[i] == ',' ? (void)printf(", ") : (void)putchar(fields[i]);
		putchar('\n');
	}
	for (i = 0; i < count; i++) {
		read_gpu(i, &g);
		snprintf(copy, sizeof copy, "%s", fields);
		for (field = strtok(copy, ","); field; field = strtok(NULL, ",")) {
			if (field != copy)
				printf(", ");
			if (!print_field(&g, field, version)) {
				printf("Field \"%s\" is not a valid field to query.\n", field);
				return EXIT_USAGE;
			}
		}
		putchar('\n');
	}
	return 0;
}

static void table(unsigned count, const char *version, int cuda)
{
	const char *line = "+-----------------------------------------------------------------------------------------+\n";
	struct gpu g;
	unsigned i;

	printf("%s", line);
	printf("| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %d.%-5d |\n", version, version, cuda / 1000, cuda % 1000 / 10);
	printf("%s", line);
	for (i = 0; i < count; i++) {
		read_gpu(i, &g);
		printf("| %3u  %-39s  %16s  %6u MiB / %6llu MiB |\n", g.index, g.name, g.pci.busId, 0, g.memory.total >> 20);
	}
	printf("%s", line);
}

int main(int argc, char **argv)
{
	int (*init)(void), (*count)(unsigned *), (*driver)(char *, unsigned), (*cuda)(int *);
	const char *(*text)(int);
	const char *fields = NULL;
	char version[96];
	int i, rc, cuda_version, listing = 0, header = 1;
	unsigned n;

	for (i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "-L") || !strcmp(argv[i], "--list-gpus"))
			listing = 1;
		else if (!strncmp(argv[i], "--query-gpu=", 12))
			fields = argv[i] + 12;
		else if (!strcmp(argv[i], "--format=csv,noheader") || !strcmp(argv[i], "--format=csv,noheader,nounits"))
			header = 0;
		else if (strcmp(argv[i], "--format=csv")) {
			printf("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n");
			return EXIT_USAGE;
		}
	}
	library = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
	if (!library) {
		printf("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. "
		       "Please make sure that the NVIDIA Display Driver is properly installed and present in your system.\n"
		       "Please also try adding directory that contains libnvidia-ml.so to your system PATH.\n");
		return EXIT_NO_LIBRARY;
	}
	init = find("nvmlInit_v2");
	count = find("nvmlDeviceGetCount_v2");
	driver = find("nvmlSystemGetDriverVersion");
	cuda = find("nvmlSystemGetCudaDriverVersion_v2");
	text = find("nvmlErrorString");
	rc = init();
	if (rc == 9) {
		printf("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
		       "Make sure that the latest NVIDIA driver is installed and running.\n\n");
		return EXIT_NO_DRIVER;
	}
	if (rc || (rc = count(&n)) || (rc = driver(version, sizeof version)) || (rc = cuda(&cuda_version))) {
		printf("Failed to initialize NVML: %s\n", text(rc));
		return EXIT_OTHER;
	}
	if (n == 0) {
		printf("%s\n", listing ? "No devices found." : "No devices were found");
		return EXIT_NO_DEVICES;
	}
	if (listing)
		list(n);
	else if (fields)
		return query(n, fields, header, version);
	else
		table(n, version, cuda_version);
	return 0;
}
