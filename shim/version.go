package shim

// Version and Revision of this shim, set at link time.
var (
	Version  = "unreleased"
	Revision = "unknown"
)
