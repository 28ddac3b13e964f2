/*
 * The simulated libnvidia-ml: initialization, the list of GPUs and MIG devices,
 * and the properties that tools read. The functions keep the names, types and
 * return codes of nvml.h.
 *
 * Files in nvidia-sim/ beside the device nodes steer it, where a test made them
 * (sim.Driver.Place, Hang, Unsupport); a container never sees them:
 *   processes    lines of <UUID of a GPU or MIG device> <pid> <bytes> <C or G>
 *   hang         nvmlInit does not come back
 *   unsupported  names of functions that say "not supported", one a line
 *   faults       lines of <function> <UUID of a GPU or MIG device> <error code or
 *                -1>: the function returns the code for that device, or does not
 *                come back
 *   answers      lines of <function> <UUID of a GPU or MIG device> <value>: the function
 *                returns the value for that device; the value may be empty
 *   properties   lines of <UUID of a GPU> <property> <number>: what the health functions
 *                report, 0 without a line
 *   events       lines of <UUID of a GPU> <event type> <data>, appended: an event set
 *                gets those appended after it was made
 *   utilization  lines of <UUID of a GPU> <pid> <percent>; their sum is in the samples of
 *                the GPU, five a second, of which it keeps 72, or as many as answers says
 *                for nvmlDeviceGetSamples; "stopped <time in us>" is when it took the last
 *   accounting   lines of <UUID of a GPU> <pid> <percent> <percent of memory> <bytes>
 *                <milliseconds> <1 while it runs>
 *   persistence-off  persistence mode is off
 *   memory-limits, limits  see limits.h
 *   modprobe     path that nvmlInit executes and makes a device node beside, as
 *                the real library starts nvidia-modprobe
 */
#include "sim.h"

#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NO_PERMISSION = 4,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_DRIVER_NOT_LOADED = 9,
	NVML_ERROR_TIMEOUT = 10,
	NVML_ERROR_FUNCTION_NOT_FOUND = 13,
	NVML_ERROR_GPU_IS_LOST = 15,
	NVML_ERROR_OPERATING_SYSTEM = 17,
	NVML_ERROR_UNKNOWN = 999,
};

/* struct device is what a handle points to: a GPU, or a MIG device with its
 * parent. */
typedef struct device {
	const struct sim_gpu *gpu;
	const struct sim_mig *mig;
	struct device *parent;
	unsigned index;
} *nvmlDevice_t;

static unsigned users;
static struct device gpus[SIM_GPU_COUNT + 1], migs[SIM_MIG_COUNT + 1];
static unsigned gpu_count, mig_count;

static int may_use_mig(const struct sim_mig *m)
{
	char gi[48], ci[48];

	snprintf(gi, sizeof gi, "nvidia-caps/nvidia-cap%u", m->gi_minor);
	snprintf(ci, sizeof ci, "nvidia-caps/nvidia-cap%u", m->ci_minor);
	return sim_may_open(gi, O_RDONLY) && sim_may_open(ci, O_RDONLY);
}

static FILE *steering(const char *name)
{
	char path[512], below[64];

	snprintf(below, sizeof below, "nvidia-sim/%s", name);
	return sim_path(path, sizeof path, below) ? fopen(path, "re") : NULL;
}

/* unsupported tells whether a function is to say NVML_ERROR_NOT_SUPPORTED. */
static int unsupported(const char *function)
{
	char line[128];
	int found = 0;
	FILE *f = steering("unsupported");

	if (!f)
		return 0;
	while (!found && fgets(line, sizeof line, f)) {
		line[strcspn(line, "\n")] = 0;
		found = !strcmp(line, function);
	}
	fclose(f);
	return found;
}

/* modprobe does what the real library does where it misses device nodes. */
static void modprobe(void)
{
	char path[512], made[600];
	FILE *f = steering("modprobe");
	pid_t pid;

	if (!f)
		return;
	if (fgets(path, sizeof path, f)) {
		path[strcspn(path, "\n")] = 0;
		snprintf(made, sizeof made, "%s.node", path);
		/* glibc has a function for it since 2.33 only. */
		syscall(SYS_mknodat, AT_FDCWD, made, S_IFREG | 0600, 0);
		pid = fork();
		if (pid == 0) {
			execl(path, path, (char *)NULL);
			_exit(127);
		}
		if (pid > 0)
			waitpid(pid, NULL, 0);
	}
	fclose(f);
}

static void hang(void)
{
	FILE *f = steering("hang");

	if (!f)
		return;
	fclose(f);
	for (;;)
		sleep(3600);
}

static void open_limits(void);
static void close_limits(void);

