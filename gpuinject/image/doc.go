// Package image is the only code that opens a path inside an image.
//
// An image is hostile input: every name in it may be a symbolic link to the host, a magic link, a
// device node, a FIFO or a file of a terabyte. Every look-up is therefore an openat2(2) (kernel
// 5.6) with RESOLVE_IN_ROOT, RESOLVE_NO_XDEV and RESOLVE_NO_SYMLINKS to an O_PATH descriptor. The
// text of a link is read and resolved here, inside the root, with a limit of 40 links and 256
// components. Only a regular file or a directory within the caller's size limit is opened for
// reading. No path of an image is ever joined to a host path (invariant I3; CVE-2024-0132,
// CVE-2024-0133, CVE-2024-0134, CVE-2025-23359, CVE-2026-24260).
//
// Target, Way, Place, IsFile, Inspect, LoaderFiles and the Can and Check functions only read; plans
// are made from their answers. WriteFile and MakeLink carry plans out before `runc create`
// (invariant I4, CVE-2025-23267). This package never executes or mounts anything, and an odd image
// never fails a container here: malformed files are treated as absent.
package image
