// Package ldcache makes the dynamic linker of an image find the driver without
// executing anything: no ldconfig of the host and none of the image, which is
// where CVE-2024-0135, CVE-2024-0136, CVE-2024-0137 and CVE-2025-23267 were.
//
// In: an open root file system (package rootfs), the version of the host's
// driver, the directories of the container that hold the driver's libraries and
// the names those libraries answer to. Out: which C library the image has and
// where it lives (Image), whether the image's own forward compatibility
// libraries win over the driver's (Compat), and the bytes of the few files to
// write before `runc create` (File): /etc/ld.so.cache, one fixed-name entry of
// /etc/ld.so.conf.d, /etc/ld.so.conf where it would not read that entry, or
// musl's /etc/ld-musl-<arch>.path.
//
//	img, err := ldcache.Inspect(root, "580.95.05")
//	files, notes := img.Update(root, dirs, libs)
//	for _, f := range files {
//		err := root.WriteFile(f.Path, f.Data, f.Mode, f.Mkdir)
//	}
//
// Every byte read here was written by whoever made the image. The parsers of the
// cache (ParseCache) and of ELF files (ReadELF) are therefore written by hand,
// bounded in time and memory, and fuzzed. What is malformed counts as absent; a
// wrong answer can harm the container that asked for it and nobody else.
//
// It must never execute, mount or write anything, open a path of an image other
// than through package rootfs, fail a container because its image is odd, or
// leave more behind when it runs again on its own output.
package ldcache
