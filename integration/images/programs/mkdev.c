/*
 * mkdev MAJOR:MINOR...: makes each character device node in /tmp or, where that
 * is not possible, in the working directory, opens it, removes it, and prints one
 * line for each: "MAJOR:MINOR OK", "MAJOR:MINOR <error of open>" or
 * "MAJOR:MINOR mknod <error>".
 */
#include <stdlib.h>
#include <sys/sysmacros.h>
#include "report.h"

static void make_and_open(const char *what, unsigned int major_, unsigned int minor_)
{
	static const char *const directories[] = {"/tmp", "."};
	char path[64];
	size_t i;
	int e = ENOENT, fd;

	for (i = 0; i < sizeof(directories) / sizeof(*directories); i++) {
		snprintf(path, sizeof(path), "%s/mkdev-%u-%u", directories[i], major_, minor_);
		unlink(path);
		if (mknod(path, S_IFCHR | 0600, makedev(major_, minor_)) == 0) {
			fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
			e = errno;
			unlink(path);
			printf("%s %s\n", what, fd < 0 ? error_name(e) : "OK");
			if (fd >= 0)
				close(fd);
			return;
		}
		e = errno;
	}
	printf("%s mknod %s\n", what, error_name(e));
}

int main(int argc, char **argv)
{
	int i;
	unsigned int major_, minor_;

	for (i = 1; i < argc; i++) {
		if (sscanf(argv[i], "%u:%u", &major_, &minor_) != 2) {
			fprintf(stderr, "usage: mkdev MAJOR:MINOR...\n");
			return 2;
		}
		make_and_open(argv[i], major_, minor_);
	}
	return 0;
}
