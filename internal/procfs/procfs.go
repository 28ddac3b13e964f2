package procfs

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// FS is the directory where a procfs is mounted.
type FS string

// Host is the procfs of this host.
const Host FS = "/proc"

// Process is a process of the host.
type Process struct {
	PID int
	// Program is the path of the file that it executes, in the process' mount namespace.
	Program string
	Args    []string
	Environ map[string]string
}

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

// Named lists the processes whose program or command name is name. The containerd of k3s is a
// program with another name.
func (f FS) Named(name string) []Process {
	entries, _ := os.ReadDir(string(f))
	var list []Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		program, err := os.Readlink(f.Path(pid, "exe"))
		if err != nil {
			continue
		}
		program = strings.TrimSuffix(program, " (deleted)")
		if filepath.Base(program) != name && f.Comm(pid) != name {
			continue
		}
		environ, err1 := os.ReadFile(f.Path(pid, "environ"))
		cmdline, err2 := os.ReadFile(f.Path(pid, "cmdline"))
		if err1 != nil || err2 != nil {
			continue
		}
		p := Process{PID: pid, Program: program, Environ: map[string]string{}}
		p.Args = strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
		for v := range strings.SplitSeq(string(environ), "\x00") {
			key, value, _ := strings.Cut(v, "=")
			p.Environ[key] = value
		}
		list = append(list, p)
	}
	return list
}

// Daemons lists the processes of a name that administer this host and are in the PID namespace of
// this process: those of users and in containers read other files.
func (f FS) Daemons(name string) []Process {
	return slices.DeleteFunc(f.Named(name), func(p Process) bool { return !f.Administers(p.PID) || f.InOtherPIDNamespace(p.PID) })
}

// Comm returns the command name of a process, "" if it has ended.
func (f FS) Comm(pid int) string {
	comm, _ := os.ReadFile(f.Path(pid, "comm"))
	return strings.TrimSuffix(string(comm), "\n")
}

// Administers reports whether a process administers this host: it runs as root, has CAP_SYS_ADMIN
// and is in the user namespace of this process. Any user can start a program called containerd, and
// any container one whose path is that of any file on the host.
func (f FS) Administers(pid int) bool {
	if !f.sharesNamespace(pid, "user") {
		return false
	}
	status, _ := os.ReadFile(f.Path(pid, "status"))
	root, admin := false, false
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		switch value = strings.Join(strings.Fields(value), " "); key {
		case "Uid": // real, effective, saved, file system
			root = value == "0 0 0 0"
		case "CapEff":
			caps, err := strconv.ParseUint(value, 16, 64)
			admin = err == nil && caps&(1<<unix.CAP_SYS_ADMIN) != 0
		}
	}
	return root && admin
}

// InOtherPIDNamespace reports whether a process is in a PID namespace other than this process', or
// in an unknown one.
func (f FS) InOtherPIDNamespace(pid int) bool { return !f.sharesNamespace(pid, "pid") }

// sharesNamespace reports whether a process is in the same namespace of this kind as this process.
func (f FS) sharesNamespace(pid int, kind string) bool {
	own, err1 := os.Readlink(filepath.Join(string(f), "self/ns", kind))
	theirs, err2 := os.Readlink(f.Path(pid, "ns/"+kind))
	return err1 == nil && err2 == nil && theirs == own
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
