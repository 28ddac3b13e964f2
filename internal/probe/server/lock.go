package server

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// lockHost takes the lock of those that ask NVML. It is nil for users that cannot use the state
// directory, which the shim makes before it asks.
func lockHost(host config.Host, limit time.Duration) (*os.File, error) {
	if _, err := os.Lstat(host.StateDir); err != nil || os.Geteuid() != 0 { // guard: probe: one process asks NVML
		return nil, nil
	}
	return lockNVML(host.StateDir, limit)
}

// lockName is the lock that the process which asks NVML holds until it has exited. The file says which
// process that is.
const lockName = "nvml.lock"

// strangerTimeout bounds the wait for a lock that no process asking NVML holds.
const strangerTimeout = time.Second

// lockNVML waits for the lock, unless the process that holds it is overdue. flock(2) needs no write
// access, so root in a container that sees the host's /run can hold the lock forever, but cannot
// write who holds it: a lock whose holder has ended, according to the file, stops no question.
func lockNVML(stateDir string, limit time.Duration) (*os.File, error) {
	st, err := state.Open(stateDir, false)
	if err != nil {
		return nil, err
	}
	name := filepath.Join(stateDir, lockName)
	lock, err := st.Lock(lockName, 0)
	for start := time.Now(); errors.Is(err, state.ErrBusy); lock, err = st.Lock(lockName, 10*time.Millisecond) {
		holder, until := readHolder(name)
		waited := time.Since(start)
		switch {
		case holder == 0 && waited > min(limit, strangerTimeout): // guard: probe: a lock that another program holds
			if lock, err = os.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err != nil {
				return nil, err
			}
			return lock, writeHolder(lock, limit)
		case holder == 0:
		case time.Now().After(until):
			return nil, fmt.Errorf("process %d asked NVML and should have ended at %s, but still hangs: reset the GPU or reboot the host (kill -9 %d has no effect while it is in the kernel)", holder, until.Format(time.TimeOnly), holder)
		case waited > limit:
			return nil, fmt.Errorf("process %d is asking NVML and has not ended within %s", holder, limit)
		}
	}
	if err != nil {
		return nil, err
	}
	return lock, writeHolder(lock, limit)
}

// writeHolder tells waiting processes that this process asks NVML, and when it will have ended.
// After an error the lock is closed.
func writeHolder(lock *os.File, limit time.Duration) error {
	self, err := procfs.Host.ID(os.Getpid())
	if err == nil {
		err = lock.Truncate(0)
	}
	if err == nil {
		_, err = fmt.Fprintf(lock, "%d %d %d\n", self.PID, time.Now().Add(limit+time.Second).UnixNano(), self.Start)
	}
	if err != nil {
		lock.Close()
	}
	return err
}

// readHolder reads which process asks NVML and when it will have ended; pid is 0 if that is unknown
// or if the process has ended.
func readHolder(name string) (pid int, until time.Time) {
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
