package state

import (
	"fmt"
	"os"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// StrangerTimeout is how long a lock is waited for that no process of ReadHolder holds: one that has
// just taken it may not have written yet who it is.
const StrangerTimeout = time.Second

// WriteHolder writes to a locked file that this process holds it, and until when. After an error the
// lock is closed.
func WriteHolder(lock *os.File, until time.Time) error {
	self, err := procfs.Host.ID(os.Getpid())
	if err == nil {
		err = lock.Truncate(0)
	}
	if err == nil {
		_, err = fmt.Fprintf(lock, "%d %d %d\n", self.PID, until.UnixNano(), self.Start)
	}
	if err != nil {
		lock.Close()
	}
	return err
}

// ReadHolder reads which process holds the lock of this path, and until when; pid is 0 if that is
// unknown or if the process has ended. flock(2) needs no write access, so root in a container that
// sees the host's /run can hold a lock forever, but it cannot write that it does.
func ReadHolder(name string) (pid int, until time.Time) {
	var nanoseconds int64
	var start uint64
	data, err := os.ReadFile(name)
	if err == nil {
		_, err = fmt.Sscanf(string(data), "%d %d %d", &pid, &nanoseconds, &start)
	}
	var now procfs.ID
	if err == nil {
		now, err = procfs.Host.ID(pid)
	}
	if err != nil || now.Start != start { // guard: probe: the same process holds it
		return 0, time.Time{}
	}
	return pid, time.Unix(0, nanoseconds)
}
