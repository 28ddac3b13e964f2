/*
 * Memory limits of cgroups, which the driver has since 615, of nvml.c.
 *
 * The limits are in the pipe nvidia-sim/limits, as lines of <inode of the cgroup> <minor
 * number of the GPU> <soft> <hard> <memory in use at the first limit> <path>. A pipe can
 * be written where every mount is read-only, as a driver's memory can, and is empty again
 * when the last process has closed it, as the driver forgets. sim.Driver keeps it open, as
 * nvidia-persistenced would.
 *
 * The file nvidia-sim/memory-limits may say:
 *   backend off | internal | dmem   which one the driver has chosen
 *   file NAME                       a cgroup that has this file counts as one that has the
 *                                   files of dmem; dmem.max by default
 *   round BYTES                     limits are rounded up to a multiple
 * The kernel's dmem knows the GPUs of drivers that are loaded only, so that the limits of
 * the backend dmem are in the pipe as well. The limit that an ancestor gets is the kernel's
 * file dmem.min there.
 */
#if SIM_BRANCH < 615
static void open_limits(void) {}
static void close_limits(void) {}
#else
#include <sys/file.h>
#include <sys/vfs.h>

#define LIMIT_MAX 0xffffffffffffffffULL
#define CGROUP2_MAGIC 0x63677270

enum { LIMITS_OFF, LIMITS_INTERNAL, LIMITS_DMEM };

struct limit {
	unsigned long long inode, soft, hard, before;
	unsigned minor;
	char path[512];
};

static struct {
	int fd, backend;
	char file[64];
	unsigned long long round;
	unsigned count;
	struct limit list[2048];
	char text[1 << 20];
} limits = {.fd = -1};

static void open_limits(void)
{
	char path[512];

	if (sim_path(path, sizeof path, "nvidia-sim/limits"))
		limits.fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
}

static void close_limits(void)
{
	if (limits.fd >= 0)
		close(limits.fd);
	limits.fd = -1;
}

static void read_mode(void)
{
	char key[32], value[64];
	FILE *f = steering("memory-limits");

	limits.backend = access("/sys/fs/cgroup/dmem.capacity", F_OK) ? LIMITS_INTERNAL : LIMITS_DMEM;
	strcpy(limits.file, "dmem.max");
	limits.round = 1;
	while (f && fscanf(f, "%31s %63s", key, value) == 2) {
		if (!strcmp(key, "backend"))
			limits.backend = !strcmp(value, "dmem") ? LIMITS_DMEM : !strcmp(value, "internal") ? LIMITS_INTERNAL : LIMITS_OFF;
		if (!strcmp(key, "file"))
			strcpy(limits.file, value);
		if (!strcmp(key, "round"))
			limits.round = strtoull(value, NULL, 10);
	}
	if (f)
		fclose(f);
	if (limits.fd < 0)
		limits.backend = LIMITS_OFF;
}

/* load_limits locks the limits and reads them. The kernel forgets those of a cgroup that was
 * removed; the driver does not. */
static int load_limits(void)
{
	struct limit l;
	struct stat st;
	char *line;
	size_t size = 0;
	ssize_t n;

	if (flock(limits.fd, LOCK_EX))
		return NVML_ERROR_UNKNOWN;
	while (size < sizeof limits.text - 1 && (n = read(limits.fd, limits.text + size, sizeof limits.text - 1 - size)) > 0)
		size += (size_t)n;
	limits.text[size] = 0;
	limits.count = 0;
	for (line = strtok(limits.text, "\n"); line; line = strtok(NULL, "\n")) {
		if (sscanf(line, "%llu %u %llu %llu %llu %511s", &l.inode, &l.minor, &l.soft, &l.hard, &l.before, l.path) != 6)
			continue;
		if (limits.backend == LIMITS_DMEM && (stat(l.path, &st) || st.st_ino != l.inode))
			continue;
		limits.list[limits.count++] = l;
	}
	return NVML_SUCCESS;
}