EXPORT int nvmlInitWithFlags(unsigned flags)
{
	unsigned seen[SIM_GPU_COUNT + 1], i, k, n;

	(void)flags;
	if (users > 0) {
		users++;
		return NVML_SUCCESS;
	}
	modprobe();
	if (!sim_may_open("nvidiactl", O_RDWR))
		return NVML_ERROR_DRIVER_NOT_LOADED;
	hang();
	gpu_count = sim_visible(seen);
	mig_count = 0;
	for (i = 0; i < gpu_count; i++) {
		gpus[i].gpu = &sim_gpus[seen[i]];
		gpus[i].index = i;
		for (k = n = 0; k < SIM_MIG_COUNT; k++) {
			if (sim_migs[k].gpu != seen[i] || !may_use_mig(&sim_migs[k]))
				continue;
			migs[mig_count].gpu = gpus[i].gpu;
			migs[mig_count].mig = &sim_migs[k];
			migs[mig_count].parent = &gpus[i];
			migs[mig_count++].index = n++;
		}
	}
	users = 1;
	open_limits();
	return NVML_SUCCESS;
}

EXPORT int nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

EXPORT int nvmlInit(void)
{
	return nvmlInitWithFlags(0);
}

EXPORT int nvmlShutdown(void)
{
	if (users == 0)
		return NVML_ERROR_UNINITIALIZED;
	if (--users == 0)
		close_limits();
	return NVML_SUCCESS;
}

EXPORT const char *nvmlErrorString(int code)
{
	switch (code) {
	case NVML_SUCCESS:
		return "The operation was successful";
	case NVML_ERROR_UNINITIALIZED:
		return "NVML was not first initialized with nvmlInit()";
	case NVML_ERROR_INVALID_ARGUMENT:
		return "A supplied argument is invalid";
	case NVML_ERROR_NOT_SUPPORTED:
		return "The requested operation is not available on target device";
	case NVML_ERROR_NO_PERMISSION:
		return "The current user does not have permission for operation";
	case NVML_ERROR_OPERATING_SYSTEM:
		return "The GPU control device has been blocked by the operating system/cgroups";
	case NVML_ERROR_NOT_FOUND:
		return "A query to find an object was unsuccessful";
	case NVML_ERROR_INSUFFICIENT_SIZE:
		return "An input argument is not large enough";
	case NVML_ERROR_DRIVER_NOT_LOADED:
		return "Driver is not loaded";
	case NVML_ERROR_GPU_IS_LOST:
		return "GPU is lost";
	case NVML_ERROR_FUNCTION_NOT_FOUND:
		return "Local version of NVML doesn't implement this function";
	}
	return "Unknown Error";
}

/* put copies s to a caller's buffer of len bytes, or says that it is too small. */
static int put(char *to, unsigned len, const char *s)
{
	if (users == 0)
		return NVML_ERROR_UNINITIALIZED;
	if (!to)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strlen(s) >= len)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(to, s, strlen(s) + 1);
	return NVML_SUCCESS;
}

EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned len)
{
	return put(version, len, SIM_VERSION);
}

EXPORT int nvmlSystemGetNVMLVersion(char *version, unsigned len)
{
	char s[64];

	snprintf(s, sizeof s, "%d.%s", SIM_CUDA / 1000, SIM_VERSION);
	return put(version, len, s);
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	if (!version)
		return NVML_ERROR_INVALID_ARGUMENT;
	*version = SIM_CUDA;
	return NVML_SUCCESS;
}

EXPORT int nvmlSystemGetCudaDriverVersion(int *version)
{
	return nvmlSystemGetCudaDriverVersion_v2(version);
}

