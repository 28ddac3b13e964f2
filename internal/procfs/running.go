package procfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
)

// Process is a process of the host: see Running.
type Process struct {
	PID int
	// Program is the path of the file that it executes, below the root directory of process 1.
	Program string
	Args    []string
	Environ map[string]string

	// file is that file. replaced is true if its path has another file now, or none.
	file     unix.Stat_t
	replaced bool
}

// Running lists the processes of the host whose program or command name is name: the containerd of
// k3s is a program with another name.
//
// Any user can start a program of any name, and any container one whose path is that of a file of
// the host. So a process counts only if it is in the mount, user and PID namespaces and the root
// directory of process 1, runs as root with CAP_SYS_ADMIN, and executes a file that only root can
// have put there. Such a process is root of the host, and its arguments and environment are root's.
func (f FS) Running(name string) []Process {
	entries, _ := os.ReadDir(string(f))
	var list []Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		link, err := os.Readlink(f.Path(pid, "exe"))
		if err != nil || filepath.Base(strings.TrimSuffix(link, deleted)) != name && f.Comm(pid) != name {
			continue
		}
		if p, err := f.read(pid); err == nil {
			list = append(list, p)
		}
	}
	return list
}

// read returns a process, or an error if it is none of the host.
func (f FS) read(pid int) (p Process, err error) {
	if !f.isRoot(pid) || !f.sharesNamespaces(pid) { // guard: processes: root with CAP_SYS_ADMIN
		return p, fmt.Errorf("process %d is not root of this host", pid)
	}
	p.PID = pid
	if err := f.readProgram(&p); err != nil {
		return p, err
	}
	environ, err1 := os.ReadFile(f.Path(pid, "environ"))
	cmdline, err2 := os.ReadFile(f.Path(pid, "cmdline"))
	p.Args = strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
	p.Environ = map[string]string{}
	for v := range strings.SplitSeq(string(environ), "\x00") {
		key, value, _ := strings.Cut(v, "=")
		p.Environ[key] = value
	}
	return p, errors.Join(err1, err2)
}

// deleted follows the path of a file that is not there any more (proc_pid_exe(5)).
const deleted = " (deleted)"

// readProgram finds the file that a process executes, and checks that only root can have put it
// where it is, or was before a package replaced it.
func (f FS) readProgram(p *Process) error {
	exe, root := f.Path(p.PID, "exe"), filepath.Join(string(f), f.first(), "root")
	link, err1 := os.Readlink(exe)
	top, err2 := os.Readlink(root)
	if err := errors.Join(err1, err2, unix.Stat(exe, &p.file)); err != nil {
		return err
	}
	if err := trusted.RootFile(&p.file); err != nil { // guard: processes: root's program
		return fmt.Errorf("%s %w", link, err)
	}
	link, p.replaced = strings.CutSuffix(link, deleted)
	below, ok := strings.CutPrefix(link, strings.TrimSuffix(top, "/")+"/")
	if !ok {
		return fmt.Errorf("%s is not below %s", link, top)
	}
	p.Program = "/" + below
	if p.replaced && p.file.Nlink > 0 || !p.replaced && !p.isFile(root+p.Program) { // guard: processes: same file
		return fmt.Errorf("%s is another file", link)
	}
	return trusted.Above(root + p.Program) // guard: processes: directories of the program
}

func (p Process) isFile(name string) bool {
	var st unix.Stat_t
	err := unix.Stat(name, &st)
	return err == nil && st.Dev == p.file.Dev && st.Ino == p.file.Ino
}

// Executes reports whether a process executes the file at path, or the one that was there before it
// was replaced.
func (p Process) Executes(path string) bool {
	return p.isFile(path) || p.replaced && p.Program == path
}

// isRoot reports whether a process runs as root and has CAP_SYS_ADMIN.
func (f FS) isRoot(pid int) bool {
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

// sharesNamespaces reports whether a process sees the file tree and the processes of process 1, and
// the users of its user namespace.
func (f FS) sharesNamespaces(pid int) bool {
	for _, kind := range []string{"mnt", "user", "pid"} { // guard: processes: namespaces of process 1
		if !f.sharesNamespace(pid, f.first(), kind) {
			return false
		}
	}
	theirs, err1 := os.Stat(f.Path(pid, "root"))
	root, err2 := os.Stat(filepath.Join(string(f), f.first(), "root"))
	return err1 == nil && err2 == nil && os.SameFile(theirs, root) // guard: processes: its root directory
}

// first returns the directory of process 1. If this process may not read it, because that process
// has capabilities that this one was not given (ptrace(2), PTRACE_MODE_READ), this process takes its
// place.
func (f FS) first() string {
	if _, err := os.Readlink(f.Path(1, "ns/mnt")); errors.Is(err, fs.ErrPermission) {
		return "self"
	}
	return "1"
}

// InOtherPIDNamespace reports whether a process is in a PID namespace other than this process', or
// in an unknown one.
func (f FS) InOtherPIDNamespace(pid int) bool { return !f.sharesNamespace(pid, "self", "pid") }

func (f FS) sharesNamespace(pid int, other, kind string) bool {
	want, err1 := os.Readlink(filepath.Join(string(f), other, "ns", kind))
	theirs, err2 := os.Readlink(f.Path(pid, "ns/"+kind))
	return err1 == nil && err2 == nil && theirs == want
}
