// Package procfs reads the processes of this host: which daemons and shims run, with which
// environment, and to which cgroups a process belongs.
//
//	for _, p := range procfs.Host.Running("containerd") {
//		fmt.Println(p.Program, p.Args)
//	}
//
// Running is the one place that decides which processes are the host's. Processes may end while
// they are read; a process that cannot be read is left out.
package procfs