/* usable checks what every function checks first. */
static int usable(const void *d, const void *out)
{
	if (users == 0)
		return NVML_ERROR_UNINITIALIZED;
	return d && out ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

static const char *uuid_of(nvmlDevice_t d)
{
	return d->mig ? d->mig->uuid : d->gpu->uuid;
}

/* answered copies to value what a function is to answer for a device, and reports
 * whether there is such an answer. */
static int answered(const char *function, nvmlDevice_t d, char value[256])
{
	char line[512], name[128], uuid[128];
	int found = 0, end;
	FILE *f = steering("answers");

	if (!f)
		return 0;
	while (!found && fgets(line, sizeof line, f)) {
		line[strcspn(line, "\n")] = 0;
		if (sscanf(line, "%127s %127s%n", name, uuid, &end) != 2 || strcmp(name, function) || strcmp(uuid, uuid_of(d)))
			continue;
		snprintf(value, 256, "%s", line[end] ? line + end + 1 : "");
		found = 1;
	}
	fclose(f);
	return found;
}

/* number returns what a function is to answer for a device, usually n. */
static unsigned number(const char *function, nvmlDevice_t d, unsigned n)
{
	char value[256];

	return answered(function, d, value) ? (unsigned)strtoul(value, NULL, 0) : n;
}

/* fault returns the error code that a function is to return for a device. */
static int fault(const char *function, nvmlDevice_t d)
{
	char name[128], uuid[128];
	int code, rc = NVML_SUCCESS;
	FILE *f = steering("faults");

	if (!f)
		return rc;
	while (rc == NVML_SUCCESS && fscanf(f, "%127s %127s %d", name, uuid, &code) == 3)
		if (!strcmp(name, function) && !strcmp(uuid, uuid_of(d)))
			rc = code;
	fclose(f);
	while (rc < 0)
		sleep(3600);
	return rc;
}

static int valid_for(const char *function, nvmlDevice_t d, const void *out)
{
	int rc = usable(d, out);

	return rc == NVML_SUCCESS ? fault(function, d) : rc;
}

/* valid checks what every device function checks first. */
#define valid(d, out) valid_for(__func__, d, out)

EXPORT int nvmlDeviceGetCount_v2(unsigned *n)
{
	int rc = valid(gpus, n);

	if (rc == NVML_SUCCESS)
		*n = gpu_count;
	return rc;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *d)
{
	int rc = usable(gpus, d);

	if (rc != NVML_SUCCESS)
		return rc;
	if (index >= gpu_count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*d = &gpus[index];
	return fault(__func__, *d);
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *d)
{
	unsigned i;
	int rc = valid(gpus, d);

	if (rc != NVML_SUCCESS)
		return rc;
	if (!uuid)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (i = 0; i < gpu_count; i++)
		if (!strcasecmp(uuid, gpus[i].gpu->uuid)) {
			*d = &gpus[i];
			return NVML_SUCCESS;
		}
	for (i = 0; i < mig_count; i++)
		if (!strcasecmp(uuid, migs[i].mig->uuid)) {
			*d = &migs[i];
			return NVML_SUCCESS;
		}
	return NVML_ERROR_NOT_FOUND;
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *d)
{
	char full[32], brief[32];
	unsigned i;
	int rc = usable(gpus, d);

	if (rc != NVML_SUCCESS)
		return rc;
	if (!id)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (i = 0; i < gpu_count; i++) {
		const struct sim_gpu *g = gpus[i].gpu;

		snprintf(full, sizeof full, "%08X:%02X:%02X.0", g->domain, g->bus, g->device);
		snprintf(brief, sizeof brief, "%04X:%02X:%02X.0", g->domain, g->bus, g->device);
		if (!strcasecmp(id, full) || !strcasecmp(id, brief)) {
			*d = &gpus[i];
			return fault(__func__, *d);
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

EXPORT int nvmlDeviceGetName(nvmlDevice_t d, char *name, unsigned len)
{
	char mig[160], value[256];
	int rc = valid(d, name);

	if (rc != NVML_SUCCESS)
		return rc;
	if (answered(__func__, d, value))
		return put(name, len, value);
	if (!d->mig)
		return put(name, len, d->gpu->name);
	snprintf(mig, sizeof mig, "%s MIG " SIM_MIG_PROFILE, d->gpu->name);
	return put(name, len, mig);
}

EXPORT int nvmlDeviceGetUUID(nvmlDevice_t d, char *uuid, unsigned len)
{
	char value[256];
	int rc = valid(d, uuid);

	if (rc != NVML_SUCCESS)
		return rc;
	return put(uuid, len, answered(__func__, d, value) ? value : uuid_of(d));
}

EXPORT int nvmlDeviceGetMinorNumber(nvmlDevice_t d, unsigned *minor)
{
	int rc = valid(d, minor);

	if (rc == NVML_SUCCESS)
		*minor = number(__func__, d, d->gpu->minor);
	return rc;
}

EXPORT int nvmlDeviceGetIndex(nvmlDevice_t d, unsigned *index)
{
	int rc = valid(d, index);

	if (rc == NVML_SUCCESS)
		*index = d->index;
	return rc;
}

typedef struct {
	char busIdLegacy[16];
	unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
	char busId[32];
} nvmlPciInfo_t;

EXPORT int nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t *p)
{
	char value[256];
	int rc = valid(d, p);

	if (rc != NVML_SUCCESS)
		return rc;
	memset(p, 0, sizeof *p);
	p->domain = d->gpu->domain;
	p->bus = d->gpu->bus;
	p->device = d->gpu->device;
	p->pciDeviceId = 0x233510de;
	p->pciSubSystemId = 0x18be10de;
	snprintf(p->busIdLegacy, sizeof p->busIdLegacy, "%04X:%02X:%02X.0", p->domain & 0xffff, p->bus & 0xff, p->device & 0xff);
	snprintf(p->busId, sizeof p->busId, "%08X:%02X:%02X.0", p->domain, p->bus, p->device);
	if (answered(__func__, d, value))
		return put(p->busId, sizeof p->busId, value);
	return NVML_SUCCESS;
}

typedef struct {
	unsigned pid;
	unsigned long long used;
	unsigned gi, ci;
} nvmlProcessInfo_t;

/* computing fills infos with the processes that have memory of the simulated libcuda
 * on a GPU. */
static unsigned computing(nvmlDevice_t d, nvmlProcessInfo_t *infos, unsigned size)
{
	struct sim_use use = {.minor = d->gpu->minor};
	struct dirent *e;
	unsigned n = 0;
	DIR *dir;

	if (d->mig)
		return 0;
	dir = opendir(sim_proc());
	while (dir && (e = readdir(dir))) {
		use.size = 0;
		if (atoi(e->d_name) > 0)
			sim_add_process(atoi(e->d_name), &use);
		if (!use.size)
			continue;
		if (n < size)
			infos[n] = (nvmlProcessInfo_t){(unsigned)atoi(e->d_name), (unsigned long long)use.size, 0xffffffff, 0xffffffff};
		n++;
	}
	if (dir)
		closedir(dir);
	return n;
}

/* processes fills infos with those of a kind (0: of any) that compute with the
 * simulated libcuda or that the file places on a device; those of a GPU include those
 * of its MIG devices. */
static unsigned processes(nvmlDevice_t d, char kind, nvmlProcessInfo_t *infos, unsigned size)
{
	char line[256], uuid[96], what;
	unsigned long long used;
	unsigned pid, i, n = kind == 'G' || kind == 'M' ? 0 : computing(d, infos, size);
	const struct sim_mig *on;
	FILE *f = steering("processes");

	if (!f)
		return n;
	while (fgets(line, sizeof line, f)) {
		if (sscanf(line, "%95s %u %llu %c", uuid, &pid, &used, &what) != 4 || (kind && what != kind))
			continue;
		on = NULL;
		for (i = 0; i < mig_count; i++)
			if ((d->mig ? &migs[i] == d : migs[i].parent == d) && !strcmp(uuid, migs[i].mig->uuid))
				on = migs[i].mig;
		if (!on && (d->mig || strcmp(uuid, d->gpu->uuid)))
			continue;
		if (n < size) {
			infos[n].pid = pid;
			infos[n].used = used;
			infos[n].gi = on ? on->gi : 0xffffffff;
			infos[n].ci = on ? on->ci : 0xffffffff;
		}
		n++;
	}
	fclose(f);
	return n;
}

static unsigned long long used_memory(nvmlDevice_t d)
{
	nvmlProcessInfo_t infos[64];
	unsigned i, n = processes(d, 0, infos, 64);
	unsigned long long sum = 0;

	for (i = 0; i < n && i < 64; i++)
		sum += infos[i].used;
	return sum;
}

typedef struct {
	unsigned long long total, free, used;
} nvmlMemory_t;

EXPORT int nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *m)
{
	int rc = valid(d, m);

	if (rc != NVML_SUCCESS)
		return rc;
	m->total = d->mig ? SIM_MIG_MEMORY : sim_memory();
	m->used = used_memory(d);
	m->free = m->total - m->used;
	return NVML_SUCCESS;
}

typedef struct {
	unsigned version;
	unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

EXPORT int nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, nvmlMemory_v2_t *m)
{
	int rc = valid(d, m);

	if (rc != NVML_SUCCESS)
		return rc;
	m->total = d->mig ? SIM_MIG_MEMORY : sim_memory();
	m->used = used_memory(d);
	m->reserved = 0;
	m->free = m->total - m->used;
	return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetCudaComputeCapability(nvmlDevice_t d, int *major, int *minor)
{
	int rc = valid(d, major && minor ? major : NULL);

	if (rc == NVML_SUCCESS) {
		*major = (int)number(__func__, d, (unsigned)d->gpu->major);
		*minor = d->gpu->minor_cc;
	}
	return rc;
}

EXPORT int nvmlDeviceGetArchitecture(nvmlDevice_t d, unsigned *arch)
{
	int rc = valid(d, arch);

	if (rc == NVML_SUCCESS) /* NVML_DEVICE_ARCH_AMPERE, ADA, HOPPER, BLACKWELL */
		*arch = d->gpu->major == 8 ? (d->gpu->minor_cc == 9 ? 8 : 7) : d->gpu->major == 9 ? 9 : 10;
	return rc;
}

EXPORT int nvmlDeviceGetBrand(nvmlDevice_t d, unsigned *brand)
{
	int rc = valid(d, brand);

	if (rc == NVML_SUCCESS && unsupported("nvmlDeviceGetBrand"))
		return NVML_ERROR_NOT_SUPPORTED;
	if (rc == NVML_SUCCESS)
		*brand = number(__func__, d, (unsigned)d->gpu->brand);
	return rc;
}

EXPORT int nvmlDeviceGetPersistenceMode(nvmlDevice_t d, unsigned *mode)
{
	int rc = valid(d, mode);

	FILE *f = steering("persistence-off");

	if (f)
		fclose(f);
	if (rc == NVML_SUCCESS)
		*mode = !f;
	return rc;
}

typedef struct {
	unsigned gpu, memory;
} nvmlUtilization_t;

EXPORT int nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t *u)
{
	int rc = valid(d, u);

	if (rc == NVML_SUCCESS && (d->mig || unsupported("nvmlDeviceGetUtilizationRates")))
		return NVML_ERROR_NOT_SUPPORTED;
	if (rc == NVML_SUCCESS) {
		u->gpu = number(__func__, d, 7);
		u->memory = 2;
	}
	return rc;
}

static int running(nvmlDevice_t d, char kind, unsigned *n, nvmlProcessInfo_t *infos)
{
	unsigned size, found;
	int rc = valid(d, n);

	if (rc == NVML_SUCCESS && unsupported(kind == 'C' ? "nvmlDeviceGetComputeRunningProcesses"
			: kind == 'G' ? "nvmlDeviceGetGraphicsRunningProcesses" : "nvmlDeviceGetMPSComputeRunningProcesses"))
		return NVML_ERROR_NOT_SUPPORTED;
	if (rc != NVML_SUCCESS)
		return rc;
	size = infos ? *n : 0;
	*n = found = processes(d, kind, infos, size);
	return found > size ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_t *infos)
{
	return running(d, 'C', n, infos);
}

EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_t *infos)
{
	return running(d, 'G', n, infos);
}

EXPORT int nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_t *infos)
{
	return running(d, 'M', n, infos);
}

/* NVML_TOPOLOGY_SYSTEM: the GPUs have nothing in common. NVIDIA's device plugin asks for
   this and for NVLink before it proposes GPUs to the kubelet. */
EXPORT int nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, unsigned *level)
{
	int rc = valid(a, level);

	if (rc == NVML_SUCCESS)
		rc = valid(b, level);
	if (rc == NVML_SUCCESS)
		*level = 50;
	return rc;
}

