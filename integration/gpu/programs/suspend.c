// Suspends or resumes a process by hand:
//
//	suspend suspend|resume <pid> [<old GPU>=<new GPU>]...
//
// The pairs are UUIDs as nvidia-smi prints them; they move what the process has on its GPUs to
// others. Prints the result and the milliseconds of each call.
#include <ctype.h>
#include <stdint.h>
#include <time.h>

#include "show.h"

struct pair {
	unsigned char from[16], to[16];
};

// args has the layout of CUcheckpointRestoreArgs; the other calls take 64 zero bytes.
static struct {
	struct pair *pairs;
	unsigned count;
	char zero[52];
} args;

static void *cuda;

static int timed(const char *name, int pid) {
	char symbol[64];
	struct timespec a, b;
	snprintf(symbol, sizeof symbol, "cuCheckpointProcess%s", name);
	int (*call)(int, void *) = (int (*)(int, void *))find(cuda, symbol);
	clock_gettime(CLOCK_MONOTONIC, &a);
	int rc = call(pid, &args);
	clock_gettime(CLOCK_MONOTONIC, &b);
	printf("%s %d: %.0f ms\n", name, rc, (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6);
	args.pairs = NULL;
	args.count = 0;
	return rc;
}

// parse_uuid reads a UUID such as GPU-1e55f5ed-..., and returns where it ends.
static const char *parse_uuid(const char *text, unsigned char uuid[16]) {
	text += strncmp(text, "GPU-", 4) ? 0 : 4;
	for (int digits = 0; digits < 32; text++) {
		if (*text == '-')
			continue;
		if (!isxdigit((unsigned char)*text)) {
			printf("no UUID: %s\n", text);
			exit(2);
		}
		int value = isdigit((unsigned char)*text) ? *text - '0' : tolower((unsigned char)*text) - 'a' + 10;
		uuid[digits / 2] = (unsigned char)(uuid[digits / 2] << 4 | value);
		digits++;
	}
	return text;
}

int main(int argc, char **argv) {
	if (argc < 3) {
		printf("usage: suspend suspend|resume <pid> [<old GPU>=<new GPU>]...\n");
		return 2;
	}
	int pid = atoi(argv[2]);
	args.count = (unsigned)(argc - 3);
	args.pairs = args.count ? calloc(args.count, sizeof *args.pairs) : NULL;
	for (unsigned i = 0; i < args.count; i++)
		parse_uuid(parse_uuid(argv[3 + i], args.pairs[i].from) + 1, args.pairs[i].to);
	cuda = open_library("libcuda.so.1");
	if (((int (*)(unsigned))find(cuda, "cuInit"))(0)) {
		printf("cuInit failed\n");
		return 1;
	}
	if (!strcmp(argv[1], "suspend"))
		return timed("Lock", pid) || timed("Checkpoint", pid);
	return timed("Restore", pid) || timed("Unlock", pid);
}
