// Package runtimeclass makes the shim known: it puts the handler into the configuration of
// containerd, k3s, RKE2, kind and Docker.
//
//	in:  a Host (a root directory and containerd's version) and Options
//	out: a Plan: files before and after, notes for the operator, the restart command
//
//	plan, err := runtimeclass.Install(host, runtimeclass.Options{Target: runtimeclass.Containerd, ...})
//	fmt.Print(plan.Diff())
//	err = plan.Apply()
//	err = plan.Restart.Run(ctx, os.Stderr)
//
// Configuration files belong to the operator. A daemon that merges a directory of files gets a file
// of its own there. Otherwise the handler's tables are appended to the file between two marker
// comments, and lines that they replace become comments; every other byte stays, so uninstalling is
// the exact inverse, whatever else was changed in between. daemon.json has no comments: it is
// decoded and encoded again, and the original is kept beside it.
//
// Neither Install nor Uninstall changes anything before Apply.
package runtimeclass
