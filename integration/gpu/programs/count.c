// Counts on a GPU for ever: count <MiB> [<device>], on device 0 if none is named. Each 32-bit word of
// the memory has its place as value at first and is one more after each pass, which checks all of them.
// After each pass it prints "passed N", or "WRONG" and ends.
#include <stdint.h>
#include <unistd.h>

#include "show.h"

#define CALL(name, type, ...) do { \
	int r_ = ((int(*)type)find(cuda, name))(__VA_ARGS__); \
	if (r_) { printf("%s failed: %d\n", name, r_); return 1; } } while (0)

int main(int argc, char **argv) {
	enum { WORDS = 1 << 18 }; // a MiB
	static uint32_t chunk[WORDS];
	void *cuda, *context = NULL;
	int device = argc > 2 ? atoi(argv[2]) : 0;
	unsigned long long memory = 0;
	if (argc < 2) {
		printf("usage: count <MiB> [<device>]\n");
		return 2;
	}
	size_t mib = (size_t)atol(argv[1]);
	cuda = open_library("libcuda.so.1");
	CALL("cuInit", (unsigned), 0);
	CALL("cuDeviceGet", (int *, int), &device, device);
	CALL("cuDevicePrimaryCtxRetain", (void **, int), &context, device);
	CALL("cuCtxSetCurrent", (void *), context);
	CALL("cuMemAlloc_v2", (unsigned long long *, size_t), &memory, mib << 20);
	for (uint32_t pass = 0;; pass++) {
		for (size_t k = 0; k < mib; k++) {
			unsigned long long at = memory + (k << 20);
			if (pass)
				CALL("cuMemcpyDtoH_v2", (void *, unsigned long long, size_t), chunk, at, sizeof chunk);
			for (size_t i = 0; i < WORDS; i++) {
				uint32_t want = (uint32_t)(k * WORDS + i) + pass;
				if (pass && chunk[i] != want) {
					printf("WRONG: word %zu of MiB %zu is %u, not %u, in pass %u\n", i, k, chunk[i], want, pass);
					return 1;
				}
				chunk[i] = want + 1;
			}
			CALL("cuMemcpyHtoD_v2", (unsigned long long, const void *, size_t), at, chunk, sizeof chunk);
		}
		printf("passed %u\n", pass);
		fflush(stdout);
		usleep(1000);
	}
}
