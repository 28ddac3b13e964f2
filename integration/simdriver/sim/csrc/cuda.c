/* The simulated libcuda: the part of the driver API that lists devices, has memory on them, and
 * suspends processes. */
#define _GNU_SOURCE /* O_PATH */
#include "sim.h"

#include <stddef.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#define EXPORT __attribute__((visibility("default")))

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_OPERATING_SYSTEM = 304,
	CUDA_ERROR_ILLEGAL_STATE = 401,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_NOT_SUPPORTED = 801,
	CUDA_ERROR_UNKNOWN = 999,
};

typedef struct {
	char bytes[16];
} CUuuid;

static int initialized;
static unsigned seen[SIM_GPU_COUNT + 1], count;

/* names_thread writes the name of this thread, and reports whether that was possible. */
static int names_thread(void)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/self/task/%ld/comm", syscall(SYS_gettid));
	int fd = open(path, O_RDWR | O_CLOEXEC);
	char name[16];
	ssize_t n = fd < 0 ? -1 : read(fd, name, sizeof name);
	int ok = n > 1 && write(fd, name, (size_t)n - 1) == n - 1; /* without the newline */
	if (fd >= 0)
		close(fd);
	return ok;
}

/* has_socket binds a socket to an abstract name of this process, and reports whether it has one. */
static int has_socket(void)
{
	static int fd = -1;
	if (fd >= 0)
		return 1;
	struct stat ns;
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	if (stat("/proc/self/ns/pid", &ns))
		return 0;
	int n = snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "cuda-uvmfd-%lu-%d", (unsigned long)ns.st_ino, getpid());
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	return fd >= 0 && !bind(fd, (struct sockaddr *)&at, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n));
}

EXPORT int cuInit(unsigned flags)
{
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_may_open("nvidiactl", O_RDWR))
		return CUDA_ERROR_NO_DEVICE;
	count = sim_visible(seen);
	if (count == 0)
		return CUDA_ERROR_NO_DEVICE;
	/* As seen of driver 580 under a filter of system calls, and with a read-only /proc. */
	if (unlink("/tmp/simulated-cuda") && errno == EPERM)
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (!names_thread() || !has_socket())
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (!sim_may_open("nvidia-uvm", O_RDWR))
		return CUDA_ERROR_UNKNOWN;
	initialized = 1;
	return CUDA_SUCCESS;
}

EXPORT int cuDriverGetVersion(int *version)
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = SIM_CUDA;
	return CUDA_SUCCESS;
}

EXPORT int cuDeviceGetCount(int *n)
{
	if (!initialized)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!n)
		return CUDA_ERROR_INVALID_VALUE;
	*n = (int)count;
	return CUDA_SUCCESS;
}

/* gpu finds the GPU of a device handle, which is its ordinal. */
static int gpu(int device, const struct sim_gpu **g)
{
	if (!initialized)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (device < 0 || (unsigned)device >= count)
		return CUDA_ERROR_INVALID_DEVICE;
	*g = &sim_gpus[seen[device]];
	return CUDA_SUCCESS;
}

EXPORT int cuDeviceGet(int *device, int ordinal)
{
	const struct sim_gpu *g;
	int rc = gpu(ordinal, &g);

	if (rc == CUDA_SUCCESS)
		*device = ordinal;
	return rc;
}

EXPORT int cuDeviceGetName(char *name, int len, int device)
{
	const struct sim_gpu *g;
	int rc = gpu(device, &g);

	if (rc == CUDA_SUCCESS)
		snprintf(name, (size_t)len, "%s", g->name);
	return rc;
}

static int nibble(char c)
{
	return c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
}

static CUuuid uuid_of(const struct sim_gpu *g)
{
	const char *s = g->uuid + 4; /* after "GPU-" */
	CUuuid uuid;
	int i;

	for (i = 0; i < 16; s += 2) {
		if (*s == '-')
			s++;
		uuid.bytes[i++] = (char)(nibble(s[0]) << 4 | nibble(s[1]));
	}
	return uuid;
}

