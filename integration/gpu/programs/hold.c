// Allocates memory on the first GPU and holds it: hold <MiB> <seconds>. Says so in a
// line when it has the memory, for a test that looks at the GPU meanwhile.
#include <unistd.h>

#include "show.h"

#define CALL(name, type, ...) do { \
	int r_ = ((int(*)type)find(cuda, name))(__VA_ARGS__); \
	if (r_) { printf("%s failed: %d\n", name, r_); return 1; } } while (0)

int main(int argc, char **argv) {
	if (argc != 3) {
		printf("usage: hold <MiB> <seconds>\n");
		return 2;
	}
	size_t size = (size_t)atol(argv[1]) << 20;
	void *cuda = open_library("libcuda.so.1");
	int device = 0;
	void *context = NULL;
	unsigned long long memory = 0;
	CALL("cuInit", (unsigned), 0);
	CALL("cuDeviceGet", (int *, int), &device, 0);
	CALL("cuDevicePrimaryCtxRetain", (void **, int), &context, device);
	CALL("cuCtxSetCurrent", (void *), context);
	CALL("cuMemAlloc_v2", (unsigned long long *, size_t), &memory, size);
	CALL("cuMemsetD8_v2", (unsigned long long, unsigned char, size_t), memory, 1, size);
	CALL("cuCtxSynchronize", (void));
	printf("holding %zu bytes\n", size);
	fflush(stdout);
	sleep((unsigned)atoi(argv[2]));
	return 0;
}
