package nvml

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// reservation is the memory that this process moves, in a file of the state directory. It ends with
// the process: the file's name says which process that is. There is no lock. Each process writes
// its own file before it reads the files of others, so of two processes that want the same memory
// at least one sees the other.
type reservation struct {
	dir  string
	file *os.File
}

// reservationName is the name of the file of a process.
func reservationName(id procfs.ID) string { return fmt.Sprintf("moving-%d-%d.json", id.PID, id.Start) }

// openReservation makes the file of this process in the state directory and removes those of
// processes that have ended.
func openReservation(stateDir string) (r reservation, err error) {
	st, err := state.Open(stateDir, false)
	if err != nil {
		return r, err
	}
	r.dir = st.Dir()
	names, _ := filepath.Glob(filepath.Join(r.dir, "moving-*.json"))
	for _, name := range names {
		var id procfs.ID
		if _, err := fmt.Sscanf(filepath.Base(name), "moving-%d-%d.json", &id.PID, &id.Start); err != nil {
			continue
		}
		now, err := procfs.Host.ID(id.PID)
		if err == nil && now != id || procfs.HasEnded(err) {
			_ = os.Remove(name)
		}
	}
	self, err := procfs.Host.ID(os.Getpid())
	if err == nil {
		r.file, err = os.OpenFile(filepath.Join(r.dir, reservationName(self)), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	}
	return r, err
}

// inheritedFile is the file that Confine has opened. It is never closed.
var inheritedFile = sync.OnceValue(func() *os.File { return os.NewFile(probe.ReservationFD, "reservation") })

// inheritedReservation returns the reservation that Confine has opened.
func inheritedReservation(host config.Host) reservation {
	return reservation{host.StateDir, inheritedFile()}
}

// take reserves memory, in bytes by what it is of: a GPU's UUID, a directory of cgroups, or "" for
// the host. It returns what other processes have reserved.
func (r reservation) take(needs map[string]uint64) (others map[string]uint64, err error) {
	data, err := json.Marshal(needs)
	if err == nil {
		_, err = r.file.WriteAt(data, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("reserve memory: %w", err)
	}
	own, err := r.file.Stat()
	if err != nil {
		return nil, err
	}
	others = map[string]uint64{}
	names, _ := filepath.Glob(filepath.Join(r.dir, "moving-*.json"))
	for _, name := range names {
		if info, err := os.Stat(name); err == nil && os.SameFile(info, own) {
			continue
		}
		theirs, err := readReservation(name)
		if err != nil {
			return nil, fmt.Errorf("what other processes move is unknown: %w", err)
		}
		for key, bytes := range theirs {
			others[key] += bytes
		}
	}
	return others, nil
}

// readReservation reads the file of another process, which may be writing it now.
func readReservation(name string) (needs map[string]uint64, err error) {
	for range 20 {
		data, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) || err == nil && len(data) == 0 {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if json.Unmarshal(data, &needs) == nil {
			return needs, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil, fmt.Errorf("%s is not valid JSON", name)
}

// release ends the reservation before the process ends.
func (r reservation) release() { _ = r.file.Truncate(0) }

// promised says how much memory others have reserved, if any.
func promised(bytes uint64) string {
	if bytes == 0 {
		return ""
	}
	return fmt.Sprintf(", beside %d MiB that other containers move now", bytes>>20)
}
