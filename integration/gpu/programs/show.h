// What the programs share: libraries opened by name, as a user's program opens them,
// and a GPU's identifier as nvidia-smi writes it.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// open_library ends the program with the loader's own words where it fails.
static inline void *open_library(const char *name) {
	void *lib = dlopen(name, RTLD_NOW);
	if (!lib) {
		printf("dlopen: %s\n", dlerror());
		exit(1);
	}
	return lib;
}

static inline void *find(void *lib, const char *name) {
	void *p = dlsym(lib, name);
	if (!p) {
		printf("no symbol %s\n", name);
		exit(1);
	}
	return p;
}

static inline void show_uuid(const unsigned char u[16]) {
	printf("GPU-");
	for (int i = 0; i < 16; i++)
		printf("%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", u[i]);
}