/* save_limits writes the limits and unlocks them. */
static int save_limits(void)
{
	size_t size = 0, written = 0;
	ssize_t n;
	unsigned i;

	for (i = 0; i < limits.count; i++) {
		struct limit *l = &limits.list[i];

		if (l->soft || l->hard != LIMIT_MAX)
			size += (size_t)snprintf(limits.text + size, sizeof limits.text - size, "%llu %u %llu %llu %llu %s\n",
				l->inode, l->minor, l->soft, l->hard, l->before, l->path);
	}
	while (written < size && (n = write(limits.fd, limits.text + written, size - written)) > 0)
		written += (size_t)n;
	flock(limits.fd, LOCK_UN);
	return written == size ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

/* find_limit finds the limit of a cgroup, and makes one if make is true. */
static struct limit *find_limit(nvmlDevice_t d, const char *path, int make)
{
	struct limit *l;
	struct stat st;
	unsigned i;

	if (stat(path, &st))
		return NULL;
	for (i = 0; i < limits.count; i++)
		if (limits.list[i].inode == st.st_ino && limits.list[i].minor == d->gpu->minor)
			return &limits.list[i];
	if (!make || limits.count == sizeof limits.list / sizeof limits.list[0])
		return NULL;
	l = &limits.list[limits.count++];
	*l = (struct limit){.inode = st.st_ino, .minor = d->gpu->minor, .hard = LIMIT_MAX};
	snprintf(l->path, sizeof l->path, "%s", path);
	return l;
}

/* has_file returns 0 if a cgroup has a file that may be opened so, or -1 with errno. */
static int has_file(const char *cgroup, const char *name, int flags)
{
	char path[640];
	int fd;

	snprintf(path, sizeof path, "%s/%s", cgroup, name);
	fd = open(path, flags | O_CLOEXEC);
	if (fd >= 0)
		close(fd);
	return fd < 0 ? -1 : 0;
}

/* to_parent cuts the last name off a path and returns whether it is a cgroup with the files
 * of dmem. */
static int to_parent(char *path)
{
	char *slash = strrchr(path, '/');

	if (!slash || slash == path)
		return 0;
	*slash = 0;
	return !has_file(path, "cgroup.events", O_RDONLY) && !has_file(path, limits.file, O_RDONLY);
}

/* cgroup_use adds what the processes of a cgroup, and of those below it, have on a GPU. */
static unsigned long long cgroup_use(nvmlDevice_t d, const char *cgroup)
{
	static nvmlProcessInfo_t infos[512];
	unsigned i, n = processes(d, 0, infos, 512);
	unsigned long long sum = 0;
	char path[640];
	struct dirent *e;
	DIR *dir;
	FILE *f;
	unsigned pid;

	snprintf(path, sizeof path, "%s/cgroup.procs", cgroup);
	f = fopen(path, "re");
	while (f && fscanf(f, "%u", &pid) == 1)
		for (i = 0; i < n && i < 512; i++)
			if (infos[i].pid == pid)
				sum += infos[i].used;
	if (f)
		fclose(f);
	dir = opendir(cgroup);
	while (dir && (e = readdir(dir)))
		if (e->d_type == DT_DIR && e->d_name[0] != '.' && snprintf(path, sizeof path, "%s/%s", cgroup, e->d_name) < (int)sizeof path)
			sum += cgroup_use(d, path);
	if (dir)
		closedir(dir);
	return sum;
}

/* check_cgroup checks what both calls check of the cgroup. */
static int check_cgroup(nvmlDevice_t d, const char *path)
{
	struct statfs st;
	int fd, rc;

	read_mode();
	if (d->mig || limits.backend == LIMITS_OFF)
		return NVML_ERROR_NOT_SUPPORTED;
	if (!path)
		return NVML_ERROR_INVALID_ARGUMENT;
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return NVML_ERROR_OPERATING_SYSTEM;
	rc = fstatfs(fd, &st) || st.f_type != CGROUP2_MAGIC ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
	close(fd);
	if (rc == NVML_SUCCESS && has_file(path, "cgroup.events", O_RDONLY)) /* the root */
		rc = NVML_ERROR_NOT_SUPPORTED;
	return rc;
}

/* is_admin reports whether this thread has CAP_SYS_ADMIN. */
static int is_admin(void)
{
	struct {
		unsigned version;
		int pid;
	} header = {0x20080522, 0};
	struct {
		unsigned effective, permitted, inheritable;
	} data[2];

	return !syscall(SYS_capget, &header, data) && data[0].effective & 1 << 21;
}

/* round_limit rounds a limit as the backend does. */
static unsigned long long round_limit(unsigned long long bytes)
{
	return bytes == LIMIT_MAX ? bytes : (bytes + limits.round - 1) / limits.round * limits.round;
}

/* change_limit changes the limit of a cgroup and, with dmem, the sums of its ancestors. */
static int change_limit(nvmlDevice_t d, const char *cgroup, unsigned long long soft, unsigned long long hard)
{
	unsigned long long old, used = cgroup_use(d, cgroup);
	struct limit *l = find_limit(d, cgroup, 0);
	char path[512];

	if (!l) {
		l = find_limit(d, cgroup, 1);
		if (!l)
			return NVML_ERROR_UNKNOWN;
		l->before = limits.backend == LIMITS_INTERNAL ? used : 0;
	}
	if (limits.backend == LIMITS_INTERNAL && used > l->before && hard < used - l->before)
		return NVML_ERROR_INVALID_ARGUMENT;
	old = l->soft;
	l->soft = soft;
	l->hard = hard;
	if (limits.backend != LIMITS_DMEM)
		return NVML_SUCCESS;
	snprintf(path, sizeof path, "%s", cgroup);
	while (to_parent(path) && (l = find_limit(d, path, 1)))
		l->soft = l->soft + soft > old ? l->soft + soft - old : 0;
	return NVML_SUCCESS;
}

/* one_thread lets one thread at a time use limits; the lock of the pipe is of the process. */
static void one_thread(int enter)
{
	static int busy;

	while (enter && __sync_lock_test_and_set(&busy, 1))
		usleep(100);
	if (!enter)
		__sync_lock_release(&busy);
}

static int set_alone(nvmlDevice_t d, const char *path, unsigned long long soft, unsigned long long hard)
{
	unsigned long long total = sim_memory();
	int changed, rc = check_cgroup(d, path);

	if (rc != NVML_SUCCESS)
		return rc;
	if (!is_admin())
		return NVML_ERROR_NO_PERMISSION;
	if (soft > hard || soft > total || (hard > total && hard != LIMIT_MAX))
		return NVML_ERROR_INVALID_ARGUMENT;
	if (limits.backend == LIMITS_DMEM && has_file(path, limits.file, O_WRONLY))
		return errno == ENOENT ? NVML_ERROR_NOT_FOUND : NVML_ERROR_NO_PERMISSION;
	rc = load_limits();
	if (rc != NVML_SUCCESS)
		return rc;
	changed = change_limit(d, path, round_limit(soft), round_limit(hard));
	rc = save_limits();
	return changed == NVML_SUCCESS ? rc : changed;
}

static int set_limits(nvmlDevice_t d, const char *path, unsigned long long soft, unsigned long long hard)
{
	int rc;

	one_thread(1);
	rc = set_alone(d, path, soft, hard);
	one_thread(0);
	return rc;
}

static int get_alone(nvmlDevice_t d, const char *cgroup, unsigned long long *soft, unsigned long long *hard, unsigned long long *used)
{
	struct limit *l;
	char path[512];
	int saved, rc = check_cgroup(d, cgroup);

	if (rc != NVML_SUCCESS)
		return rc;
	rc = load_limits();
	if (rc != NVML_SUCCESS)
		return rc;
	snprintf(path, sizeof path, "%s", cgroup);
	while (limits.backend == LIMITS_DMEM && has_file(path, limits.file, O_RDONLY) && strrchr(path, '/') > path)
		*strrchr(path, '/') = 0; /* the nearest ancestor with files */
	l = find_limit(d, path, 0);
	*soft = l ? l->soft : 0;
	*hard = l ? l->hard : LIMIT_MAX;
	*used = cgroup_use(d, path);
	if (l)
		*used -= l->before < *used ? l->before : *used;
	else if (limits.backend == LIMITS_INTERNAL)
		rc = NVML_ERROR_NOT_SUPPORTED; /* nothing was ever set */
	saved = save_limits();
	return rc == NVML_SUCCESS ? saved : rc;
}

static int get_limits(nvmlDevice_t d, const char *cgroup, unsigned long long *soft, unsigned long long *hard, unsigned long long *used)
{
	int rc;

	one_thread(1);
	rc = get_alone(d, cgroup, soft, hard, used);
	one_thread(0);
	return rc;
}
#endif
