package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// process is what procfs says about a process of this host.
type process struct {
	pid int
	// program is the file that it executes, as its mount namespace has it.
	program string
	args    []string
	environ map[string]string
}

// procfs is the directory of one: this host's, but in tests.
type procfs string

const hostProcfs procfs = "/proc"

// of is the directory of a process by PID or "self", or a file in it.
func (proc procfs) of(pid, name string) string { return filepath.Join(string(proc), pid, name) }

// processes are those whose procfs directory match chooses. Processes end while they
// are looked at; one that cannot be read is passed over.
func (proc procfs) processes(match func(dir string) bool) []process {
	entries, err := os.ReadDir(string(proc))
	if err != nil {
		return nil
	}
	var out []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := proc.of(e.Name(), "")
		if !match(dir) {
			continue
		}
		if p, err := readProcess(dir); err == nil {
			p.pid = pid
			out = append(out, p)
		}
	}
	return out
}

func readProcess(dir string) (process, error) {
	p := process{environ: map[string]string{}}
	var err error
	if p.program, err = executed(dir); err != nil {
		return process{}, err
	}
	environ, err := os.ReadFile(filepath.Join(dir, "environ"))
	if err != nil {
		return process{}, err
	}
	for v := range strings.SplitSeq(string(environ), "\x00") {
		key, value, _ := strings.Cut(v, "=")
		p.environ[key] = value
	}
	cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil {
		return process{}, err
	}
	p.args = strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
	return p, nil
}

// executed is the path of a process' program.
func executed(dir string) (string, error) {
	exe, err := os.Readlink(filepath.Join(dir, "exe"))
	return strings.TrimSuffix(exe, " (deleted)"), err
}

// administers tells whether a process administers this host: root's, with
// CAP_SYS_ADMIN, in the user namespace of this process. A name proves nothing: every
// user can start a program called containerd, and every container one whose path is
// that of a file of its choice on the host.
func (proc procfs) administers(dir string) bool {
	own, err := os.Readlink(proc.of("self", "ns/user"))
	if err != nil {
		return false
	}
	if theirs, err := os.Readlink(filepath.Join(dir, "ns/user")); err != nil || theirs != own {
		return false
	}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return false
	}
	root, admin := false, false
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		switch fields := strings.Fields(value); {
		case key == "Uid": // real, effective, saved, of files
			root = strings.Join(fields, " ") == "0 0 0 0"
		case key == "CapEff" && len(fields) == 1:
			caps, err := strconv.ParseUint(fields[0], 16, 64)
			admin = err == nil && caps&(1<<unix.CAP_SYS_ADMIN) != 0
		}
	}
	return root && admin
}

// parent is the PID of a process' parent; 0 where it is not known.
func (proc procfs) parent(pid int) int {
	data, err := os.ReadFile(proc.of(strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0
	}
	// 12 (a name with any character) S 1 …
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(fields) < 2 {
		return 0
	}
	parent, _ := strconv.Atoi(fields[1])
	return parent
}

// cgroups are the cgroups of a process by hierarchy, less those at the root.
func (proc procfs) cgroups(pid int) (map[string]string, error) {
	data, err := os.ReadFile(proc.of(strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return nil, err
	}
	paths := map[string]string{}
	for line := range strings.Lines(string(data)) {
		// 4:memory:/path, 0::/path for cgroup v2
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) == 3 && parts[2] != "/" && !strings.HasPrefix(parts[2], "/..") {
			paths[parts[0]+":"+parts[1]] = parts[2]
		}
	}
	return paths, nil
}
