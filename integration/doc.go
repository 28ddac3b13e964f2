// Package integration has one package for each subject that is tested with real parts: a
// real containerd and runc, real images, real device cgroups, and the simulated driver of
// integration/simdriver. Package testenv starts containerd, package simhost adds the driver;
// package gpu has the tests that need real GPUs.
//
// The tests own everything that they start and leave the host as it was. What they need is
// built by `make build tools` and installed by `make deps`; what is missing fails them.
package integration
