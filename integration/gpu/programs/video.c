// Asks the video decoder of the first GPU what it can do with H.264, and the video
// encoder's library for its version: libnvcuvid.so.1, libnvidia-encode.so.1. A GPU
// for computing has decoders and no encoder, and the library says its version there too.
#include <stdint.h>

#include "show.h"

// CUVIDDECODECAPS of NVIDIA's Video Codec SDK.
struct caps {
	int codec, chroma;
	unsigned depth_minus_8, reserved1[3];
	unsigned char supported, decoders;
	unsigned short formats;
	unsigned width, height, blocks;
	unsigned short min_width, min_height;
	unsigned char histogram, counter_depth;
	unsigned short bins;
	unsigned reserved3[10];
};
enum { H264 = 4, CHROMA_420 = 1 };

#define CALL(lib, name, type, ...) do { \
	int r_ = ((int(*)type)find(lib, name))(__VA_ARGS__); \
	if (r_) { printf("%s failed: %d\n", name, r_); return 1; } } while (0)

int main(void) {
	void *cuda = open_library("libcuda.so.1"), *decode = open_library("libnvcuvid.so.1"), *encode = open_library("libnvidia-encode.so.1");
	int device = 0;
	void *context = NULL;
	uint32_t version = 0;
	struct caps caps = {H264, CHROMA_420};
	CALL(cuda, "cuInit", (unsigned), 0);
	CALL(cuda, "cuDeviceGet", (int *, int), &device, 0);
	CALL(cuda, "cuDevicePrimaryCtxRetain", (void **, int), &context, device);
	CALL(cuda, "cuCtxSetCurrent", (void *), context);
	CALL(decode, "cuvidGetDecoderCaps", (struct caps *), &caps);
	printf("h264 supported %d decoders %d to %ux%u\n", caps.supported, caps.decoders, caps.width, caps.height);
	CALL(encode, "NvEncodeAPIGetMaxSupportedVersion", (uint32_t *), &version);
	printf("encode version %u.%u\n", version >> 4, version & 15);
	return 0;
}
