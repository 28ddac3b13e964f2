package criu

import "strings"

// separators end the parts of the name of an external mount: "mnt[key]:value".
const separators = "[]:"

// HasSeparator reports whether a path has a character by which CRIU separates the parts of the name
// of an external mount.
func HasSeparator(path string) bool { return strings.ContainsAny(path, separators) }

// IsPlain reports whether CRIU reads a path back as it was written: it has no separator and
// no character with a meaning in a configuration file (criu(8)), such as a quote, a blank or a line
// feed.
func IsPlain(path string) bool {
	return !HasSeparator(path) && !strings.ContainsFunc(path, func(r rune) bool {
		return r <= ' ' || r == 0x7f || strings.ContainsRune(`"'\#`, r)
	})
}
