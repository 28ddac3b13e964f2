//go:build cgo

package nvml

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// The program tries what libcuda could try after a process of a container has taken it over.
func TestT76TheProgramThatSuspendsIsConfined(t *testing.T) {
	d := sim.New(t, sim.Options{GPUs: 1})
	self, err := procfs.Host.ID(os.Getpid())
	check(t, err)
	a := answer(t, d, "shared-try", probe.Questions{Suspend: []procfs.ID{self}})
	for line := range strings.Lines(a.MoveError) {
		t.Error(line)
	}
}

// tryShared runs try where mounts are shared, as those of a host are under systemd, and compares
// them before and after.
func tryShared(name string) error {
	err := unix.Unshare(unix.CLONE_NEWNS)
	if err == nil {
		err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	}
	if err == nil {
		err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
	}
	if err != nil {
		return err
	}
	before, _ := os.ReadFile("/proc/thread-self/mountinfo")
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{envTask + "=confine-try:" + name}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return err
	}
	after, _ := os.ReadFile("/proc/thread-self/mountinfo")
	if string(after) != string(before) || !strings.Contains(string(after), "shared:") {
		return fmt.Errorf("this host's mounts changed:\n%s\nwere\n%s", after, before)
	}
	return nil
}

// try prints in an Answers what a confined process could do.
func try(name string) error {
	cfg, err := config.Load(name)
	if err != nil {
		return err
	}
	q, err := probe.ReadQuestions(os.Stdin)
	if err != nil {
		return err
	}
	var found []string
	add := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	interfaces, err := net.Interfaces()
	if err != nil || len(interfaces) != 1 || interfaces[0].Flags&net.FlagUp != 0 {
		add("network interfaces: %v, %v", interfaces, err)
	}
	if err := limitCalls(); err != nil {
		return err
	}
	tryFiles(cfg.Host, q.Suspend[0].PID, add)
	tryCalls := []struct {
		name  string
		errno error
		call  uintptr
		args  [3]uintptr
	}{
		{"execve", unix.ENOSYS, unix.SYS_EXECVE, [3]uintptr{}},
		{"mount", unix.ENOSYS, unix.SYS_MOUNT, [3]uintptr{}},
		{"ptrace", unix.ENOSYS, unix.SYS_PTRACE, [3]uintptr{}},
		{"a Unix socket, for cuInit", unix.Errno(0), unix.SYS_SOCKET, [3]uintptr{unix.AF_UNIX, unix.SOCK_SEQPACKET}},
		{"another socket", unix.EPERM, unix.SYS_SOCKET, [3]uintptr{unix.AF_INET, unix.SOCK_STREAM}},
		{"a connection", unix.ECONNREFUSED, unix.SYS_CONNECT, [3]uintptr{}},
		{"a message to an address", unix.ENOSYS, unix.SYS_SENDTO, [3]uintptr{}},
		{"a message with descriptors", unix.ENOSYS, unix.SYS_SENDMSG, [3]uintptr{}},
		{"another process", unix.EPERM, unix.SYS_CLONE, [3]uintptr{uintptr(unix.SIGCHLD)}},
		{"clone3", unix.ENOSYS, unix.SYS_CLONE3, [3]uintptr{}},
		{"a signal to another process", unix.EPERM, unix.SYS_TGKILL, [3]uintptr{1, 1, 0}},
		{"limits of another process", unix.EPERM, unix.SYS_PRLIMIT64, [3]uintptr{1, unix.RLIMIT_NOFILE, 0}},
		{"keyctl", unix.ENOSYS, unix.SYS_KEYCTL, [3]uintptr{}},
		{"bpf", unix.ENOSYS, unix.SYS_BPF, [3]uintptr{}},
		{"init_module", unix.ENOSYS, unix.SYS_INIT_MODULE, [3]uintptr{}},
		{"mknodat", unix.ENOSYS, unix.SYS_MKNODAT, [3]uintptr{}},
		{"memory of another process", unix.ENOSYS, unix.SYS_PROCESS_VM_WRITEV, [3]uintptr{1}},
		{"the x32 table", unix.EPERM, x32 | 39, [3]uintptr{}},
	}
	for _, c := range tryCalls {
		if pid, _, errno := unix.RawSyscall(c.call, c.args[0], c.args[1], c.args[2]); !errors.Is(errno, c.errno) {
			if errno == 0 && c.call == unix.SYS_CLONE && pid == 0 {
				unix.Exit(0)
			}
			add("%s: %v, want %v", c.name, errno, c.errno)
		}
	}
	return json.NewEncoder(os.Stdout).Encode(probe.Answers{MoveError: strings.Join(found, "\n")})
}

// tryFiles tries what the mount namespace, the capabilities and the limits should prevent.
func tryFiles(host config.Host, pid int, add func(string, ...any)) {
	status, _ := os.ReadFile("/proc/self/status")
	caps := fmt.Sprintf("%016x\n", 1<<unix.CAP_DAC_OVERRIDE|1<<unix.CAP_SYS_PTRACE)
	for _, want := range []string{"CapPrm:\t" + caps, "CapEff:\t" + caps, "CapBnd:\t" + caps, "CapInh:\t0000000000000000\n", "NoNewPrivs:\t1\n"} {
		if !strings.Contains(string(status), want) {
			add("no %q in %s", want, status)
		}
	}
	for _, path := range []string{"/", "/etc", "/dev", "/dev/nvidia-sim", "/proc/self", host.StateDir, host.DriverRoot, "/sys/fs/cgroup"} {
		f, err := os.Create(filepath.Join(path, "made"))
		if !errors.Is(err, unix.EROFS) && !errors.Is(err, unix.ENOENT) {
			add("%s: a file can be made: %v, %v", path, f, err)
		}
	}
	if f, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0); !errors.Is(err, unix.EROFS) {
		add("memory of the process: %v, %v", f, err)
	}
	if f, err := os.OpenFile("/dev/null", os.O_RDWR, 0); err != nil { // as the driver's nodes
		add("%v, %v", f, err)
	}
	for _, path := range []string{"/tmp", "/dev/shm"} { // for cuInit
		name := filepath.Join(path, "made")
		if err := errors.Join(os.WriteFile(name, nil, 0o600), os.Remove(name)); err != nil {
			add("%v", err)
		}
	}
	for _, dir := range []struct {
		name string
		has  func(string) bool
	}{
		{"/proc", func(name string) bool {
			n, err := strconv.Atoi(name)
			link, _ := os.Readlink("/proc/" + name)
			return err != nil || n == pid || n == os.Getpid() || strings.HasPrefix(link, fmt.Sprintf("%d/task/", pid))
		}},
		{"/dev", func(name string) bool {
			return strings.HasPrefix(name, "nvidia") || slices.Contains([]string{"full", "null", "random", "shm", "urandom", "zero"}, name)
		}},
	} {
		entries, err := os.ReadDir(dir.name)
		if err != nil {
			add("%v", err)
		}
		for _, e := range entries {
			if !dir.has(e.Name()) {
				add("%s has %s", dir.name, e.Name())
			}
		}
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_DATA, &limit); err != nil || limit.Max != maxData {
		add("limit of memory: %v, %v", limit, err)
	}
	if _, err := unix.Mmap(-1, 0, maxData, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE); !errors.Is(err, unix.ENOMEM) {
		add("more memory: %v", err)
	}
	if score, err := os.ReadFile("/proc/self/oom_score_adj"); string(score) != "1000\n" {
		add("oom_score_adj %s, %v", score, err)
	}
}
