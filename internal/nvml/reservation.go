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
// locked: the end of the process ends it. The name says which process that is, because another
// program may lock the file as well: flock(2) needs no write access. Each process writes its own file
// before it reads those of others, so of two processes that want the same memory at least one sees
// the other.
type reservation struct {
	dir  string
	file *os.File
}

// maxReservations limits the processes that move memory at once.
const maxReservations = 256

func reservationName(id procfs.ID) string { return fmt.Sprintf("moving-%d-%d.json", id.PID, id.Start) }

func reservations(dir string) []string {
	names, _ := filepath.Glob(filepath.Join(dir, "moving-*.json"))
	return names
}

// isLiving reports whether the process of a reservation's name may still run.
func isLiving(name string) bool {
	var id procfs.ID
	if _, err := fmt.Sscanf(filepath.Base(name), "moving-%d-%d.json", &id.PID, &id.Start); err != nil {
		return false
	}
	now, err := procfs.Host.ID(id.PID)
	return err != nil && !procfs.HasEnded(err) || err == nil && now == id
}

// openReservation makes the file of this process, and removes those of processes that have ended.
func openReservation(stateDir string) (r reservation, err error) {
	st, err := state.Open(stateDir, false)
	if err != nil {
		return r, err
	}
	others := 0
	for _, name := range reservations(st.Dir()) {
		if isLiving(name) { // guard: probe: reservations of the ended removed
			others++
		} else if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return r, err
		}
	}
	if others >= maxReservations {
		return r, fmt.Errorf("%d processes suspend or resume GPUs: try again", others)
	}
	self, err := procfs.Host.ID(os.Getpid())
	if err != nil {
		return r, err
	}
	f, err := os.OpenFile(filepath.Join(st.Dir(), reservationName(self)), os.O_RDWR|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err == nil {
		err = os.NewSyscallError("flock", unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB))
	}
	return reservation{st.Dir(), f}, err
}

// inheritedFile is the file that Confine has opened. It is never closed.
var inheritedFile = sync.OnceValue(func() *os.File { return os.NewFile(probe.ReservationFD, "reservation") })

// inheritedReservation returns the reservation that Confine has opened.
func inheritedReservation(host config.Host) reservation {
	return reservation{host.StateDir, inheritedFile()}
}

// maxReservation limits the size of a file, in bytes.
const maxReservation = 1 << 20

// take reserves memory, in bytes by what it is of: a GPU's UUID, a directory of cgroups, or "" for
// the host. It returns what other processes have reserved.
func (r reservation) take(needs map[string]uint64) (others map[string]uint64, err error) {
	data, err := json.Marshal(needs)
	if err == nil && len(data) > maxReservation {
		err = errors.New("the processes are in too many cgroups")
	}
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
