// Package image is the only code that opens a path inside an image.
//
// An image is hostile input: every name in it may be a symbolic link to the
// host, a magic link, a device node, a FIFO or a file of a terabyte. All look-ups
// therefore go through openat2(2) (kernel 5.6) with RESOLVE_IN_ROOT,
// RESOLVE_NO_MAGICLINKS and RESOLVE_NO_XDEV to an O_PATH descriptor; fstat(2) on
// that descriptor must say "regular file" (or "directory") and the size must be
// within the caller's limit before anything is opened for reading. No path of an
// image is ever joined to a host path (invariant I3; CVE-2024-0132,
// CVE-2024-0133, CVE-2024-0134, CVE-2025-23359, CVE-2026-24260).
//
// In: the directory of a mounted root file system. Out: bytes, names and file
// information; and, before `runc create` only (invariant I4, CVE-2025-23267),
// files written into it by temporary name and rename, and links where nothing is.
//
// It must never execute anything, never mount, and never follow a link out of
// the root or onto another mount.
package image
