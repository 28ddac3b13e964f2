/*
 * A shared library that says which one it is: every function gives VALUE.
 * Built with -nostdlib, so that it loads under any C library. With NOTE_FILE the
 * file's bytes become the description of the ELF note by which a CUDA forward
 * compatibility library says which drivers it serves.
 */
#ifndef VALUE
#define VALUE 0
#endif

int foo(void)
{
	return VALUE;
}

#ifdef CUDA
int cuDriverGetVersion(int *version)
{
	*version = VALUE;
	return 0;
}

int cuInit(unsigned int flags)
{
	return flags != 0;
}

int cuDeviceGetCount(int *count)
{
	*count = 0;
	return 0;
}
#endif

#ifdef NOTE_FILE
__asm__(".pushsection .note.cuda.fwd_compatibility, \"a\", %note\n"
	"	.balign 4\n"
	"	.long 2f - 1f\n"
	"	.long 4f - 3f\n"
	"	.long 1\n"
	"1:	.asciz \"NVIDIA Corporation\"\n"
	"2:	.balign 4\n"
	"3:	.incbin \"" NOTE_FILE "\"\n"
	"4:	.balign 4\n"
	"	.popsection\n");
#endif
