// Package osthread runs a function on an operating system thread of its own, for
// system calls that change what a thread is: its mount namespace, its root
// directory.
//
// Such a thread is never given back to the Go scheduler, and it never ends. The
// kernel sends a process its parent death signal when the *thread* that started it
// ends (prctl(2), PR_SET_PDEATHSIG), and containerd has every runc killed by that
// signal. Which thread a goroutine is locked to nobody can choose: it may be one
// that has started the runc of another container of the pod a moment ago. So the
// thread goes back to the mount namespace and the root that it came from and waits
// for the next function.
//
// The main thread is never used: its namespaces are what /proc/PID of the whole
// process shows.
package mountns
