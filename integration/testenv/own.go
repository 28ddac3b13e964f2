package testenv

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/mounts"
)

// tempPrefix starts the name of every test process's temporary directory. The name is short because
// tests have sockets below it.
const tempPrefix = "nt-"

// temp is the temporary directory of this test process, empty before makeTemp.
var temp string

var (
	anyID   = regexp.MustCompile(prefix + `[0-9a-f]{8}`)
	anyTemp = regexp.MustCompile(`\b` + tempPrefix + `[0-9a-f]{4}\b`)
)

// processDirs are the directories that ProcessDir has made.
var processDirs []string

// ProcessDir makes a directory for what several tests use, which is removed after the last test.
func ProcessDir() (string, error) {
	dir, err := os.MkdirTemp("", "shared")
	processDirs = append(processDirs, dir)
	return dir, err
}

// makeTemp gives this process a temporary directory of its own, by whose name its tests' files and
// mounts are told from those of other processes. The function that it returns removes it; what is
// in it by then is an error.
func makeTemp() (remove func() error, err error) {
	if temp != "" {
		return func() error { return nil }, nil
	}
	outer := os.Getenv("TMPDIR")
	parent := os.TempDir()
	for {
		temp = filepath.Join(parent, fmt.Sprintf("%s%04x", tempPrefix, rand.N(1<<16)))
		// Users of a container's user namespace pass through it.
		if err = os.Mkdir(temp, 0o711); !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	if err == nil {
		err = os.Setenv("TMPDIR", temp)
	}
	if err != nil {
		return nil, fmt.Errorf("make a temporary directory for the tests: %w", err)
	}
	return func() error {
		for _, dir := range processDirs {
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
		}
		left, err := filepath.Glob(filepath.Join(temp, "*"))
		if err == nil {
			err = mounts.RemoveAll(temp)
		}
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("the tests left %q behind", left)
		}
		temp = ""
		_ = os.Setenv("TMPDIR", outer)
		return err
	}, nil
}

// owned reports whether text, a path or the fields of a mount, names an environment or the temporary
// directory of this process. An environment that runs and is none of envs belongs to a test that
// runs at the same time; what bears the name of one that has stopped was left behind.
func owned(text string, envs []*Env) bool {
	for _, id := range anyID.FindAllString(text, -1) {
		if _, ours := known.Load(id); !ours {
			continue
		}
		_, running := live.Load(id)
		return !running || slices.ContainsFunc(envs, func(e *Env) bool { return e.ID == id })
	}
	return temp != "" && slices.Contains(anyTemp.FindAllString(text, -1), filepath.Base(temp))
}

// IsOwn reports whether text, a path or a line of a mount table, names the environment or the
// temporary directory of this process.
func (e *Env) IsOwn(text string) bool { return owned(text, []*Env{e}) }

// systemPlaces are where no container engine mounts anything, but a container that breaks out would.
var systemPlaces = []string{"/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/proc/driver", "/root", "/sbin", "/usr"}

func isOwnMount(m *mountinfo.Info, envs []*Env) bool {
	if owned(strings.Join([]string{m.Mountpoint, m.Root, m.Source, m.VFSOptions}, " "), envs) {
		return true
	}
	return m.Mountpoint == "/" || slices.ContainsFunc(systemPlaces, func(dir string) bool { return isBelow(m.Mountpoint, dir) })
}

func isBelow(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// isDevice leaves out what other programs of the host make and remove all the time: disks and their
// links, terminals, shared memory, message queues.
func isDevice(path string, mode fs.FileMode) bool {
	others := []string{"/dev/block", "/dev/bus", "/dev/disk", "/dev/fd", "/dev/hugepages", "/dev/input", "/dev/mapper", "/dev/mqueue", "/dev/pts", "/dev/shm"}
	isDisk := mode&fs.ModeDevice != 0 && mode&fs.ModeCharDevice == 0
	isTerminal := strings.HasPrefix(path, "/dev/tty") || strings.HasPrefix(path, "/dev/vcs")
	return !isDisk && !isTerminal && !slices.ContainsFunc(others, func(dir string) bool { return isBelow(path, dir) })
}

// isOwnRun leaves out the directory that a running environment's containers share in runcRoot; its
// content counts.
func isOwnRun(path string, envs []*Env) bool {
	if _, running := live.Load(filepath.Base(path)); running && filepath.Dir(path) == runcRoot {
		return false
	}
	return owned(path, envs)
}

// defaultPlaces are where the product's programs write unless told another place.
var defaultPlaces = []string{"/etc/cdi/nvidia.yaml", "/etc/nvidia-shim", "/run/nvidia-shim"}

// absent returns the paths at which there is nothing: another installation of the host uses the
// others, which are its own.
func absent(paths []string) []string {
	return slices.DeleteFunc(slices.Clone(paths), func(path string) bool {
		_, err := os.Lstat(path)
		return err == nil
	})
}

// present describes what is at these paths.
func present(paths []string) []string {
	var lines []string
	for _, path := range paths {
		if line := describe(path); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// commands are the command lines of the programs that this process or its children have started
// with their own environment.
func commands() []string {
	entries, err := os.ReadDir("/proc")
	if err != nil || temp == "" {
		return nil
	}
	var lines []string
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		environ, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "environ"))
		if err == nil && slices.Contains(strings.Split(string(environ), "\x00"), "TMPDIR="+temp) {
			// A program may execute another one at any time: the process stays what it was.
			first, _ := firstCommands.LoadOrStore(identity(pid), commandLine(pid))
			lines = append(lines, first.(string))
		}
	}
	return lines
}

// firstCommands maps processes to the command lines that they had when they were first seen.
var firstCommands sync.Map

// identity tells a process from a later one with its number: number and start time.
func identity(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if err != nil || len(fields) < 20 {
		return strconv.Itoa(pid)
	}
	return fmt.Sprint(pid, " ", fields[19])
}