EXPORT int nvmlDeviceGetNvLinkState(nvmlDevice_t d, unsigned link, unsigned *active)
{
	int rc = valid(d, active);

	(void)link;
	return rc == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : rc;
}

EXPORT int nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned *current, unsigned *pending)
{
	int rc = valid(d, current && pending ? current : NULL);

	if (rc == NVML_SUCCESS)
		*current = *pending = number(__func__, d, (unsigned)d->gpu->mig);
	return rc;
}

EXPORT int nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, unsigned *n)
{
	int rc = valid(d, n);

	if (rc == NVML_SUCCESS && unsupported("nvmlDeviceGetMaxMigDeviceCount"))
		return NVML_ERROR_NOT_SUPPORTED;
	if (rc == NVML_SUCCESS)
		*n = number(__func__, d, d->gpu->mig ? SIM_MAX_MIG : 0);
	return rc;
}

/* No profile of a GPU instance: MIG devices are made with the driver. */
EXPORT int nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t d, unsigned profile, void *info)
{
	int rc = valid(d, info);

	(void)profile;
	return rc == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : rc;
}

EXPORT int nvmlDeviceIsMigDeviceHandle(nvmlDevice_t d, unsigned *is)
{
	int rc = valid(d, is);

	if (rc == NVML_SUCCESS)
		*is = d->mig != NULL;
	return rc;
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned index, nvmlDevice_t *mig)
{
	unsigned i;
	int rc = valid(d, mig);

	if (rc != NVML_SUCCESS)
		return rc;
	for (i = 0; i < mig_count; i++)
		if (migs[i].parent == d && migs[i].index == index) {
			*mig = &migs[i];
			return fault(__func__, *mig);
		}
	return NVML_ERROR_NOT_FOUND;
}

EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *d)
{
	int rc = valid(mig, d);

	if (rc != NVML_SUCCESS)
		return rc;
	if (!mig->mig)
		return NVML_ERROR_INVALID_ARGUMENT;
	*d = mig->parent;
	return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetGpuInstanceId(nvmlDevice_t d, unsigned *id)
{
	int rc = valid(d, id);

	if (rc != NVML_SUCCESS)
		return rc;
	if (!d->mig)
		return NVML_ERROR_NOT_SUPPORTED;
	*id = number(__func__, d, (unsigned)d->mig->gi);
	return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetComputeInstanceId(nvmlDevice_t d, unsigned *id)
{
	int rc = valid(d, id);

	if (rc != NVML_SUCCESS)
		return rc;
	if (!d->mig)
		return NVML_ERROR_NOT_SUPPORTED;
	*id = number(__func__, d, (unsigned)d->mig->ci);
	return NVML_SUCCESS;
}

/* property returns a number of the file properties. */
static unsigned long long property(nvmlDevice_t d, const char *name)
{
	char uuid[96], found[64];
	unsigned long long value, last = 0;
	FILE *f = steering("properties");

	if (!f)
		return 0;
	while (fscanf(f, "%95s %63s %llu", uuid, found, &value) == 3)
		if (!strcmp(uuid, d->gpu->uuid) && !strcmp(found, name))
			last = value;
	fclose(f);
	return last;
}

/* supported is valid for a property that a MIG device does not have, and that a GPU may
 * not have. */
static int supported_for(const char *function, nvmlDevice_t d, const void *out)
{
	int rc = valid_for(function, d, out);

	return rc == NVML_SUCCESS && (d->mig || unsupported(function)) ? NVML_ERROR_NOT_SUPPORTED : rc;
}
#define supported(d, out) supported_for(__func__, d, out)

EXPORT int nvmlDeviceGetTemperature(nvmlDevice_t d, unsigned sensor, unsigned *celsius)
{
	int rc = supported(d, celsius);

	(void)sensor;
	if (rc == NVML_SUCCESS)
		*celsius = 41 + d->index;
	return rc;
}

EXPORT int nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned *milliwatts)
{
	int rc = supported(d, milliwatts);

	if (rc == NVML_SUCCESS)
		*milliwatts = 118400;
	return rc;
}

EXPORT int nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t d, unsigned *milliwatts)
{
	int rc = supported(d, milliwatts);

	if (rc == NVML_SUCCESS)
		*milliwatts = 700000;
	return rc;
}

