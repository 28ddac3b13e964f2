package sim

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// firstLimits is the first driver branch that has memory limits.
const firstLimits = 615

// maxLimits is the size of the pipe that has the limits.
const maxLimits = 1 << 20

// limitPipes are the pipes with the limits of the drivers that this process has made, by their
// directories. While one is open, as by nvidia-persistenced, the driver keeps its limits.
var limitPipes sync.Map

// CgroupLimit is the limit that a driver has for a cgroup.
type CgroupLimit struct {
	Cgroup string // its directory
	UUID   string // of the GPU
	// Soft and Hard are in bytes. Those of an ancestor of limited cgroups are what dmem.min has, and
	// no limit.
	Soft, Hard uint64
}

// MemoryLimits says how the driver limits memory.
type MemoryLimits struct {
	// Backend is "dmem", the kernel's controller, "internal", or "off"; the default is the one that
	// a driver would choose on this host.
	Backend string
	// File is the file that makes a cgroup count as one that has the controller dmem; the default is
	// dmem.max. On a host without this controller another one has to do.
	File string
	// Round is what limits are rounded up to a multiple of.
	Round int
}

// LimitMemory makes the driver limit memory so from now on.
func (d *Driver) LimitMemory(m MemoryLimits) error {
	var b strings.Builder
	if m.Backend != "" {
		fmt.Fprintf(&b, "backend %s\n", m.Backend)
	}
	fmt.Fprintf(&b, "file %s\nround %d\n", cmp.Or(m.File, "dmem.max"), max(m.Round, 1))
	return d.steer("memory-limits", b.String())
}

// makeLimits makes the driver forget all limits, as one that is loaded, and keep those to come.
func (d *Driver) makeLimits() error {
	if d.branch() < firstLimits {
		return nil
	}
	name := d.steering("limits")
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	if err := unix.Mkfifo(name, 0o600); err != nil && !errors.Is(err, fs.ErrExist) {
		return &os.PathError{Op: "mkfifo", Path: name, Err: err}
	}
	if err := d.openLimits(); err != nil {
		return err
	}
	return d.changeLimits(func([]string) []string { return nil })
}

// openLimits keeps the limits until closeLimits.
func (d *Driver) openLimits() error {
	if _, ok := limitPipes.Load(d.Dir); ok {
		return nil
	}
	fd, err := unix.Open(d.steering("limits"), unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, maxLimits)
	}
	if err != nil {
		return fmt.Errorf("pipe of limits: %w", err)
	}
	limitPipes.Store(d.Dir, fd)
	return nil
}

func (d *Driver) closeLimits() error {
	fd, ok := limitPipes.LoadAndDelete(d.Dir)
	if !ok {
		return nil
	}
	return unix.Close(fd.(int))
}

// changeLimits replaces the lines that are the limits, which no process reads meanwhile.
func (d *Driver) changeLimits(change func([]string) []string) error {
	fd, err := unix.Open(d.steering("limits"), unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Flock(fd, unix.LOCK_EX); err != nil {
		return err
	}
	var text []byte
	buf := make([]byte, maxLimits)
	for {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			return err
		}
		text = append(text, buf[:n]...)
	}
	var lines strings.Builder
	for _, line := range change(slices.Collect(strings.Lines(string(text)))) {
		lines.WriteString(line)
	}
	if lines.Len() == 0 {
		return nil
	}
	_, err = unix.Write(fd, []byte(lines.String()))
	return err
}

// CgroupLimits returns every limit that the driver has. With the backend dmem, a cgroup that was
// removed has none; the internal backend keeps its limit.
func (d *Driver) CgroupLimits() (list []CgroupLimit, err error) {
	var broken error
	err = d.changeLimits(func(lines []string) []string {
		for _, line := range lines {
			var inode, used uint64
			var minor int
			var l CgroupLimit
			if _, err := fmt.Sscanf(line, "%d %d %d %d %d %s", &inode, &minor, &l.Soft, &l.Hard, &used, &l.Cgroup); err != nil {
				broken = fmt.Errorf("%q: %w", line, err)
				continue
			}
			for _, g := range d.GPUs {
				if g.Minor == minor {
					l.UUID = g.UUID
				}
			}
			list = append(list, l)
		}
		return lines
	})
	return list, cmp.Or(err, broken)
}

// Reset resets a GPU: the driver forgets its limits, and it is healthy.
func (d *Driver) Reset(uuid string) error {
	i := slices.IndexFunc(d.GPUs, func(g GPU) bool { return g.UUID == uuid })
	if i < 0 {
		return fmt.Errorf("no GPU %s", uuid)
	}
	minor := fmt.Sprint(d.GPUs[i].Minor)
	err := d.changeLimits(func(lines []string) []string {
		return slices.DeleteFunc(lines, func(line string) bool { return strings.Fields(line)[1] == minor })
	})
	return errors.Join(err, d.change("properties", func(line string) bool { return strings.Fields(line)[0] == uuid }, ""))
}

// Persistence turns persistence mode on, as it is at first, or off: then the driver forgets the
// limits when no process uses NVML.
func (d *Driver) Persistence(on bool) error {
	if on {
		return errors.Join(os.RemoveAll(d.steering("persistence-off")), d.openLimits())
	}
	return errors.Join(d.steer("persistence-off", ""), d.closeLimits())
}
