// Package mountns runs a function on an operating system thread that may change its mount namespace
// and root directory.
//
// That thread never ends. The kernel sends a process its parent death signal when the thread that
// started it ends (prctl(2), PR_SET_PDEATHSIG), and containerd has every runc killed by that
// signal: the Go scheduler may just have started the runc of another container on the same thread.
// So the thread returns to its mount namespace and root after each function, and waits for the next
// one.
//
// The main thread is never used: /proc/PID shows its namespaces for the whole process.
package mountns
