// Package runtimeclass makes the shim known: RuntimeClass manifests for Kubernetes,
// and the handler in the configuration of containerd, k3s, RKE2, kind and Docker.
//
//	in:  a Host (a root directory and the daemon's version) and a Registration
//	out: a Plan: files before and after, notes for the operator, the restart command
//
//	reg := runtimeclass.Registration{Handler: "nvidia", BinDir: "/usr/local/bin"}
//	plan, err := runtimeclass.InstallContainerd(host, "/etc/containerd/config.toml", reg)
//	fmt.Print(plan.Diff())
//	err = plan.Apply()
//
// Configuration files belong to the operator: an edit is a splice of whole lines
// between two marker comments, every other byte stays, and the result is decoded
// and compared with what was meant before anything is written. Lines that an edit
// has to switch off are kept as comments. So Uninstall is the exact inverse, whatever
// else has been changed in the file in between.
//
// It never executes a program and never looks at a running daemon: the caller says
// which version it serves. A Plan changes nothing until Apply.
package runtimeclass
