// Package version says which build this is, and what its programs are called.
package version

// Version and Revision are set at link time (see the Makefile).
var (
	Version  = "unreleased"
	Revision = "unknown"
)
