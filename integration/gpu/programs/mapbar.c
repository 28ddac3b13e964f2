// Tries to map the first page of each file that is named, read-only, and says how
// far it came. Nothing is read from the mapping: registers have side effects.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv) {
	for (int i = 1; i < argc; i++) {
		int fd = open(argv[i], O_RDONLY);
		if (fd < 0) {
			printf("%s open: %s\n", argv[i], strerror(errno));
			continue;
		}
		void *p = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
		if (p == MAP_FAILED)
			printf("%s mmap: %s\n", argv[i], strerror(errno));
		else
			printf("%s mapped\n", argv[i]);
		close(fd);
	}
	return 0;
}
