// Package driver finds the files of this host's NVIDIA driver and the capability that each belongs
// to.
//
// The version of the loaded kernel module decides which of several installed versions is used.
// Files is plain data that is stored as JSON and used again while Fresh reports that nothing has
// changed.
//
//	files, err := driver.Discover(cfg.Host, inventory.DriverVersion)
//	err = files.Check(caps)  // libraries absent, or of another version
//	mine := files.For(caps)  // the files of a container with these capabilities
//
// The lists of names are in kinds.go, those of directories in layouts.go. Hosts whose driver is laid
// out by other rules use Search.
//
// Every look-up is resolved inside the driver root (openat2, kernel 5.6), so that an absolute link
// in a driver container's root cannot name a file of the host. Files that are set-user-id or that
// users other than root can change are refused (T63), and so are world-writable directories. The
// package never executes or loads a file, reads an image, or writes anything.
package driver
