package procfs

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// FS is the directory where a procfs is mounted.
type FS string

// Host is the procfs of this host.
const Host FS = "/proc"

// ID identifies a process. The PID alone may be reused when it has ended.
type ID struct {
	PID int `json:"pid"`
	// Start is the time of its start, in clock ticks since boot.
	Start uint64 `json:"start"`
}

// ID returns the ID of the process that has this PID now.
func (f FS) ID(pid int) (ID, error) {
	s, err := f.Stat(pid)
	return ID{pid, s.Start}, err
}

// HasEnded reports whether an error means that the process has ended.
func HasEnded(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// Stat holds the fields that are read from a process' stat file.
type Stat struct {
	// Parent is the process id of the parent.
	Parent int
	// Exiting is true if the process is exiting (PF_EXITING).
	Exiting bool
	// Start is as in ID.
	Start uint64
}

// Stat reads the stat file of a process: fields 4, 9 and 22 (proc_pid_stat(5)).
func (f FS) Stat(pid int) (Stat, error) {
	stat, err := os.ReadFile(f.Path(pid, "stat"))
	if err != nil {
		return Stat{}, err
	}
	// The second field is the name of the program in parentheses, and may hold any character.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 {
		return Stat{}, fmt.Errorf("%s is too short", f.Path(pid, "stat"))
	}
	parent, err1 := strconv.Atoi(fields[1])
	flags, err2 := strconv.ParseUint(fields[6], 10, 32)
	start, err3 := strconv.ParseUint(fields[19], 10, 64)
	return Stat{parent, flags&0x4 != 0, start}, cmp.Or(err1, err2, err3)
}

// Path returns the path of a file in the directory of a process.
func (f FS) Path(pid int, name string) string {
	return filepath.Join(string(f), strconv.Itoa(pid), name)
}

// Comm returns the command name of a process, "" if it has ended.
func (f FS) Comm(pid int) string {
	comm, _ := os.ReadFile(f.Path(pid, "comm"))
	return strings.TrimSuffix(string(comm), "\n")
}

// UID returns the real user id of a process in this user namespace.
func (f FS) UID(pid int) (uid string, ok bool) {
	status, _ := os.ReadFile(f.Path(pid, "status"))
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "Uid:" {
			_, err := strconv.ParseUint(fields[1], 10, 32)
			return fields[1], err == nil
		}
	}
	return "", false
}

// Cgroups returns the paths of a process' cgroups by the controllers of their hierarchies; the key
// for cgroup v2 is "". A process that has ended has none.
func (f FS) Cgroups(pid int) map[string]string {
	data, _ := os.ReadFile(f.Path(pid, "cgroup"))
	paths := map[string]string{}
	for line := range strings.Lines(string(data)) {
		// 4:memory:/path; 0::/path for cgroup v2
		if parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3); len(parts) == 3 {
			paths[parts[1]] = parts[2]
		}
	}
	return paths
}
