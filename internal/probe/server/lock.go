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

// lockNVML waits for the lock, unless the process that holds it is overdue. A lock that no process
// asking NVML holds stops no question: see state.ReadHolder.
func lockNVML(stateDir string, limit time.Duration) (*os.File, error) {
	st, err := state.Open(stateDir, false)
	if err != nil {
		return nil, err
	}
	name := filepath.Join(stateDir, lockName)
	lock, err := st.Lock(lockName, 0)
	for start := time.Now(); errors.Is(err, state.ErrBusy); lock, err = st.Lock(lockName, 10*time.Millisecond) {
		holder, until := state.ReadHolder(name)
		waited := time.Since(start)
		switch {
		case holder == 0 && waited > min(limit, state.StrangerTimeout): // guard: probe: a lock that another program holds
			if lock, err = os.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err != nil {
				return nil, err
			}
			return lock, state.WriteHolder(lock, time.Now().Add(limit+time.Second))
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
	return lock, state.WriteHolder(lock, time.Now().Add(limit+time.Second))
}
