// Package runtimeclass registers the shim: it adds the handler to the configuration of containerd,
// k3s, RKE2, kind and Docker.
//
//	in:  a Host (a root directory and containerd's version) and Options
//	out: a Plan: files before and after, notes for the operator, the restart command
//
//	plan, err := runtimeclass.Install(host, runtimeclass.Options{Target: runtimeclass.Containerd, ...})
//	fmt.Print(plan.Diff())
//	err = plan.Apply()
//	err = plan.Restart.Run(ctx, os.Stderr)
//
// A daemon is one file with a type that implements registrar. The rest, other packages included, asks
// for the values of a Daemon, not for its name.
//
// Configuration files belong to the operator. If the daemon merges a directory of files, the
// handler gets its own file there. Otherwise the handler's tables are appended to the file between
// two marker comments, and lines that they replace become comments. Every other byte stays, so
// uninstalling is the exact inverse, even if other lines changed in between. daemon.json has no
// comments: it is decoded and encoded again, and the original is kept next to it.
//
// Neither Install nor Uninstall changes anything before Apply.
package runtimeclass
