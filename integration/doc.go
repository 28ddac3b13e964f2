// Package integration proves the shim with real parts: a real containerd and runc,
// real images, real device cgroups, and the simulated driver of
// integration/simdriver, or the real one where there is one.
//
// The tests own everything that they start and leave the host as it was. What they
// need is built by `make build tools` and installed by `make deps`; what is missing
// is said, never skipped over.
package integration