EXPORT int cuDeviceGetUuid_v2(CUuuid *uuid, int device)
{
	const struct sim_gpu *g;
	int rc = gpu(device, &g);

	if (rc == CUDA_SUCCESS)
		*uuid = uuid_of(g);
	return rc;
}

EXPORT int cuDeviceGetUuid(CUuuid *uuid, int device)
{
	return cuDeviceGetUuid_v2(uuid, device);
}

EXPORT int cuDeviceGetPCIBusId(char *id, int len, int device)
{
	const struct sim_gpu *g;
	int rc = gpu(device, &g);

	if (rc == CUDA_SUCCESS)
		snprintf(id, (size_t)len, "%04X:%02X:%02X.0", g->domain, g->bus, g->device);
	return rc;
}

EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
	const struct sim_gpu *g;
	int rc = gpu(device, &g);

	if (rc == CUDA_SUCCESS)
		*bytes = (size_t)SIM_MEMORY;
	return rc;
}

/* cuDeviceGetAttribute knows the compute capability and nothing else. */
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	const struct sim_gpu *g;
	int rc = gpu(device, &g);

	if (rc != CUDA_SUCCESS)
		return rc;
	switch (attribute) {
	case 75:
		*value = g->major;
		return CUDA_SUCCESS;
	case 76:
		*value = g->minor_cc;
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_INVALID_VALUE;
}

/*
 * A process with a context has a memfd "nvidia-sim-cuda", whose first page is this,
 * and one "nvidia-sim-gpu" for each allocation, whose mode is the minor number of the GPU
 * that it was made on. Another process finds them in /proc/<pid>/fd. A checkpoint moves the
 * allocations behind the first page and truncates them; a device pointer is
 * (descriptor + 1) << 40 and an offset.
 */
enum { RUNNING, LOCKED, CHECKPOINTED };

struct process {
	unsigned char at[SIM_MINORS]; /* where the memory is (sim.h) */
	int state;
	int calls; /* that have begun and not ended */
	int broken; /* it was restored on a full GPU, after which the driver cannot */
	int node; /* it has a node open */
	unsigned count, seen[SIM_GPU_COUNT]; /* the GPUs that it sees, by position */
};

#define PAGE 4096
static struct process *self;
static int context_device, node = -1;

static int make_memfd(const char *name, off_t size)
{
	int fd = (int)syscall(SYS_memfd_create, name, 1u /* MFD_CLOEXEC */);

	if (fd >= 0 && ftruncate(fd, size)) {
		close(fd);
		return -1;
	}
	return fd;
}

/* No driver is behind the node, but the process is seen to have it open, unless it is
 * suspended. */
static void open_node(void)
{
	char path[512];

	if (sim_path(path, sizeof path, "nvidia-uvm"))
		node = open(path, O_PATH | O_CLOEXEC);
	self->node = node >= 0;
}

static void close_node(void)
{
	close(node);
	node = -1;
	__sync_lock_test_and_set(&self->node, 0);
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device)
{
	const struct sim_gpu *g;
	int fd, rc = gpu(device, &g);

	if (rc != CUDA_SUCCESS)
		return rc;
	if (self) {
		*context = self;
		return CUDA_SUCCESS;
	}
	fd = make_memfd("nvidia-sim-cuda", PAGE);
	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	self = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (self == MAP_FAILED)
		return CUDA_ERROR_OPERATING_SYSTEM;
	open_node();
	for (unsigned i = 0; i < SIM_MINORS; i++)
		self->at[i] = (unsigned char)i;
	self->count = count;
	memcpy(self->seen, seen, sizeof self->seen);
	context_device = device;
	*context = self;
	return CUDA_SUCCESS;
}

