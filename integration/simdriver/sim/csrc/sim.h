/*
 * What the simulated libcuda and libnvidia-ml share: the table of GPUs, given by
 * the compiler's command line, and the question whether a node may be opened.
 *
 * Only functions that glibc 2.17 and musl have are used: these files are loaded
 * in the oldest and the smallest images.
 */
#ifndef SIM_H
#define SIM_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
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

/* sim_memory is the size of a GPU in bytes, which a test may have made smaller. */
__attribute__((unused)) static unsigned long long sim_memory(void)
{
	unsigned long long total = SIM_MEMORY;
	char path[512];
	FILE *f;

	if (sim_path(path, sizeof path, "nvidia-sim/memory") && (f = fopen(path, "re"))) {
		(void)!fscanf(f, "%llu", &total);
		fclose(f);
	}
	return total;
}

/* sim_each_in calls fn for every memfd of a process whose name begins with prefix; fn opens
 * path, which is in the procfs at proc. The first result that is not 0 ends it. A process that cannot be read gives
 * CUDA_ERROR_OPERATING_SYSTEM: without its memory it must not count as moved. */
__attribute__((unused)) static int sim_each_in(const char *proc, int pid, const char *prefix, int (*fn)(const char *path, const char *name, void *), void *data)
{
	char dir[560], path[840], to[128], want[64];
	struct dirent *e;
	ssize_t n;
	DIR *d;
	int rc = 0;

	snprintf(dir, sizeof dir, "%s/%d/fd", proc, pid);
	snprintf(want, sizeof want, "/memfd:%s", prefix);
	d = opendir(dir);
	if (!d && errno != ENOENT)
		return 304;
	while (d && !rc && (errno = 0, e = readdir(d))) {
		snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
		n = readlink(path, to, sizeof to - 1);
		if (n <= 0)
			continue;
		to[n] = 0;
		if (!strncmp(to, want, strlen(want)))
			rc = fn(path, to, data);
	}
	if (d && !rc && errno)
		rc = 304;
	if (d)
		closedir(d);
	return rc;
}

__attribute__((unused)) static int sim_each(int pid, const char *prefix, int (*fn)(const char *path, const char *name, void *), void *data)
{
	return sim_each_in("/proc", pid, prefix, fn, data);
}

/* sim_proc is where the driver itself, which is in the kernel, sees every process: a program may see
 * only some in /proc. */
__attribute__((unused)) static const char *sim_proc(void)
{
	static char path[512];

	return sim_path(path, sizeof path, "nvidia-sim/proc") && !access(path, F_OK) ? path : "/proc";
}

/* The first bytes of a process' "nvidia-sim-cuda" are where its memory is: minor numbers, by
 * those of the GPUs that it was allocated on. */
#define SIM_MINORS 64

/* sim_use is what processes have on a GPU. */
struct sim_use {
	unsigned minor;
	off_t size;
	unsigned char at[SIM_MINORS];
};

__attribute__((unused)) static int sim_read_places(const char *path, const char *name, void *data)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	(void)name;
	(void)!pread(fd, data, SIM_MINORS, 0);
	close(fd);
	return 1;
}

__attribute__((unused)) static int sim_add_allocation(const char *path, const char *name, void *data)
{
	struct sim_use *use = data;
	struct stat st;

	(void)name;
	if (!stat(path, &st) && use->at[st.st_mode % SIM_MINORS] == use->minor)
		use->size += st.st_size;
	return 0;
}

/* sim_add_process adds what a process has on the GPU. */
__attribute__((unused)) static void sim_add_process(int pid, struct sim_use *use)
{
	if (sim_each_in(sim_proc(), pid, "nvidia-sim-cuda", sim_read_places, use->at) == 1)
		sim_each_in(sim_proc(), pid, "nvidia-sim-gpu", sim_add_allocation, use);
}

#endif
