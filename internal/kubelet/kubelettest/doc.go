// Package kubelettest is a PodResources server for tests of what happens between the
// shim and a kubelet: a real gRPC server on a real socket with made-up pods. What a
// real kubelet says is tested with one.
package kubelettest
