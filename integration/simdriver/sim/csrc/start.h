/*
 * The entry point of the simulated programs. Debian's own start files bind to
 * __libc_start_main and dlopen of glibc 2.34; the first versions of these
 * symbols, which every glibc still has, let the programs run in older images.
 */
#ifndef START_H
#define START_H

#if defined(__x86_64__)
#define FIRST_GLIBC "GLIBC_2.2.5"
__asm__(".symver __libc_start_main, __libc_start_main@" FIRST_GLIBC "\n"
	".globl _start\n"
	".type _start, @function\n"
	"_start:\n"
	"	xor %ebp, %ebp\n"
	"	mov %rdx, %r9\n" /* rtld_fini */
	"	pop %rsi\n"	 /* argc */
	"	mov %rsp, %rdx\n" /* argv */
	"	and $-16, %rsp\n"
	"	push %rax\n"
	"	push %rsp\n" /* stack_end */
	"	xor %r8d, %r8d\n" /* fini */
	"	xor %ecx, %ecx\n" /* init */
	"	lea main(%rip), %rdi\n"
	"	call *__libc_start_main@GOTPCREL(%rip)\n"
	"	hlt\n");
#elif defined(__aarch64__)
#define FIRST_GLIBC "GLIBC_2.17"
__asm__(".symver __libc_start_main, __libc_start_main@" FIRST_GLIBC "\n"
	".globl _start\n"
	".type _start, %function\n"
	"_start:\n"
	"	mov x29, #0\n"
	"	mov x30, #0\n"
	"	mov x5, x0\n" /* rtld_fini */
	"	ldr x1, [sp]\n" /* argc */
	"	add x2, sp, #8\n" /* argv */
	"	mov x6, sp\n" /* stack_end */
	"	adrp x0, main\n"
	"	add x0, x0, :lo12:main\n"
	"	mov x3, #0\n" /* init */
	"	mov x4, #0\n" /* fini */
	"	bl __libc_start_main\n"
	"	brk #1\n");
#else
#error "the simulated driver knows amd64 and arm64"
#endif

#endif
