// Package conformance runs containerd's conformance suite for shims,
// github.com/containerd/shimtest, against the stock runc shim and against
// containerd-shim-nvidia-v2, and asserts that both give the same result for every
// test.
//
// It is a module of its own, so that the product's go.mod stays short, and test
// code only: `go test ./...` in this directory, as root, after `make build tools`.
//
// The checksum database does not list shimtest v0.3.0. go.sum pins it; to change
// the version, set GONOSUMDB=github.com/containerd/shimtest once.
//
// Of the suites, Run, Exec and OOM are used. Transfer, UDS and Layers are for shims with virtual
// machines, and Network needs host-like networking, which the stock shim does not have either.
package conformance
