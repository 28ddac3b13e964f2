// Package kubelettest is a PodResources server for tests: a real gRPC server on a real socket, with
// made-up pods.
package kubelettest
