// Package rootfs models the root file system that a container will see: its image, and the
// container's own mounts over it, of which only the names are known before runc makes them.
//
//	root, err := rootfs.Read(img, dir, spec.Mounts, removed)
//	volume, covered := root.Covering("/etc/ld.so.cache")
//
// It determines where something can be mounted, and refuses the container's mounts that would
// redirect it: nothing is ever created in one of the container's own volumes (T53).
package rootfs
