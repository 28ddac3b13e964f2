// Package openat opens files in trees that this process must not trust, or that belong to another
// host: an image, the driver's root, the root of a tree to prepare, the root of a process. A name
// never leads out of its tree: the kernel resolves it (openat2(2), Linux 5.6). Opening has no effect
// on the file (O_PATH): it is opened for reading only if it is known to be a regular file or a
// directory.
//
//	root, err := openat.Root("/srv/image")
//	fd, st, err := openat.Stat(root, "/etc/os-release", 0, openat.OneMount)
//	data, err := openat.Read(fd, &st, 4096)
//
// It checks no owner: see package trusted. Links of an image are resolved by package image.
package openat
