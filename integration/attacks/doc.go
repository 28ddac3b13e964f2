// Package attacks tests hostile images, volumes, specifications, state and driver roots: the
// attacks in docs/threat-model.md, except those that need the parts of another package. The name of
// each test or subtest begins with the numbers of its attacks.
//
// Every attack is run by host.unharmed: the host and the pod's shim must be as before, whether or
// not the container was refused.
//
// `make soak` makes system calls of the shim fail for hours, `make test` for a few seconds.
package attacks
