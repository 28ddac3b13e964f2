// Package check diagnoses a node: it looks for what keeps GPU containers from starting, or gives
// them less than they ask for, and says how to fix it.
//
//	o := check.Options{Root: "/", Proc: procfs.Host}
//	for _, f := range check.Node(ctx, o) {
//		fmt.Println(f.Level, f.Check, f.Message, f.Fix)
//	}
//
// What several checks need is read once: the configurations, containerd's process and version, the
// GPUs and driver files. Each check is a function of that. It changes nothing, and executes only
// containerd, runc, CRIU and the installed programs that the processes and files of the node name.
package check
