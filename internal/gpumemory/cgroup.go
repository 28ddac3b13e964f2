package gpumemory

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// The hierarchy of cgroup v2, and the procfs. Variables for the tests.
var (
	root = "/sys/fs/cgroup"
	proc = procfs.Host
)

// ErrNotOwn means that the container's cgroup is not its own: the root, one above the root of
// containerd's cgroup namespace, or one that another container has limits in.
var ErrNotOwn = errors.New("the container has no cgroup of its own")

// Cgroup identifies a cgroup of this boot.
type Cgroup struct {
	Path string `json:"path"`
	// Inode tells it from another one that gets its path later.
	Inode uint64 `json:"inode"`
}

// Find returns the cgroup of a process. The error is probe.ErrNotCgroup2 on a host with cgroup v1, and
// ErrNotOwn if it is the root or above.
func Find(pid int) (Cgroup, error) {
	path, ok := proc.Cgroups(pid)[""]
	switch {
	case !ok:
		return Cgroup{}, fmt.Errorf("process %d: %w", pid, probe.ErrNotCgroup2)
	case path == "/" || !filepath.IsAbs(path) || path != filepath.Clean(path) || strings.HasPrefix(path, "/.."):
		return Cgroup{}, fmt.Errorf("%w, but %.256q", ErrNotOwn, path)
	}
	c := Cgroup{Path: path}
	dir, err := c.openAny()
	if err != nil {
		return Cgroup{}, err
	}
	defer dir.Close()
	// The path is text: only the members prove that it leads to this process' cgroup.
	members, err := c.read(dir, "cgroup.procs")
	// guard: memory: the cgroup of the process
	if err == nil && !slices.Contains(strings.Fields(members), strconv.Itoa(pid)) {
		err = fmt.Errorf("%s is not the cgroup of process %d", path, pid)
	}
	if err != nil {
		return Cgroup{}, err
	}
	var st unix.Stat_t
	err = unix.Fstat(int(dir.Fd()), &st)
	c.Inode = st.Ino
	return c, err
}

// Open opens the directory of the cgroup. The error is probe.ErrCgroupGone if it was removed.
func (c Cgroup) Open() (*os.File, error) {
	dir, err := c.openAny()
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	// guard: memory: not another cgroup later
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil || st.Ino != c.Inode {
		dir.Close()
		return nil, errors.Join(fmt.Errorf("cgroup %s: %w", c.Path, probe.ErrCgroupGone), err)
	}
	return dir, nil
}

// openAny opens the directory that has the path of the cgroup.
func (c Cgroup) openAny() (*os.File, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(root, &st); err != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
		return nil, errors.Join(fmt.Errorf("%s is not the hierarchy of cgroup v2: %w", root, probe.ErrNotCgroup2), err)
	}
	name := filepath.Join(root, c.Path)
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("cgroup %s: %w", c.Path, probe.ErrCgroupGone)
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	dir := os.NewFile(uintptr(fd), name)
	if err := unix.Fstatfs(fd, &st); err != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
		dir.Close()
		return nil, errors.Join(fmt.Errorf("%s is not a cgroup of version 2: %w", name, probe.ErrNotCgroup2), err)
	}
	return dir, nil
}

// read returns the beginning of a file of the cgroup.
func (c Cgroup) read(dir *os.File, name string) (string, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: filepath.Join(dir.Name(), name), Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	text := make([]byte, 64<<10)
	n, err := f.Read(text)
	if errors.Is(err, io.EOF) { // an empty file
		err = nil
	}
	return string(text[:n]), err
}

// isEmpty reports whether the cgroup and those below it have no process.
func (c Cgroup) isEmpty(dir *os.File) bool {
	text, err := c.read(dir, "cgroup.events")
	return err == nil && slices.Contains(strings.Split(text, "\n"), "populated 0")
}

// rootInode returns the inode of the root of the hierarchy. That of a process in a cgroup namespace is
// another one than the host's.
func rootInode() (uint64, error) {
	dir, err := Cgroup{Path: "/"}.openAny()
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	var st unix.Stat_t
	err = unix.Fstat(int(dir.Fd()), &st)
	return st.Ino, err
}

// above returns the cgroups above, the nearest first, without the root.
func (c Cgroup) above() (list []Cgroup, err error) {
	for path := filepath.Dir(c.Path); path != "/"; path = filepath.Dir(path) {
		dir, err := Cgroup{Path: path}.openAny()
		if err != nil {
			return nil, err
		}
		var st unix.Stat_t
		err = unix.Fstat(int(dir.Fd()), &st)
		dir.Close()
		if err != nil {
			return nil, os.NewSyscallError("fstat", err)
		}
		list = append(list, Cgroup{path, st.Ino})
	}
	return list, nil
}
