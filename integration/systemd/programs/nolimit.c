/*
 * A library to preload into crun: lets its setrlimit(RLIMIT_MEMLOCK) succeed without
 * doing anything. crun 1.8 raises that limit before it loads a device program, and
 * gives up where it may not, which is without CAP_SYS_RESOURCE. Since Linux 5.11 no
 * program is charged to that limit.
 */
#define _GNU_SOURCE
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

int setrlimit(__rlimit_resource_t what, const struct rlimit *limit)
{
	if (what == RLIMIT_MEMLOCK)
		return 0;
	return (int)syscall(SYS_prlimit64, 0, what, limit, NULL);
}