EXPORT int cuCtxSetCurrent(void *context)
{
	return context == self ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* A call waits while another process has locked this one. */
static void enter(void)
{
	while (__sync_add_and_fetch(&self->calls, 1), __sync_add_and_fetch(&self->state, 0) != RUNNING) {
		__sync_sub_and_fetch(&self->calls, 1);
		if (self->state == CHECKPOINTED && node >= 0)
			close_node();
		usleep(1000);
	}
	if (node < 0)
		open_node();
}

static void leave(void)
{
	__sync_sub_and_fetch(&self->calls, 1);
}

EXPORT int cuMemAlloc_v2(unsigned long long *pointer, size_t size)
{
	int fd;

	if (!self)
		return CUDA_ERROR_NOT_INITIALIZED;
	enter();
	fd = make_memfd("nvidia-sim-gpu", (off_t)size);
	fchmod(fd, sim_gpus[seen[context_device]].minor);
	leave();
	if (fd < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*pointer = (unsigned long long)(fd + 1) << 40;
	return CUDA_SUCCESS;
}

static int transfer(unsigned long long pointer, void *to, const void *from, size_t size)
{
	int fd = (int)(pointer >> 40) - 1;
	off_t at = (off_t)(pointer & ((1ULL << 40) - 1));
	ssize_t n;

	if (!self)
		return CUDA_ERROR_NOT_INITIALIZED;
	enter();
	n = to ? pread(fd, to, size, at) : pwrite(fd, from, size, at);
	leave();
	return n == (ssize_t)size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t size)
{
	return transfer(to, NULL, from, size);
}

EXPORT int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t size)
{
	return transfer(from, to, NULL, size);
}

EXPORT int cuCtxSynchronize(void)
{
	return CUDA_SUCCESS;
}

#if SIM_CUDA >= 12080 /* driver 570 */

static int open_control(const char *path, const char *name, void *data)
{
	(void)name;
	*(int *)data = open(path, O_RDWR | O_CLOEXEC);
	return 1;
}

/* steered reads what a test wants of a function: lines "FUNCTION PID CODE", with PID 0
 * for every process. With CODE wait the call waits until the line has gone. */
static int steered(const char *function, int pid, int wait)
{
	char path[512], name[64];
	int for_pid, code, found;
	FILE *f;

	do {
		found = 0;
		if (!sim_path(path, sizeof path, "nvidia-sim/checkpoint") || !(f = fopen(path, "re")))
			return CUDA_SUCCESS;
		while (fscanf(f, "%63s %d %d", name, &for_pid, &code) == 3)
			if (!strcmp(name, function) && (!for_pid || for_pid == pid)) {
				found = code;
				break;
			}
		fclose(f);
		if (found == wait)
			usleep(5000);
	} while (found == wait);
	return found;
}

/* begin maps the control page of a process, which must be in the state from. */
static int begin(const char *function, int pid, int from, int *control, struct process **p)
{
	int rc;

	if (!initialized)
		return CUDA_ERROR_NOT_INITIALIZED;
	steered(function, pid, -2);
	*control = -1;
	rc = sim_each(pid, "nvidia-sim-cuda", open_control, control);
	if (*control < 0)
		return rc ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_INVALID_VALUE;
	*p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, *control, 0);
	if (*p == MAP_FAILED) {
		close(*control);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	rc = steered(function, pid, -1);
	if (rc == CUDA_SUCCESS && from >= 0 && (*p)->state != from)
		rc = CUDA_ERROR_ILLEGAL_STATE;
	return rc;
}

static int end(int rc, int control, struct process *p)
{
	munmap(p, PAGE);
	close(control);
	return rc;
}

EXPORT int cuCheckpointProcessGetState(int pid, int *state)
{
	struct process *p = MAP_FAILED;
	int control, rc = begin("GetState", pid, -1, &control, &p);

	if (p == MAP_FAILED)
		return rc;
	*state = p->state;
	return end(rc, control, p);
}

EXPORT int cuCheckpointProcessLock(int pid, unsigned *timeout_ms)
{
	struct process *p = MAP_FAILED;
	int control, rc = begin("Lock", pid, RUNNING, &control, &p);
	unsigned waited;

	if (p == MAP_FAILED)
		return rc;
	if (rc == CUDA_SUCCESS) {
		__sync_lock_test_and_set(&p->state, LOCKED);
		for (waited = 0; __sync_add_and_fetch(&p->calls, 0) && rc == CUDA_SUCCESS; waited++) {
			usleep(1000);
			if (*timeout_ms && waited >= *timeout_ms) {
				p->state = RUNNING;
				rc = CUDA_ERROR_NOT_READY;
			}
		}
	}
	return end(rc, control, p);
}

/* copy moves size bytes between files. */
static int copy(int from, off_t at, int to, off_t where, off_t size)
{
	char buffer[1 << 16];
	off_t done = 0;
	ssize_t n;

	while (done < size) {
		n = pread(from, buffer, size - done < (off_t)sizeof buffer ? (size_t)(size - done) : sizeof buffer, at + done);
		if (n <= 0 || pwrite(to, buffer, (size_t)n, where + done) != n)
			return CUDA_ERROR_OPERATING_SYSTEM;
		done += n;
	}
	return CUDA_SUCCESS;
}

struct move {
	int control;
	off_t at; /* in control */
};

static int save(const char *path, const char *name, void *data)
{
	struct move *m = data;
	struct stat st;
	off_t size;
	int rc = CUDA_ERROR_OPERATING_SYSTEM, fd = open(path, O_RDWR | O_CLOEXEC);

	(void)name;
	if (fd >= 0 && !fstat(fd, &st)) {
		size = st.st_size;
		rc = CUDA_SUCCESS;
		if (pwrite(m->control, &size, sizeof size, m->at) != sizeof size || copy(fd, 0, m->control, m->at + PAGE, size) || ftruncate(fd, 0))
			rc = CUDA_ERROR_OPERATING_SYSTEM;
		m->at += PAGE + size;
	}
	close(fd);
	return rc;
}

/* fits reports whether size bytes fit beside what all processes have on a GPU, whose
 * memory a test may have made smaller. */
static int fits(unsigned minor, off_t size)
{
	struct sim_use use = {.minor = minor, .size = size};
	struct dirent *e;
	DIR *d = opendir(sim_proc());

	while (d && (e = readdir(d)))
		if (atoi(e->d_name) > 0)
			sim_add_process(atoi(e->d_name), &use);
	if (d)
		closedir(d);
	return (unsigned long long)use.size <= sim_memory();
}

struct restore_args { /* CUcheckpointRestoreArgs */
	struct {
		CUuuid from, to;
	} *pairs;
	unsigned count;
};

struct restoration {
	struct move move;
	const struct process *process;
	const struct restore_args *args;
};

/* position is where a UUID is among the GPUs that a process sees, or count. */
static unsigned position(const struct process *p, const CUuuid *uuid)
{
	unsigned i;
	CUuuid known;

	for (i = 0; i < p->count; i++) {
		known = uuid_of(&sim_gpus[p->seen[i]]);
		if (!memcmp(&known, uuid, sizeof known))
			break;
	}
	return i;
}

/* The pairs have to name each GPU that the process sees, and no other, once on each side
 * (seen of driver 580). */
static int valid(const struct process *p, const struct restore_args *args)
{
	unsigned i, k, from = 0, to = 0;

	if (args->count == 0)
		return 1;
	for (i = 0; i < args->count; i++) {
		k = position(p, &args->pairs[i].from);
		if (k == p->count || from & 1u << k)
			return 0;
		from |= 1u << k;
		k = position(p, &args->pairs[i].to);
		if (k == p->count || to & 1u << k)
			return 0;
		to |= 1u << k;
	}
	return args->count == p->count;
}

/* destination is where memory goes that was allocated on the GPU of this minor number. */
static unsigned destination(const struct restoration *r, unsigned minor)
{
	const struct process *p = r->process;
	unsigned i;
	CUuuid uuid;

	minor = p->at[minor];

	for (i = 0; i < r->args->count; i++) {
		uuid = r->args->pairs[i].from;
		if (sim_gpus[p->seen[position(p, &uuid)]].minor == minor) {
			uuid = r->args->pairs[i].to;
			return sim_gpus[p->seen[position(p, &uuid)]].minor;
		}
	}
	return minor;
}

static int restore(const char *path, const char *name, void *data)
{
	struct restoration *r = data;
	struct move *m = &r->move;
	struct stat st;
	off_t size;
	int rc = CUDA_ERROR_OPERATING_SYSTEM, fd = open(path, O_RDWR | O_CLOEXEC);

	(void)name;
	if (fd >= 0 && !fstat(fd, &st) && pread(m->control, &size, sizeof size, m->at) == sizeof size) {
		rc = fits(destination(r, st.st_mode % SIM_MINORS), size) ? copy(m->control, m->at + PAGE, fd, 0, size) : CUDA_ERROR_OUT_OF_MEMORY;
		m->at += PAGE + size;
	}
	close(fd);
	return rc;
}

static int drop(const char *path, const char *name, void *data)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	(void)name, (void)data;
	(void)!ftruncate(fd, 0);
	close(fd);
	return 0;
}