EXPORT int nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, int type, int counter, unsigned long long *n)
{
	int rc = supported(d, n);

	if (rc == NVML_SUCCESS)
		*n = property(d, type ? (counter ? "ecc-ever" : "ecc") : "ecc-corrected");
	return rc;
}

EXPORT int nvmlDeviceGetRemappedRows(nvmlDevice_t d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
	int rc = supported(d, corrected && uncorrected && pending ? failed : NULL);

	if (rc == NVML_SUCCESS) {
		*corrected = *uncorrected = 0;
		*pending = (unsigned)property(d, "remap-pending");
		*failed = (unsigned)property(d, "remap-failed");
	}
	return rc;
}

EXPORT int nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t d, unsigned *pending)
{
	int rc = supported(d, pending);

	if (rc == NVML_SUCCESS)
		*pending = (unsigned)property(d, "pages-pending");
	return rc;
}

#if SIM_BRANCH >= 595
typedef struct {
	unsigned bUnrepairableMemory;
} nvmlUnrepairableMemoryStatus_v1_t;

EXPORT int nvmlDeviceGetUnrepairableMemoryFlag_v1(nvmlDevice_t d, nvmlUnrepairableMemoryStatus_v1_t *status)
{
	int rc = supported(d, status);

	if (rc == NVML_SUCCESS)
		status->bUnrepairableMemory = (unsigned)property(d, "unrepairable");
	return rc;
}
#endif

typedef struct {
	unsigned field, scope;
	long long time, latency;
	unsigned type, rc;
	union {
		unsigned ui;
		unsigned long long ull;
	} value;
} nvmlFieldValue_t;

/* The driver has had NVML_FI_DEV_GET_GPU_RECOVERY_ACTION since 570. */
EXPORT int nvmlDeviceGetFieldValues(nvmlDevice_t d, int count, nvmlFieldValue_t *values)
{
	int i, rc = valid(d, values);

	for (i = 0; rc == NVML_SUCCESS && i < count; i++) {
		values[i].rc = NVML_ERROR_INVALID_ARGUMENT;
		if (values[i].field != 230 || atoi(SIM_VERSION) < 570)
			continue;
		values[i].rc = NVML_SUCCESS;
		values[i].type = 1;
		values[i].value.ui = (unsigned)property(d, "recovery");
	}
	return rc;
}

typedef struct {
	unsigned pid;
	unsigned long long time;
	unsigned sm, mem, enc, dec;
} nvmlProcessUtilizationSample_t;

