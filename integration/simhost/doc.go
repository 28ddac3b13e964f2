// Package simhost provides a host with GPUs for tests: a real containerd and runc with the
// simulated driver of integration/simdriver, and what containers see of it.
//
// In: the binaries of `make build tools`, the images of integration/images. Out: a
// running environment, containers in it, and comparisons of what they have with what
// they were granted.
//
//	func TestMain(m *testing.M) { simhost.Main(m) }
//
//	func TestOneGPU(t *testing.T) {
//		h := simhost.New(t, simhost.Options{})
//		simhost.Compare(t, h.Probe(t, simhost.Visible("1")), h.Expect([]int{1}))
//	}
//
// It must never take from the product what a test compares the product with: minor numbers, nodes
// and files are repeated here.
package simhost
