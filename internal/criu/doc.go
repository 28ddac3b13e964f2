// Package criu says which versions of runc, crun and CRIU may write and restore checkpoints of
// containers, and which paths CRIU reads back as they were written.
//
//	err := criu.CheckRuntime(output) // of `runc --version`
//	err = criu.CheckCRIU(output)     // of `criu --version`
//	ok := criu.IsPlain(path) // not if criu.HasSeparator(path)
//
// A runtime names external mounts for CRIU by "mnt[<path in the container>]:<path>". In earlier
// versions an image whose links lead to a path with "]:" made CRIU mount any directory of the host
// in the restored container: CVE-2026-119101 (runc), CVE-2026-115520 (crun), CVE-2026-119614
// (CRIU). This package executes nothing.
package criu
