/*
 * opendev PATH...: opens each path for reading and writing and prints one line
 * for each: "PATH OK" or "PATH" and the error's name. For a device node without a
 * driver, EPERM says that the device cgroup refused and ENXIO that it allowed.
 */
#include "report.h"

/* report_open opens a path and prints "PATH OK" or "PATH <error>". */
static void report_open(const char *path)
{
	int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);

	if (fd < 0) {
		printf("%s %s\n", path, error_name(errno));
		return;
	}
	close(fd);
	printf("%s OK\n", path);
}

int main(int argc, char **argv)
{
	int i;

	for (i = 1; i < argc; i++)
		report_open(argv[i]);
	return 0;
}
