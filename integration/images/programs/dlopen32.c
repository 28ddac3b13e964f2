/*
 * dlopen32 NAME...: what dlopen does, as a 32-bit program. It is linked with nothing
 * but a 32-bit C library, so that no 32-bit development files are needed.
 */
#define RTLD_NOW 2
#define RTLD_DI_LINKMAP 2

extern void *dlopen(const char *, int);
extern char *dlerror(void);
extern int dlinfo(void *, int, void *);
extern int printf(const char *, ...);
extern void exit(int);

struct link_map {
	unsigned long addr;
	const char *name;
};

__attribute__((used)) static void run(int *stack)
{
	char **argv = (char **)(stack + 1);
	struct link_map *map = 0;
	void *handle;
	int i;

	for (i = 1; i < stack[0]; i++) {
		handle = dlopen(argv[i], RTLD_NOW);
		if (!handle || dlinfo(handle, RTLD_DI_LINKMAP, &map))
			printf("%s %s\n", argv[i], dlerror());
		else
			printf("%s OK %s\n", argv[i], map->name);
	}
	exit(0);
}

__asm__(".globl _start\n_start:\n\tmov %esp, %eax\n\tand $-16, %esp\n\tsub $12, %esp\n\tpush %eax\n\tcall run\n");