EXPORT int nvmlDeviceGetProcessUtilization(nvmlDevice_t d, nvmlProcessUtilizationSample_t *samples, unsigned *n, unsigned long long since)
{
	char uuid[96];
	unsigned pid, busy, size, found = 0;
	int rc = supported(d, n);
	FILE *f = rc == NVML_SUCCESS ? steering("utilization") : NULL;

	if (rc != NVML_SUCCESS)
		return rc;
	size = samples ? *n : 0;
	while (f && fscanf(f, "%95s %u %u", uuid, &pid, &busy) == 3) {
		if (strcmp(uuid, d->gpu->uuid))
			continue;
		if (found < size)
			samples[found] = (nvmlProcessUtilizationSample_t){pid, since + 1, busy, 0, 0, 0};
		found++;
	}
	if (f)
		fclose(f);
	*n = found;
	return found == 0 ? NVML_ERROR_NOT_FOUND : found > size ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

typedef struct {
	unsigned long long time;
	union {
		unsigned ui;
		unsigned long long ull;
	} value;
} nvmlSample_t;

/* The samples are at multiples of SIM_PERIOD since the epoch, in microseconds. */
#define SIM_PERIOD 200000ull
#define SIM_SAMPLES 72

EXPORT int nvmlDeviceGetSamples(nvmlDevice_t d, unsigned kind, unsigned long long since, unsigned *type, unsigned *n, nvmlSample_t *samples)
{
	char uuid[96], value[256];
	unsigned pid, busy, sum = 0, size, found = 0, depth = SIM_SAMPLES;
	unsigned long long latest, at;
	struct timespec now;
	FILE *f;
	int rc = supported(d, n);

	if (rc != NVML_SUCCESS)
		return rc;
	if (kind != 1) /* NVML_GPU_UTILIZATION_SAMPLES */
		return NVML_ERROR_NOT_SUPPORTED;
	clock_gettime(CLOCK_REALTIME, &now);
	latest = ((unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000) / SIM_PERIOD * SIM_PERIOD;
	if (answered(__func__, d, value) && sscanf(value, "stopped %llu", &latest) != 1)
		depth = (unsigned)strtoul(value, NULL, 0);
	f = steering("utilization");
	while (f && fscanf(f, "%95s %u %u", uuid, &pid, &busy) == 3)
		if (!strcmp(uuid, d->gpu->uuid))
			sum += busy;
	if (f)
		fclose(f);
	size = samples ? *n : 0;
	*type = 1; /* NVML_VALUE_TYPE_UNSIGNED_INT */
	for (at = latest - depth * SIM_PERIOD + SIM_PERIOD; depth > 0 && at <= latest; at += SIM_PERIOD) {
		if (at <= since)
			continue;
		if (found < size)
			samples[found] = (nvmlSample_t){at, {.ull = 0}};
		if (found < size)
			samples[found].value.ui = sum > 100 ? 100 : sum;
		found++;
	}
	*n = samples && found > size ? size : found;
	return found == 0 ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
}

typedef struct {
	unsigned gpu, memory;
	unsigned long long most, time, start;
	unsigned running, reserved[5];
} nvmlAccountingStats_t;

#define SIM_MAX_ACCOUNTS 4000 /* as real GPUs have */

/* accounted calls fn with each process of the file accounting until it returns 1, and
 * returns whether accounting mode is on. */
static int accounted(nvmlDevice_t d, int (*fn)(unsigned pid, const nvmlAccountingStats_t *, void *), void *data)
{
	nvmlAccountingStats_t s = {0};
	char uuid[96];
	unsigned pid;
	int on = 0, done = 0;
	FILE *f = steering("accounting");

	while (f && fscanf(f, "%95s %u %u %u %llu %llu %u", uuid, &pid, &s.gpu, &s.memory, &s.most, &s.time, &s.running) == 7) {
		on = 1;
		if (!done && !strcmp(uuid, d->gpu->uuid))
			done = fn(pid, &s, data);
	}
	if (f)
		fclose(f);
	return on;
}

struct account {
	unsigned pid, size, found, *pids;
	nvmlAccountingStats_t *stats;
};

static int find_account(unsigned pid, const nvmlAccountingStats_t *s, void *data)
{
	struct account *a = data;

	if (a->stats && pid == a->pid) {
		*a->stats = *s;
		a->found = 1;
		return 1;
	}
	if (!a->stats) {
		if (a->found < a->size)
			a->pids[a->found] = pid;
		a->found++;
	}
	return 0;
}

EXPORT int nvmlDeviceGetAccountingMode(nvmlDevice_t d, unsigned *mode)
{
	struct account a = {0};
	int rc = supported(d, mode);

	if (rc == NVML_SUCCESS)
		*mode = (unsigned)accounted(d, find_account, &a);
	return rc;
}

EXPORT int nvmlDeviceGetAccountingBufferSize(nvmlDevice_t d, unsigned *size)
{
	int rc = supported(d, size);

	if (rc == NVML_SUCCESS)
		*size = SIM_MAX_ACCOUNTS;
	return rc;
}

EXPORT int nvmlDeviceGetAccountingPids(nvmlDevice_t d, unsigned *n, unsigned *pids)
{
	struct account a = {.pids = pids};
	int rc = supported(d, n);

	if (rc != NVML_SUCCESS)
		return rc;
	a.size = pids ? *n : 0;
	if (!accounted(d, find_account, &a))
		return NVML_ERROR_NOT_SUPPORTED;
	*n = a.found;
	return a.found > a.size ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetAccountingStats(nvmlDevice_t d, unsigned pid, nvmlAccountingStats_t *stats)
{
	struct account a = {.pid = pid, .stats = stats};
	int rc = supported(d, stats);

	if (rc != NVML_SUCCESS)
		return rc;
	if (!accounted(d, find_account, &a))
		return NVML_ERROR_NOT_SUPPORTED;
	return a.found ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

/* struct events is what an event set points to. */
typedef struct events {
	long offset; /* in the file */
	unsigned long long types[SIM_GPU_COUNT + 1];
} *nvmlEventSet_t;

EXPORT int nvmlEventSetCreate(nvmlEventSet_t *set)
{
	FILE *f = steering("events");

	if (users == 0)
		return NVML_ERROR_UNINITIALIZED;
	*set = calloc(1, sizeof **set);
	if (f) {
		fseek(f, 0, SEEK_END);
		(*set)->offset = ftell(f);
		fclose(f);
	}
	return NVML_SUCCESS;
}

EXPORT int nvmlEventSetFree(nvmlEventSet_t set)
{
	free(set);
	return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetSupportedEventTypes(nvmlDevice_t d, unsigned long long *types)
{
	int rc = supported(d, types);

	if (rc == NVML_SUCCESS)
		*types = atoi(SIM_VERSION) < 570 ? 0x19f : 0xff9f;
	return rc;
}

EXPORT int nvmlDeviceRegisterEvents(nvmlDevice_t d, unsigned long long types, nvmlEventSet_t set)
{
	unsigned long long all;
	int rc = supported(d, set);

	if (rc == NVML_SUCCESS)
		rc = nvmlDeviceGetSupportedEventTypes(d, &all);
	if (rc == NVML_SUCCESS && types & ~all)
		rc = NVML_ERROR_NOT_SUPPORTED;
	if (rc == NVML_SUCCESS)
		set->types[d->index] |= types;
	return rc;
}

typedef struct {
	nvmlDevice_t device;
	unsigned long long type, data;
	unsigned gi, ci;
} nvmlEventData_t;

/* next returns 1 with the next event of a set, if there is one. */
static int next(nvmlEventSet_t set, nvmlEventData_t *event)
{
	char line[256], uuid[96];
	unsigned i;
	FILE *f = steering("events");
	int found = 0;

	if (!f)
		return 0;
	fseek(f, set->offset, SEEK_SET);
	while (!found && fgets(line, sizeof line, f) && strchr(line, '\n')) {
		set->offset = ftell(f);
		if (sscanf(line, "%95s %llu %llu", uuid, &event->type, &event->data) != 3)
			continue;
		for (i = 0; !found && i < gpu_count; i++)
			if (!strcmp(uuid, gpus[i].gpu->uuid) && set->types[i] & event->type) {
				event->device = &gpus[i];
				event->gi = event->ci = 0xffffffff;
				found = 1;
			}
	}
	fclose(f);
	return found;
}

EXPORT int nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *event, unsigned milliseconds)
{
	unsigned waited;

	if (users == 0)
		return NVML_ERROR_UNINITIALIZED;
	if (unsupported(__func__))
		return NVML_ERROR_UNKNOWN;
	for (waited = 0; !next(set, event); waited += 5) {
		if (waited >= milliseconds)
			return NVML_ERROR_TIMEOUT;
		usleep(5000);
	}
	return NVML_SUCCESS;
}

#include "limits.h"

#if SIM_BRANCH >= 615
typedef struct {
	const char *nameSpace;
	unsigned long long softLimit, hardLimit;
} nvmlSetMemoryLimits_v1_t;

EXPORT int nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t d, nvmlSetMemoryLimits_v1_t *l)
{
	int rc = valid(d, l);

	return rc == NVML_SUCCESS ? set_limits(d, l->nameSpace, l->softLimit, l->hardLimit) : rc;
}

typedef struct {
	const char *nameSpace;
	unsigned long long softLimit, hardLimit, currentUsed;
} nvmlGetMemoryLimits_v1_t;

EXPORT int nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t d, nvmlGetMemoryLimits_v1_t *l)
{
	int rc = valid(d, l);

	return rc == NVML_SUCCESS ? get_limits(d, l->nameSpace, &l->softLimit, &l->hardLimit, &l->currentUsed) : rc;
}
#endif

EXPORT const char *nvidia_sim_library(void)
{
	return "libnvidia-ml " SIM_VERSION;
}