EXPORT int cuCheckpointProcessCheckpoint(int pid, void *args)
{
	struct process *p = MAP_FAILED;
	struct move m = {-1, PAGE};
	int waited, rc = begin("Checkpoint", pid, LOCKED, &m.control, &p);

	(void)args;
	if (p == MAP_FAILED)
		return rc;
	if (rc == CUDA_SUCCESS && (rc = sim_each(pid, "nvidia-sim-gpu", save, &m)) == CUDA_SUCCESS) {
		p->state = CHECKPOINTED;
		/* A process that makes no call keeps the node. */
		for (waited = 0; waited < 1000 && __sync_add_and_fetch(&p->node, 0); waited++)
			usleep(1000);
	}
	return end(rc, m.control, p);
}

EXPORT int cuCheckpointProcessRestore(int pid, struct restore_args *args)
{
	struct process *p = MAP_FAILED;
	struct restoration r = {{-1, PAGE}, NULL, args};
	struct move *m = &r.move;
	unsigned char at[SIM_MINORS];
	unsigned i;
	int rc = begin("Restore", pid, CHECKPOINTED, &m->control, &p);

	if (p == MAP_FAILED)
		return rc;
	r.process = p;
	if (rc == CUDA_SUCCESS && !valid(p, args))
		rc = CUDA_ERROR_INVALID_VALUE;
	else if (rc == CUDA_SUCCESS && p->broken)
		rc = CUDA_ERROR_OPERATING_SYSTEM;
	else if (rc == CUDA_SUCCESS) {
		rc = sim_each(pid, "nvidia-sim-gpu", restore, &r);
		p->broken = rc == CUDA_ERROR_OUT_OF_MEMORY;
		if (rc != CUDA_SUCCESS)
			sim_each(pid, "nvidia-sim-gpu", drop, NULL);
		else if (ftruncate(m->control, PAGE) == 0) {
			for (i = 0; i < SIM_MINORS; i++)
				at[i] = (unsigned char)destination(&r, i);
			memcpy(p->at, at, sizeof at);
			p->state = LOCKED;
		}
	}
	return end(rc, m->control, p);
}

EXPORT int cuCheckpointProcessUnlock(int pid, void *args)
{
	struct process *p = MAP_FAILED;
	int control, rc = begin("Unlock", pid, LOCKED, &control, &p);

	(void)args;
	if (p == MAP_FAILED)
		return rc;
	if (rc == CUDA_SUCCESS)
		p->state = RUNNING;
	return end(rc, control, p);
}

#endif

static const struct {
	int code;
	const char *name, *text;
} errors[] = {
	{CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
	{CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{CUDA_ERROR_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
	{CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
	{CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
	{CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
	{CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	{CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

EXPORT int cuGetErrorString(int code, const char **text)
{
	unsigned i;

	for (i = 0; i < sizeof errors / sizeof errors[0]; i++)
		if (errors[i].code == code) {
			*text = errors[i].text;
			return CUDA_SUCCESS;
		}
	*text = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

EXPORT int cuGetErrorName(int code, const char **name)
{
	unsigned i;

	for (i = 0; i < sizeof errors / sizeof errors[0]; i++)
		if (errors[i].code == code) {
			*name = errors[i].name;
			return CUDA_SUCCESS;
		}
	*name = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

EXPORT const char *nvidia_sim_library(void)
{
	return "libcuda " SIM_VERSION;
}
