// Package kubernetes holds the tests with a real Kubernetes node: etcd, API server,
// scheduler, kubelet and containerd with the shim as handler "nvidia", a simulated
// driver of four GPUs, and pods.
//
// In: the binaries of `make build tools` and of build.sh in this directory. Out:
// what pods see of the GPUs, from the inside; what the API server says of them; and
// the record that the shim leaves.
//
// All tests share one node, which TestMain brings up in network and mount namespaces
// of its own: its addresses and ports are its own, and what the kubelet puts
// at fixed paths of the host (/var/log/containers) goes away with it. Its files,
// cgroups and processes bear the identifier of one testenv.Env.
//
// The device plugin is the test's own and speaks the kubelet's API, so that a test
// can choose how it tells containerd what was allocated: see strategy. What was
// allocated the tests learn from the kubelet's PodResources API, by Kubernetes' own
// client. The driver for ResourceClaims is the test's own, too, with Kubernetes' library.
//
// It must never reach a network other than its own, or fetch an image.
package kubernetes
