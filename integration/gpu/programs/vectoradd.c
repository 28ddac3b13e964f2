// Adds two vectors on every GPU that CUDA shows, by the driver API alone: the
// kernel is PTX, which the driver's JIT compiler has to translate, so libcuda and
// libnvidia-ptxjitcompiler are both proven. Prints one line per GPU.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult, CUdevice;
typedef void *CUcontext, *CUmodule, *CUfunction;
typedef unsigned long long CUdeviceptr;

static const char ptx[] =
	".version 7.0\n.target sm_52\n.address_size 64\n"
	".visible .entry add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n) {\n"
	".reg .pred %p; .reg .b32 %r<6>; .reg .b64 %d<8>; .reg .f32 %f<4>;\n"
	"ld.param.u64 %d1, [a]; ld.param.u64 %d2, [b]; ld.param.u64 %d3, [c]; ld.param.u32 %r1, [n];\n"
	"mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.s32 %r5, %r2, %r3, %r4;\n"
	"setp.ge.u32 %p, %r5, %r1; @%p bra done;\n"
	"mul.wide.u32 %d4, %r5, 4; add.s64 %d5, %d1, %d4; add.s64 %d6, %d2, %d4; add.s64 %d7, %d3, %d4;\n"
	"ld.global.f32 %f1, [%d5]; ld.global.f32 %f2, [%d6]; add.f32 %f3, %f1, %f2; st.global.f32 [%d7], %f3;\n"
	"done: ret;\n}\n";

static void *lib;
static void *sym(const char *name) {
	void *p = dlsym(lib, name);
	if (!p) { printf("no symbol %s\n", name); exit(1); }
	return p;
}
#define CALL(name, type, ...) do { \
	CUresult r_ = ((CUresult(*)type)sym(name))(__VA_ARGS__); \
	if (r_) { printf("%s failed: %d\n", name, r_); exit(1); } } while (0)

int main(void) {
	enum { N = 1 << 20 };
	if (!(lib = dlopen("libcuda.so.1", RTLD_NOW))) { printf("dlopen: %s\n", dlerror()); return 1; }
	CALL("cuInit", (unsigned), 0);
	int count = 0;
	CALL("cuDeviceGetCount", (int *), &count);
	printf("count %d\n", count);
	float *h = malloc(N * sizeof *h), *out = malloc(N * sizeof *out);
	for (int i = 0; i < N; i++) h[i] = (float)i;
	for (int k = 0; k < count; k++) {
		CUdevice dev;
		CUcontext ctx;
		CUmodule mod;
		CUfunction fn;
		CUdeviceptr a, b, c;
		unsigned char u[16];
		char bus[32];
		unsigned n = N;
		CALL("cuDeviceGet", (CUdevice *, int), &dev, k);
		CALL("cuDeviceGetUuid", (unsigned char *, CUdevice), u, dev);
		CALL("cuDeviceGetPCIBusId", (char *, int, CUdevice), bus, sizeof bus, dev);
		CALL("cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice), &ctx, dev);
		CALL("cuCtxSetCurrent", (CUcontext), ctx);
		CALL("cuModuleLoadData", (CUmodule *, const void *), &mod, ptx);
		CALL("cuModuleGetFunction", (CUfunction *, CUmodule, const char *), &fn, mod, "add");
		CALL("cuMemAlloc_v2", (CUdeviceptr *, size_t), &a, N * 4);
		CALL("cuMemAlloc_v2", (CUdeviceptr *, size_t), &b, N * 4);
		CALL("cuMemAlloc_v2", (CUdeviceptr *, size_t), &c, N * 4);
		CALL("cuMemcpyHtoD_v2", (CUdeviceptr, const void *, size_t), a, h, N * 4);
		CALL("cuMemcpyHtoD_v2", (CUdeviceptr, const void *, size_t), b, h, N * 4);
		void *args[] = {&a, &b, &c, &n};
		CALL("cuLaunchKernel", (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **),
		     fn, (N + 255) / 256, 1, 1, 256, 1, 1, 0, NULL, args, NULL);
		CALL("cuCtxSynchronize", (void));
		CALL("cuMemcpyDtoH_v2", (void *, CUdeviceptr, size_t), out, c, N * 4);
		int bad = 0;
		for (int i = 0; i < N; i++) bad += out[i] != 2 * h[i];
		printf("device %d GPU-", k);
		for (int i = 0; i < 16; i++) printf("%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", u[i]);
		printf(" %s %s\n", bus, bad ? "WRONG" : "ok");
		if (bad) return 1;
		CALL("cuMemFree_v2", (CUdeviceptr), a);
		CALL("cuMemFree_v2", (CUdeviceptr), b);
		CALL("cuMemFree_v2", (CUdeviceptr), c);
	}
	return 0;
}
