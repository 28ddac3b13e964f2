/*
 * hear SOCKET...: connects to each unix socket and prints what the other side says,
 * or "SOCKET" and the error's name.
 */
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "report.h"

/* report_socket connects and copies to the standard output. */
static void report_socket(const char *path)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	char text[256];
	ssize_t n;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	strncpy(to.sun_path, path, sizeof(to.sun_path) - 1);
	if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0) {
		printf("%s %s\n", path, error_name(errno));
		return;
	}
	while ((n = read(fd, text, sizeof(text))) > 0)
		fwrite(text, 1, (size_t)n, stdout);
	close(fd);
}

int main(int argc, char **argv)
{
	int i;

	for (i = 1; i < argc; i++)
		report_socket(argv[i]);
	return 0;
}
