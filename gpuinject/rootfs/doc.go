// Package rootfs is the root file system that a container will see: its image, and the container's
// own mounts over it, of which nothing but names is known before runc makes them.
//
//	root, err := rootfs.Read(img, dir, spec.Mounts, removed)
//	volume, covered := root.Covering("/etc/ld.so.cache")
//
// It says where something can be put, and refuses mounts that would bring it elsewhere: nothing is
// ever made in a volume of the container's own (T53).
package rootfs
