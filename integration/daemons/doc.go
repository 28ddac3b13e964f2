// Package daemons runs GPU containers under every containerd that is in use: Debian's 1.6, 1.7,
// 2.2, 2.3 and the one that the shim is built from, by ctr and by the calls that the kubelet makes
// (CRI).
//
// It is a module of its own, so that the product's go.mod stays short, and test code
// only: `go test ./...` in this directory, as root, after `make build tools` and
// build.sh, which puts the older daemons into bin/daemons.
package daemons
