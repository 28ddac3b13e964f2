/* nvidia-modeset, whose device is minor 254 of the GPUs' major number. */
#include <linux/fs.h>
#include <linux/module.h>

static int __init start(void)
{
	return register_chrdev_region(MKDEV(195, 254), 1, "nvidia-modeset");
}

static void __exit stop(void)
{
	unregister_chrdev_region(MKDEV(195, 254), 1);
}

module_init(start);
module_exit(stop);
MODULE_DESCRIPTION("simulated nvidia-modeset");
MODULE_LICENSE("Apache-2.0");
