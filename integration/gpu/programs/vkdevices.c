// Lists the physical devices of Vulkan, one line each, and makes a logical device
// and a queue of each. Only libvulkan.so.1, Khronos' loader, is opened by name; it
// finds NVIDIA's driver by its ICD file.
//
// Types and numbers are those of Vulkan 1.1 and VK_EXT_pci_bus_info.
#include <stdint.h>

#include "show.h"

typedef int32_t Result;
typedef void *Handle;

enum {
	INSTANCE_CREATE_INFO = 1, DEVICE_QUEUE_CREATE_INFO = 2, DEVICE_CREATE_INFO = 3,
	PHYSICAL_DEVICE_PROPERTIES_2 = 1000059001, PHYSICAL_DEVICE_ID_PROPERTIES = 1000071004,
	PHYSICAL_DEVICE_DRIVER_PROPERTIES = 1000196000, PHYSICAL_DEVICE_PCI_BUS_INFO_PROPERTIES_EXT = 1000212000,
};

struct application_info {
	int32_t type;
	const void *next;
	const char *name;
	uint32_t version;
	const char *engine;
	uint32_t engine_version, api;
};
struct instance_info {
	int32_t type;
	const void *next;
	uint32_t flags;
	const struct application_info *application;
	uint32_t layers;
	const char *const *layer_names;
	uint32_t extensions;
	const char *const *extension_names;
};
struct queue_info {
	int32_t type;
	const void *next;
	uint32_t flags, family, count;
	const float *priorities;
};
struct device_info {
	int32_t type;
	const void *next;
	uint32_t flags, queues;
	const struct queue_info *queue_infos;
	uint32_t layers;
	const char *const *layer_names;
	uint32_t extensions;
	const char *const *extension_names;
	const void *features;
};
struct properties {
	int32_t type;
	void *next;
	uint32_t api, driver, vendor, device, kind;
	char name[256];
	uint8_t cache[16];
	uint64_t limits[256]; // of which 524 bytes are written
};
struct id {
	int32_t type;
	void *next;
	uint8_t device[16], driver[16], luid[8];
	uint32_t node_mask, luid_valid;
};
struct driver {
	int32_t type;
	void *next;
	uint32_t id;
	char name[256], info[256];
	uint8_t conformance[4];
};
struct pci {
	int32_t type;
	void *next;
	uint32_t domain, bus, device, function;
};
struct extension {
	char name[256];
	uint32_t version;
};

static Handle instance;
static void *(*address)(Handle, const char *);

static void *function(const char *name) {
	void *p = address(instance, name);
	if (!p) {
		printf("no function %s\n", name);
		exit(1);
	}
	return p;
}

// has_pci tells whether the device can say where it sits.
static int has_pci(Handle device) {
	static struct extension list[1024];
	uint32_t n = 1024;
	if (((Result(*)(Handle, const char *, uint32_t *, struct extension *))function("vkEnumerateDeviceExtensionProperties"))(device, NULL, &n, list) < 0)
		return 0;
	for (uint32_t i = 0; i < n; i++)
		if (!strcmp(list[i].name, "VK_EXT_pci_bus_info"))
			return 1;
	return 0;
}

static void show(int k, Handle device) {
	struct pci pci = {PHYSICAL_DEVICE_PCI_BUS_INFO_PROPERTIES_EXT};
	struct driver driver = {PHYSICAL_DEVICE_DRIVER_PROPERTIES};
	struct id id = {PHYSICAL_DEVICE_ID_PROPERTIES, &driver};
	struct properties p = {PHYSICAL_DEVICE_PROPERTIES_2, &id};
	int known = has_pci(device);
	if (known)
		driver.next = &pci;
	((void (*)(Handle, struct properties *))function("vkGetPhysicalDeviceProperties2"))(device, &p);
	printf("device %d ", k);
	show_uuid(id.device);
	if (known)
		printf(" pci %04x:%02x:%02x.%x", pci.domain, pci.bus, pci.device, pci.function);
	printf(" vendor %04x \"%s\" driver \"%s %s\"", p.vendor, p.name, driver.name, driver.info);

	float priority = 1;
	struct queue_info queue = {DEVICE_QUEUE_CREATE_INFO, NULL, 0, 0, 1, &priority};
	struct device_info info = {DEVICE_CREATE_INFO, NULL, 0, 1, &queue};
	Handle made = NULL;
	Result r = ((Result(*)(Handle, const struct device_info *, const void *, Handle *))function("vkCreateDevice"))(device, &info, NULL, &made);
	if (r)
		printf(" create failed: %d\n", r);
	else {
		printf(" created\n");
		((void (*)(Handle, const void *))function("vkDestroyDevice"))(made, NULL);
	}
}

int main(void) {
	void *lib = open_library("libvulkan.so.1");
	address = (void *(*)(Handle, const char *))find(lib, "vkGetInstanceProcAddr");
	struct application_info app = {0, NULL, "vkdevices", 1, NULL, 0, 1 << 22 | 1 << 12 /* 1.1 */};
	struct instance_info info = {INSTANCE_CREATE_INFO, NULL, 0, &app};
	Handle made = NULL;
	Result r = ((Result(*)(const struct instance_info *, const void *, Handle *))function("vkCreateInstance"))(&info, NULL, &made);
	if (r) {
		printf("vkCreateInstance failed: %d\n", r);
		return 1;
	}
	instance = made;
	Handle devices[64];
	uint32_t count = 64;
	r = ((Result(*)(Handle, uint32_t *, Handle *))function("vkEnumeratePhysicalDevices"))(instance, &count, devices);
	if (r) {
		printf("vkEnumeratePhysicalDevices failed: %d\n", r);
		return 1;
	}
	printf("count %u\n", count);
	for (uint32_t k = 0; k < count; k++) {
		show((int)k, devices[k]);
		fflush(stdout);
	}
	((void (*)(Handle, const void *))function("vkDestroyInstance"))(instance, NULL);
	return 0;
}
