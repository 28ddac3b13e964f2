/*
 * A kernel module that looks like NVIDIA's to programs: its files in /proc, which install.sh writes
 * into files.h, and its major numbers. No device is behind the numbers: open says ENXIO.
 */
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

struct file_content {
	const char *name;
	umode_t mode;
	const char *content; /* NULL for a directory */
};

#include "files.h" /* VERSION, files, parents before children */

#define GPUS 195
#define CONTROL 255
#define CAPS_COUNT 8192

static dev_t caps;

static int show(struct seq_file *m, void *unused)
{
	seq_puts(m, m->private);
	return 0;
}

static void remove_files(void)
{
	remove_proc_subtree("driver/nvidia", NULL);
	remove_proc_subtree("driver/nvidia-caps", NULL);
	remove_proc_subtree("driver/nvidia-nvlink", NULL);
	remove_proc_subtree("driver/nvidia-nvswitch", NULL);
}

static int make_files(void)
{
	const struct file_content *f;

	for (f = files; f->name; f++) {
		if (f->content ? !proc_create_single_data(f->name, f->mode, NULL, show, (void *)f->content) : !proc_mkdir(f->name, NULL)) {
			remove_files();
			return -ENOMEM;
		}
	}
	return 0;
}

static int __init start(void)
{
	int err = register_chrdev_region(MKDEV(GPUS, 0), 254, "nvidia");

	if (err)
		return err;
	err = register_chrdev_region(MKDEV(GPUS, CONTROL), 1, "nvidiactl");
	if (err)
		goto no_control;
	err = alloc_chrdev_region(&caps, 0, CAPS_COUNT, "nvidia-caps");
	if (err)
		goto no_caps;
	err = make_files();
	if (!err)
		return 0;
	unregister_chrdev_region(caps, CAPS_COUNT);
no_caps:
	unregister_chrdev_region(MKDEV(GPUS, CONTROL), 1);
no_control:
	unregister_chrdev_region(MKDEV(GPUS, 0), 254);
	return err;
}

static void __exit stop(void)
{
	remove_files();
	unregister_chrdev_region(caps, CAPS_COUNT);
	unregister_chrdev_region(MKDEV(GPUS, CONTROL), 1);
	unregister_chrdev_region(MKDEV(GPUS, 0), 254);
}

module_init(start);
module_exit(stop);
MODULE_VERSION(VERSION);
MODULE_DESCRIPTION("simulated NVIDIA driver");
MODULE_LICENSE("Apache-2.0");
