// Package version says which build this is.
package version

// Version and Revision are set at link time (see the Makefile).
var (
	Version  = "unreleased"
	Revision = "unknown"
)
