// A modprobe for a fixture root, which is its whole world: it writes down how it was
// called and "loads" a module by moving what is kept for it into /proc and /sys.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

extern char **environ;

int main(int argc, char **argv) {
	char from[256], to[256];
	int variables = 0;
	while (environ[variables]) variables++;
	FILE *log = fopen("/log", "a");
	if (!log) return 9;
	fprintf(log, "%s %s %d arguments %d variables\n", argv[0], argc > 1 ? argv[1] : "", argc, variables);
	fclose(log);
	if (argc != 2) return 9;
	snprintf(from, sizeof from, "/later/%s.fails", argv[1]);
	struct stat st;
	if (stat(from, &st) == 0) {
		fprintf(stderr, "modprobe: ERROR: could not insert '%s': No such device\n", argv[1]);
		return 1;
	}
	const char *places[] = {"proc/driver", "proc/devices", "sys/module"};
	for (int i = 0; i < 3; i++) {
		snprintf(from, sizeof from, "/later/%s/%s", argv[1], places[i]);
		snprintf(to, sizeof to, "/%s", places[i]);
		rename(from, to);
	}
	return 0;
}
