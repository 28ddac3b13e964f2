package nvml

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// reservation is the memory that this process moves, in a file of the state directory that it has
// locked: the end of the process ends it. The file says which process that is, because another
// program may lock it as well: flock(2) needs no write access. Each process writes its own file
// before it reads those of others, so of two processes that want the same memory at least one sees
// the other.
type reservation struct {
	dir  string
	file *os.File
}

// reserved is the content of such a file.
type reserved struct {
	Process procfs.ID
	// Needs is memory, in bytes by what it is of: a GPU's UUID, a directory of cgroups, or "" for the
	// host.
	Needs map[string]uint64
}

// maxReservations limits the processes that move memory at once.
const maxReservations = 256

func reservationName(n int) string { return fmt.Sprintf("moving-%d.json", n) }

// openReservation takes a file of the state directory that no process has.
func openReservation(stateDir string) (r reservation, err error) {
	st, err := state.Open(stateDir, false)
	if err != nil {
		return r, err
	}
	if err := removeEnded(st); err != nil {
		return r, err
	}
	for n := range maxReservations {
		f, err := st.Lock(reservationName(n), 0)
		if errors.Is(err, state.ErrBusy) {
			continue
		}
		if err != nil {
			return r, err
		}
		r = reservation{st.Dir(), f}
		return r, r.write(nil)
	}
	return r, fmt.Errorf("%d processes suspend or resume GPUs: try again", maxReservations)
}

// removeEnded removes files that are locked although their process has ended.
func removeEnded(st *state.State) error {
	for _, name := range reservations(st.Dir()) {
		f, err := st.Lock(filepath.Base(name), 0)
		if err == nil {
			f.Close()
		} else if errors.Is(err, state.ErrBusy) && !isLiving(name) { // guard: probe: reservations of the ended removed
			if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

func reservations(dir string) []string {
	names, _ := filepath.Glob(filepath.Join(dir, "moving-*.json"))
	return names
}

// isLiving reports whether the process that a file names may still run. One that has just taken the
// file may not have written yet who it is.
func isLiving(name string) bool {
	for range 20 {
		var r reserved
		data, err := os.ReadFile(name)
		if err == nil && json.Unmarshal(data, &r) == nil {
			now, err := procfs.Host.ID(r.Process.PID)
			return err != nil && !procfs.HasEnded(err) || err == nil && now == r.Process
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}

// write replaces the content of the file.
func (r reservation) write(needs map[string]uint64) error {
	self, err := procfs.Host.ID(os.Getpid())
	if err != nil {
		return err
	}
	data, err := json.Marshal(reserved{self, needs})
	if err == nil && len(data) > maxReservation {
		err = errors.New("the processes are in too many cgroups")
	}
	if err == nil {
		err = r.file.Truncate(0)
	}
	if err == nil {
		_, err = r.file.WriteAt(data, 0)
	}
	return err
}

// inheritedFile is the file that Confine has opened. It is never closed.
var inheritedFile = sync.OnceValue(func() *os.File { return os.NewFile(probe.ReservationFD, "reservation") })

// inheritedReservation returns the reservation that Confine has opened.
func inheritedReservation(host config.Host) reservation {
	return reservation{host.StateDir, inheritedFile()}
}

// maxReservation limits the size of a file, in bytes.
const maxReservation = 1 << 20

// take reserves memory, as reserved.Needs has it. It returns what other processes have reserved.
func (r reservation) take(needs map[string]uint64) (others map[string]uint64, err error) {
	if err := r.write(needs); err != nil {
		return nil, fmt.Errorf("reserve memory: %w", err)
	}
	own, err := r.file.Stat()
	if err != nil {
		return nil, err
	}
	others = map[string]uint64{}
	for _, name := range reservations(r.dir) {
		if info, err := os.Stat(name); err == nil && os.SameFile(info, own) {
			continue
		}
		theirs, err := readReservation(name)
		if err != nil {
			return nil, fmt.Errorf("what other processes move is unknown: %w", err)
		}
		for key, bytes := range theirs {
			others[key] += bytes // guard: probe: memory reserved
		}
	}
	return others, nil
}

// readReservation reads the file of another process, which may be writing it now. It returns nil if
// no process has it.
func readReservation(name string) (needs map[string]uint64, err error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for range 20 {
		// guard: probe: reserved by the living
		if err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err == nil {
			return nil, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, err
		}
		data, err := io.ReadAll(io.NewSectionReader(f, 0, maxReservation))
		if err != nil || len(data) == 0 {
			return nil, err
		}
		var r reserved
		if json.Unmarshal(data, &r) == nil {
			return r.Needs, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil, fmt.Errorf("%s is not valid JSON", name)
}

// release ends the reservation before the process ends.
func (r reservation) release() { _ = r.write(nil) }

// promised says how much memory others have reserved, if any.
func promised(bytes uint64) string {
	if bytes == 0 {
		return ""
	}
	return fmt.Sprintf(", beside %d MiB that other containers move now", bytes>>20)
}
