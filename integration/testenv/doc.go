// Package testenv runs a real containerd with a real runc for one test, in a
// temporary directory, and proves afterwards that the host is as it was.
//
// It is test code and needs root. In: binaries from bin/ and bin/tools (`make
// build tools`), image tars from package images. Out: containers run by ctr,
// with their output and exit status as text to compare.
//
//	func TestMain(m *testing.M) { testenv.Main(m) }
//
//	func TestOpen(t *testing.T) {
//		testenv.EachCgroup(t, func(t *testing.T, version int) {
//			e := testenv.Start(t, testenv.Options{Cgroup: version})
//			e.Import(t, busybox)
//			before := e.Snapshot(t)
//			r := e.Run(t, testenv.RunOptions{Image: images.Ref("busybox"), Args: []string{"true"}})
//			…
//			before.AssertUnchanged(t)
//		})
//	}
//
// Everything of one environment carries its random identifier (Env.ID): the
// temporary directory, the containerd namespace and so the cgroups. That is how
// it finds its own processes, mounts and cgroups, and it never touches others.
// What tests make themselves is in the temporary directory of their process,
// which has a name of its own. A snapshot has what bears one of these names, and
// the places of the host that no other program changes: packages may be tested
// in parallel, beside other container engines.
//
// Cgroup version 1 means the hierarchies as the host has them (v1 or hybrid).
// Version 2 is available everywhere: on a host with v1, containerd gets a mount
// namespace of its own in which /sys/fs/cgroup is the cgroup2 tree.
//
// It must never signal a process that it did not start, change a mount outside
// its directory, or skip a test without saying what is missing.
package testenv
