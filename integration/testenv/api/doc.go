// Package api speaks containerd's API and that of shims, for tests that need requests that ctr has
// no command for. It is apart from testenv so that test modules without it need no gRPC.
package api
