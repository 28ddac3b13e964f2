// Package docker tests the shim under a real Docker Engine: dockerd, the docker command, buildx and
// compose of build.sh, with a simulated driver and the runtime that `nvidia-shimctl install
// --target docker` registers.
//
// One dockerd with one containerd serves all tests. Its files, sockets, containers and cgroups bear
// the environment's identifier; it has no network.
//
// With the tag kind, a cluster of kind runs in it (`make test-kind`), from the node image of
// kindnode and in a network namespace.
package docker
