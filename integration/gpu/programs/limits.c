// Calls NVML's memory limits (driver 615) as they are, without the checks that the probe makes:
// limits <UUID> <cgroup> reads those of a cgroup, <soft> <hard> behind it sets them, in bytes. It
// prints NVML's return code and, if that is 0, what it has read. limits <UUID> prints the total
// memory of the GPU that NVML shows to this process.
#include "show.h"

int main(int argc, char **argv) {
	typedef struct { const char *cgroup; unsigned long long soft, hard, used; } limits_t;
	struct { unsigned version; unsigned long long total, reserved, free, used; } memory = {sizeof memory | 2 << 24, 0, 0, 0, 0};
	if (argc != 2 && argc != 3 && argc != 5) {
		printf("usage: limits <UUID> [<cgroup> [<soft> <hard>]]\n");
		return 2;
	}
	void *lib = open_library("libnvidia-ml.so.1"), *device = NULL;
	int code = ((int (*)(void))find(lib, "nvmlInit_v2"))();
	if (!code)
		code = ((int (*)(const char *, void **))find(lib, "nvmlDeviceGetHandleByUUID"))(argv[1], &device);
	if (code) {
		printf("no GPU %s: %d\n", argv[1], code);
		return 1;
	}
	limits_t l = {argc > 2 ? argv[2] : NULL, 0, 0, 0};
	if (argc == 2) {
		code = ((int (*)(void *, void *))find(lib, "nvmlDeviceGetMemoryInfo_v2"))(device, &memory);
		printf("%d %llu\n", code, memory.total);
	} else if (argc == 5) {
		l.soft = strtoull(argv[3], NULL, 10);
		l.hard = strtoull(argv[4], NULL, 10);
		printf("%d\n", ((int (*)(void *, limits_t *))find(lib, "nvmlDeviceSetMemoryLimits_v1"))(device, &l));
	} else {
		code = ((int (*)(void *, limits_t *))find(lib, "nvmlDeviceGetMemoryLimits_v1"))(device, &l);
		printf("%d", code);
		if (!code)
			printf(" soft %llu hard %llu used %llu", l.soft, l.hard, l.used);
		printf("\n");
	}
	((int (*)(void))find(lib, "nvmlShutdown"))();
	return 0;
}
