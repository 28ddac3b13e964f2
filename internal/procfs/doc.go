// Package procfs reads the processes of this host: which daemons and shims run, with which
// environment, and to which cgroups a process belongs.
//
//	for _, p := range procfs.Host.Daemons("containerd") {
//		fmt.Println(p.Program, p.Environ["PATH"])
//	}
//
// A process can give itself any name: only Administers says whether to trust what it says about the
// host. Processes may end while they are read; a process that cannot be read is left out.
package procfs
