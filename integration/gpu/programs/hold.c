// Allocates memory on the first GPU and holds it: hold <MiB> <seconds>. Says so in a
// line when it has the memory, for a test that looks at the GPU meanwhile. With BUSY in
// the environment, one kernel after the other keeps the GPU busy, each for 0.1 s.
#include <time.h>
#include <unistd.h>

#include "show.h"

#define CALL(name, type, ...) do { \
	int r_ = ((int(*)type)find(cuda, name))(__VA_ARGS__); \
	if (r_) { printf("%s failed: %d\n", name, r_); return 1; } } while (0)

static const char ptx[] =
	".version 7.0\n.target sm_52\n.address_size 64\n"
	".visible .entry spin() {\n"
	".reg .pred %p; .reg .u64 %d<4>;\n"
	"mov.u64 %d1, %globaltimer;\n"
	"more: mov.u64 %d2, %globaltimer; sub.u64 %d3, %d2, %d1;\n"
	"setp.lt.u64 %p, %d3, 100000000; @%p bra more;\n"
	"ret;\n}\n";

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
	void *module = NULL, *spin = NULL;
	CALL("cuModuleLoadData", (void **, const void *), &module, ptx);
	CALL("cuModuleGetFunction", (void **, void *, const char *), &spin, module, "spin");
	CALL("cuCtxSynchronize", (void));
	printf("holding %zu bytes\n", size);
	fflush(stdout);
	if (!getenv("BUSY")) {
		sleep((unsigned)atoi(argv[2]));
		return 0;
	}
	for (time_t end = time(NULL) + atoi(argv[2]); time(NULL) < end;) {
		CALL("cuLaunchKernel", (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **),
		     spin, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
		CALL("cuCtxSynchronize", (void));
	}
	return 0;
}
