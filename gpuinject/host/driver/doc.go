// Package driver finds the files of this host's NVIDIA driver and says which
// capability each belongs to.
//
// In: the driver root and its ld.so.cache, a list of known directories, further
// directories of the configuration, and the version of the *loaded* kernel module,
// which decides which of several installed versions is taken. Out: Files, plain
// data that is stored as JSON and used again while Fresh says that nothing changed.
//
//	files, err := driver.Discover(cfg.Host, inventory.DriverVersion)
//	err = files.Check(caps)  // libraries absent, or of another version
//	mine := files.For(caps)  // what a container with these capabilities gets
//
// No path is assumed: drivers are found under Debian's and Red Hat's directories,
// in a squashfs at /usr/local/nvidia, below /home/kubernetes/bin/nvidia,
// /run/opengl-driver or in a driver container's root.
//
// Every look-up is resolved inside the driver root (openat2 RESOLVE_IN_ROOT and
// RESOLVE_NO_MAGICLINKS, kernel 5.6), so that an absolute link in a driver
// container's root cannot name a file of the host. Files that are set-user-id,
// that everybody can write, or that root does not own are refused (security.md
// T63), and so are such directories.
//
// It must never execute or load a file, follow a link out of the driver root, look
// into an image, or write anything.
package driver
