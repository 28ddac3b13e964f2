// Package criu says which paths CRIU reads back as they were written.
//
//	ok := criu.IsPlain(path) // not if criu.HasSeparator(path)
//
// A runtime names external mounts for CRIU by "mnt[<path in the container>]:<path>". In versions with
// an advisory (package advisories) an image whose links lead to a path with "]:" made CRIU mount any
// directory of the host in the restored container.
package criu
