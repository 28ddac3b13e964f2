// Package atomicfile writes a file by temporary file and rename: a reader sees the old content or
// the new, never a part.
//
// A process that is killed while it writes leaves a temporary file, named "." + name + Temporary
// and random digits.
package atomicfile
