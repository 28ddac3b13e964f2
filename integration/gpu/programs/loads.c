// Opens each library that is named, by SONAME or by path, and with :SYMBOL looks a
// function up in it. One line each: "<name> ok <file>" or "<name> <the loader's words>".
// Each is opened in a process of its own, so that none finds what another one opened.
#define _GNU_SOURCE
#include <link.h>
#include <sys/wait.h>
#include <unistd.h>

#include "show.h"

static void load(char *what) {
	char *symbol = strchr(what, ':');
	if (symbol)
		*symbol++ = 0;
	void *lib = dlopen(what, RTLD_NOW | RTLD_LOCAL);
	if (!lib) {
		printf("%s %s\n", what, dlerror());
		return;
	}
	if (symbol && !dlsym(lib, symbol)) {
		printf("%s has no %s\n", what, symbol);
		return;
	}
	struct link_map *map = NULL;
	dlinfo(lib, RTLD_DI_LINKMAP, &map);
	printf("%s ok %s\n", what, map ? map->l_name : "-");
}

int main(int argc, char **argv) {
	for (int i = 1; i < argc; i++) {
		fflush(stdout);
		pid_t child = fork();
		if (child == 0) {
			load(argv[i]);
			fflush(stdout);
			// Without the libraries' destructors: nothing was begun.
			_exit(0);
		}
		int status = 0;
		waitpid(child, &status, 0);
		if (status)
			printf("%s ended with status 0x%x\n", argv[i], status);
	}
	return 0;
}
