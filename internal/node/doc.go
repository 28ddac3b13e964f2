// Package node keeps the shim installed on a Kubernetes node, from a privileged pod: it installs,
// runs check, sets labels of the node and repairs what changes.
//
//	programs, account, err := node.EnterHost("/host")
//	k := node.Keeper{Installer: installer, Planner: planner}
//	err = k.Keep(ctx, time.Minute, nil)
//
// If check finds a problem after a change, the earlier files are restored. Once begun, a change is
// completed whatever signal the pod gets. If it is interrupted all the same, the next pod completes
// it: the file of pending restarts lists what a daemon has not read yet.
package node
