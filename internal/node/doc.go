// Package node keeps a Kubernetes node installed, from a privileged pod: it installs, runs check,
// sets labels of the node, and repairs what changes.
//
//	programs, account, err := node.EnterHost("/host")
//	k := node.Keeper{Installer: installer, Planner: planner}
//	err = k.Keep(ctx, time.Minute, nil)
//
// If check finds a problem after a change, the files come back as they were. A change that was
// begun is carried out, whatever signal the pod gets, and one that was cut short is completed by
// the next pod: the file of pending restarts says what the daemon has not read yet.
package node
