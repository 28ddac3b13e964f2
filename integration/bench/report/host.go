package report

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Host is the kind of host, in words.
type Host struct {
	CPU        string `json:"cpu"`
	Cores      int    `json:"cores"`
	MemoryGiB  int    `json:"memory_gib"`
	Kernel     string `json:"kernel"`
	Cgroup     int    `json:"cgroup"`
	Containerd string `json:"containerd"`
	Runc       string `json:"runc"`
	Shim       string `json:"shim"`
	Driver     string `json:"driver"`
	GPUs       int    `json:"gpus"`
	Date       string `json:"date"`
}

// Line is the sentence above a table; driver says in words what drives the GPUs.
func (h Host) Line(driver string, rounds int) string {
	return fmt.Sprintf("%s; %d cores (%s), %d GiB, Linux %s, cgroup v%d, overlayfs snapshotter; containerd %s, runc %s, this shim %s; %d rounds, %s.\n",
		driver, h.Cores, h.CPU, h.MemoryGiB, h.Kernel, h.Cgroup, h.Containerd, h.Runc, h.Shim, rounds, h.Date)
}

// DescribeHost says what kind of host this is; toolsDir is where containerd's programs
// are.
func DescribeHost(shimDir, toolsDir string, cgroup int) Host {
	h := Host{
		CPU: field("/proc/cpuinfo", "model name"), Cores: runtime.NumCPU(), Cgroup: cgroup,
		Date:       time.Now().UTC().Format(time.DateOnly),
		Containerd: version(filepath.Join(toolsDir, "containerd"), "--version"),
		Runc:       version(filepath.Join(toolsDir, "runc"), "--version"),
		Shim:       version(filepath.Join(shimDir, "containerd-shim-nvidia-v2"), "-v"),
	}
	if kib, err := strconv.Atoi(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB")); err == nil {
		h.MemoryGiB = (kib + 1<<19) >> 20
	}
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		h.Kernel = unix.ByteSliceToString(uts.Release[:])
	}
	return h
}

// field is the value of the first line "name : value" of a file of procfs.
func field(file, name string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if key, value, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// versionWord is a version as containerd, runc and the shims print theirs, each in
// a form of its own: "v2.4.2", "1.5.2", "35ffb22-dirty".
var versionWord = regexp.MustCompile(`(?i)version:?\s+(\S+)|\s(v[0-9]\S*)`)

// version is the version that a program prints.
func version(program string, args ...string) string {
	out, err := exec.Command(program, args...).Output()
	if m := versionWord.FindSubmatch(out); err == nil && m != nil {
		return string(append(m[1], m[2]...)) // one of them is empty
	}
	return "unknown"
}
