/*
 * What the simulated libcuda and libnvidia-ml share: the table of GPUs, given by
 * the compiler's command line, and the question whether a node may be opened.
 *
 * Only functions that glibc 2.17 and musl have are used: these files are loaded
 * in the oldest and the smallest images.
 */
#ifndef SIM_H
#define SIM_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define SIM_MIG_PROFILE "1g.18gb"
#define SIM_MEMORY (143771ULL << 20)
#define SIM_MIG_MEMORY (16384ULL << 20)
#define SIM_MAX_MIG 7 /* per GPU, as NVML reports for every GPU that has MIG */

struct sim_gpu {
	const char *uuid;
	unsigned domain, bus, device, minor;
	int mig; /* MIG mode enabled */
	unsigned brand;
	int major, minor_cc; /* compute capability */
	const char *name;
};

struct sim_mig {
	unsigned gpu; /* position in sim_gpus */
	unsigned gi, ci;
	unsigned gi_minor, ci_minor; /* of the capability nodes */
	const char *uuid;
};

static const struct sim_gpu sim_gpus[] = {SIM_GPUS};
static const struct sim_mig sim_migs[] = {SIM_MIGS{0}};

#define SIM_GPU_COUNT ((unsigned)(sizeof sim_gpus / sizeof sim_gpus[0]))
#define SIM_MIG_COUNT ((unsigned)(sizeof sim_migs / sizeof sim_migs[0]) - 1)

/* sim_path names a file below /dev; it returns whether it fits. */
static int sim_path(char *path, size_t size, const char *name)
{
	const char *dev = getenv("NVIDIA_SIM_DEV");
	int n = snprintf(path, size, "%s/%s", dev && *dev ? dev : "/dev", name);

	return n >= 0 && n < (int)size;
}

/*
 * sim_may_open says whether this process may open a device node. No driver is
 * behind the nodes, so the kernel answers ENXIO once the file permissions and
 * the device cgroup have agreed; EPERM, EACCES and ENOENT mean no. Whatever
 * opens is closed at once and never sent a request.
 */
static int sim_may_open(const char *name, int flags)
{
	char path[512];
	int fd;

	if (!sim_path(path, sizeof path, name))
		return 0;
	fd = open(path, flags | O_CLOEXEC);
	if (fd >= 0) {
		close(fd);
		return 1;
	}
	return errno == ENXIO;
}

static int sim_may_open_gpu(const struct sim_gpu *g)
{
	char name[32];

	snprintf(name, sizeof name, "nvidia%u", g->minor);
	return sim_may_open(name, O_RDWR);
}

/* sim_visible fills seen with the positions of the GPUs that may be opened, in
 * the order of their PCI bus ids, and returns how many there are. */
static unsigned sim_visible(unsigned *seen)
{
	unsigned i, n = 0;

	for (i = 0; i < SIM_GPU_COUNT; i++)
		if (sim_may_open_gpu(&sim_gpus[i]))
			seen[n++] = i;
	return n;
}

#endif
