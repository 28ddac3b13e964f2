/* The major number of nvidia-uvm: that of the parameter, or any, as NVIDIA's module takes one. */
#include <linux/fs.h>
#include <linux/module.h>

static unsigned int major;
module_param(major, uint, 0444);
static dev_t first;

static int __init start(void)
{
	first = MKDEV(major, 0);
	return major ? register_chrdev_region(first, 2, "nvidia-uvm") : alloc_chrdev_region(&first, 0, 2, "nvidia-uvm");
}

static void __exit stop(void)
{
	unregister_chrdev_region(first, 2);
}

module_init(start);
module_exit(stop);
MODULE_DESCRIPTION("simulated nvidia-uvm");
MODULE_LICENSE("Apache-2.0");
