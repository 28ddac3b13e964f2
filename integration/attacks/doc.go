// Package attacks tests hostile images, volumes, specifications, state and driver roots: the
// attacks that docs/threat-model.md lists by number, as far as no other package has the parts that
// one needs. Every name of a test begins with the numbers of its attacks.
//
// One oracle is around each attack (host.unharmed): the host and the pod's shim have to be as
// before, whether or not the container was refused.
//
// `make soak` has system calls of the shim fail for hours, `make test` for some seconds.
package attacks
