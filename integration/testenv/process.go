package testenv

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// process is one process that belongs to an environment.
type process struct {
	pid     int
	command string
}

// processes finds the environment's processes other than containerd itself:
// shims by their working directory (the bundle) or command line (namespace and
// socket), containers by their cgroup.
func (e *Env) processes() []process {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	daemon := e.PID()
	var found []process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() || pid == daemon || !e.owns(pid) {
			continue
		}
		found = append(found, process{pid, commandLine(pid)})
	}
	slices.SortFunc(found, func(a, b process) int { return a.pid - b.pid })
	return found
}

// owns reports whether the process belongs to this environment.
func (e *Env) owns(pid int) bool {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	for _, link := range []string{"cwd", "root"} {
		target, err := os.Readlink(filepath.Join(proc, link))
		if err == nil && (target == e.Dir || strings.HasPrefix(target, e.Dir+"/")) {
			return true
		}
	}
	cgroups, err := os.ReadFile(filepath.Join(proc, "cgroup"))
	if err == nil && bytes.Contains(cgroups, []byte("/"+e.ID+"/")) {
		return true
	}
	name, rest, _ := bytes.Cut(arguments(pid), []byte{0})
	if !bytes.HasPrefix([]byte(filepath.Base(string(name))), []byte("containerd-shim-")) {
		return false
	}
	for _, arg := range bytes.Split(rest, []byte{0}) {
		if string(arg) == e.ID || strings.HasPrefix(string(arg), e.Dir+"/") {
			return true
		}
	}
	return false
}

func commandLine(pid int) string {
	return strings.TrimSpace(string(bytes.ReplaceAll(arguments(pid), []byte{0}, []byte{' '})))
}

// arguments is a process's /proc/PID/cmdline. It is empty for a moment in the middle of execve,
// when /proc/PID/exe is the new program already; that of a process that has ended stays empty.
func arguments(pid int) []byte {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	for range 1000 {
		argv, err := os.ReadFile(filepath.Join(proc, "cmdline"))
		if err != nil || len(argv) > 0 {
			return argv
		}
		if _, err := os.Readlink(filepath.Join(proc, "exe")); err != nil {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// awaitExec waits until the process of a started container is the container's program: `runc start`
// returns a moment before runc's init process executes it.
func (e *Env) awaitExec(id string) {
	Until(func() bool {
		return !slices.ContainsFunc(e.processes(), func(p process) bool {
			cgroups, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.pid))
			return p.command == "runc init" && bytes.Contains(cgroups, []byte("/"+e.ID+"/"+id+"\n"))
		})
	})
}

// killProcesses ends what is left of the environment's processes.
func (e *Env) killProcesses() error {
	var left []process
	if !Until(func() bool {
		left = e.processes()
		for _, p := range left {
			e.kill(p.pid)
		}
		return len(left) == 0
	}) {
		return fmt.Errorf("processes of %s do not end: %v", e.ID, left)
	}
	return nil
}

// kill sends SIGKILL to the process if it is the environment's. The descriptor
// is taken first: between the check and the signal the id cannot become another
// process's.
func (e *Env) kill(pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if e.owns(pid) {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}

// ShimPIDs lists the shim processes of a container, for tests that kill them.
func (e *Env) ShimPIDs(id string) []int {
	var pids []int
	for _, p := range e.processes() {
		argv := strings.Fields(p.command)
		if len(argv) == 0 || !strings.HasPrefix(filepath.Base(argv[0]), "containerd-shim-") {
			continue
		}
		cwd, _ := os.Readlink(filepath.Join("/proc", strconv.Itoa(p.pid), "cwd"))
		if filepath.Base(cwd) == id {
			pids = append(pids, p.pid)
			continue
		}
		if i := slices.Index(argv, "-id"); i >= 0 && i+1 < len(argv) && argv[i+1] == id {
			pids = append(pids, p.pid)
		}
	}
	return pids
}
