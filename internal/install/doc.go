// Package install installs the programs and the runtime handler on this host or in a tree, and
// undoes it: it finds the daemon, asks for its version, carries out the plan of package
// runtimeclass, prints what changed and restarts the daemon on request.
//
//	in := install.Installer{Host: host, Options: options, Out: os.Stdout, Err: os.Stderr}
//	err := in.Install(ctx)
//
// Only package runtimeclass knows the daemons' files.
package install
