// Suspends or resumes a process by hand: suspend suspend|resume <pid>. Prints the
// milliseconds of each call.
#include <time.h>

#include "show.h"

static void *cuda;

static int timed(const char *name, int pid) {
	char symbol[64];
	struct timespec a, b;
	unsigned long long args[8] = {0};
	snprintf(symbol, sizeof symbol, "cuCheckpointProcess%s", name);
	int (*call)(int, void *) = (int (*)(int, void *))find(cuda, symbol);
	clock_gettime(CLOCK_MONOTONIC, &a);
	int rc = call(pid, args);
	clock_gettime(CLOCK_MONOTONIC, &b);
	printf("%s %d: %.0f ms\n", name, rc, (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6);
	return rc;
}

int main(int argc, char **argv) {
	if (argc != 3) {
		printf("usage: suspend suspend|resume <pid>\n");
		return 2;
	}
	int pid = atoi(argv[2]);
	cuda = open_library("libcuda.so.1");
	if (((int (*)(unsigned))find(cuda, "cuInit"))(0)) {
		printf("cuInit failed\n");
		return 1;
	}
	if (!strcmp(argv[1], "suspend"))
		return timed("Lock", pid) || timed("Checkpoint", pid);
	return timed("Restore", pid) || timed("Unlock", pid);
}
