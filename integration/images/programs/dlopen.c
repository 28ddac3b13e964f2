/*
 * dlopen [-s SYMBOL] NAME...: loads each library and prints one line for each:
 * "NAME OK <path of the file that was loaded>" or "NAME <the loader's message>".
 * With -s, SYMBOL is called as int (*)(void) and its value is appended:
 * "NAME OK PATH SYMBOL=VALUE". cuDriverGetVersion is called as int (*)(int *).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

static void load(const char *name, const char *symbol)
{
	struct link_map *map = NULL;
	void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	void *function;
	int value = -1;

	if (!handle) {
		printf("%s %s\n", name, dlerror());
		return;
	}
	/* The handle is a link_map in glibc and begins like one in musl. */
	if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || !map) {
		printf("%s dlinfo failed\n", name);
		return;
	}
	printf("%s OK %s", name, map->l_name);
	if (symbol) {
		function = dlsym(handle, symbol);
		if (!function)
			printf(" %s=absent", symbol);
		else if (strcmp(symbol, "cuDriverGetVersion") == 0)
			((int (*)(int *))function)(&value);
		else
			value = ((int (*)(void))function)();
		if (function)
			printf(" %s=%d", symbol, value);
	}
	printf("\n");
}

int main(int argc, char **argv)
{
	const char *symbol = NULL;
	int i = 1;

	if (argc > 2 && strcmp(argv[1], "-s") == 0) {
		symbol = argv[2];
		i = 3;
	}
	for (; i < argc; i++)
		load(argv[i], symbol);
	return 0;
}
