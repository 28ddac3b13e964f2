// Lists the devices of every OpenCL platform, one line each. libOpenCL.so.1, the ICD
// loader, is opened by name; it finds NVIDIA's by /etc/OpenCL/vendors.
//
// Numbers are those of OpenCL 3.0, cl_khr_device_uuid and cl_nv_device_attribute_query.
#include <stdint.h>

#include "show.h"

typedef int32_t Int;
typedef uint32_t Uint;
typedef void *Handle;

enum {
	CL_PLATFORM_NAME = 0x0902, CL_DEVICE_NAME = 0x102B, CL_DEVICE_UUID_KHR = 0x106A,
	CL_DEVICE_PCI_BUS_ID_NV = 0x4008, CL_DEVICE_PCI_SLOT_ID_NV = 0x4009, CL_DEVICE_PCI_DOMAIN_ID_NV = 0x400A,
	CL_DEVICE_NOT_FOUND = -1,
};

int main(void) {
	void *lib = open_library("libOpenCL.so.1");
	Int (*device_info)(Handle, Uint, size_t, void *, size_t *) = (Int(*)(Handle, Uint, size_t, void *, size_t *))find(lib, "clGetDeviceInfo");
	Handle platforms[16];
	Uint count = 0;
	Int r = ((Int(*)(Uint, Handle *, Uint *))find(lib, "clGetPlatformIDs"))(16, platforms, &count);
	if (r) {
		printf("clGetPlatformIDs failed: %d\n", r);
		return 1;
	}
	printf("platforms %u\n", count);
	for (Uint i = 0; i < count; i++) {
		char name[256] = "";
		((Int(*)(Handle, Uint, size_t, void *, size_t *))find(lib, "clGetPlatformInfo"))(platforms[i], CL_PLATFORM_NAME, sizeof name, name, NULL);
		Handle devices[64];
		Uint n = 0;
		r = ((Int(*)(Handle, uint64_t, Uint, Handle *, Uint *))find(lib, "clGetDeviceIDs"))(platforms[i], 0xFFFFFFFF, 64, devices, &n);
		if (r && r != CL_DEVICE_NOT_FOUND) {
			printf("clGetDeviceIDs failed: %d\n", r);
			return 1;
		}
		printf("platform \"%s\" count %u\n", name, n);
		for (Uint k = 0; k < n; k++) {
			unsigned char uuid[16];
			Uint domain = 0, bus = 0, slot = 0;
			printf("device %u ", k);
			if (device_info(devices[k], CL_DEVICE_UUID_KHR, sizeof uuid, uuid, NULL))
				printf("no-uuid");
			else
				show_uuid(uuid);
			if (!device_info(devices[k], CL_DEVICE_PCI_BUS_ID_NV, sizeof bus, &bus, NULL) &&
			    !device_info(devices[k], CL_DEVICE_PCI_SLOT_ID_NV, sizeof slot, &slot, NULL) &&
			    !device_info(devices[k], CL_DEVICE_PCI_DOMAIN_ID_NV, sizeof domain, &domain, NULL))
				// The slot is device and function in one byte.
				printf(" pci %04x:%02x:%02x.%x", domain, bus, slot >> 3, slot & 7);
			char model[256] = "";
			device_info(devices[k], CL_DEVICE_NAME, sizeof model, model, NULL);
			printf(" \"%s\"\n", model);
		}
	}
	return 0;
}
