package prepare

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
)

const (
	fixReplace   = "nvidia-shimctl prepare --replace"
	fixUnmanaged = "udev rules, or another program that makes the nodes on this host, must make it; or load nvidia with NVreg_ModifyDeviceFiles=1"
)

func (r *Report) nodes(o Options, expected []device.Expected) {
	for _, e := range expected {
		n := Node{Path: e.HostPath, Major: e.Major, Minor: e.Minor, Mode: fmt.Sprintf("%04o", e.Mode), UID: e.UID, GID: e.GID}
		switch {
		case e.Loaded:
			n.Result = makeNode(o, e)
			if n.good() && e.Managed && !o.DryRun {
				if err := linkNumber(o.Host.DevRoot, e); err != nil {
					r.Notes = append(r.Notes, err.Error())
				}
			}
		case e.Driver == "nvidia-uvm" && o.DryRun && o.LoadModules:
			continue // its major number is not known yet
		default:
			n.Result = Result{Missing, fmt.Sprintf("no driver %q in /proc/devices", e.Driver), "load its kernel module"}
			if e.Driver == "nvidia-caps-imex-channels" {
				n.Fix = "IMEX channels need a driver and GPUs that support them"
			}
		}
		r.Nodes = append(r.Nodes, n)
	}
	if slices.ContainsFunc(expected, func(e device.Expected) bool { return !e.Managed }) {
		r.Notes = append(r.Notes, "the driver's parameter ModifyDeviceFiles or DeviceFileModify is 0: prepare does not make or change its nodes")
	}
}

func makeNode(o Options, e device.Expected) Result {
	dir, err := openDir(o.Host.DevRoot, path.Dir(e.Path), !o.DryRun && e.Managed)
	if err != nil && (!errors.Is(err, fs.ErrNotExist) || e.Managed && !o.DryRun) {
		return Result{Failed, err.Error(), "run it as root, with a directory that only root can change"}
	}
	name, exists := path.Base(e.Path), false
	var st unix.Stat_t
	if err == nil {
		defer unix.Close(dir)
		err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Result{Failed, err.Error(), "check that directory"}
		}
		exists = err == nil
	}
	done := Result{State: Made}
	if exists {
		wrong, works := differs(&st, e)
		switch {
		case wrong == "" || works && e.Managed && !o.Replace:
			// The operator may have chosen another mode or owner.
			return Result{State: Present, Message: wrong}
		case !e.Managed:
			return Result{Wrong, wrong, fixUnmanaged}
		case st.Mode&unix.S_IFMT == unix.S_IFDIR:
			return Result{Wrong, wrong, "remove that directory by hand"}
		case !o.Replace:
			return Result{Wrong, wrong, fixReplace}
		}
		done = Result{State: Replaced, Message: wrong}
	} else if !e.Managed {
		return Result{Missing, "it does not exist", fixUnmanaged}
	}
	if !o.DryRun {
		if err := mknod(dir, name, e, exists); err != nil {
			return Result{Failed, err.Error(), "run it as root with CAP_MKNOD, on the host and not in a container"}
		}
	}
	return done
}

// linkNumber makes /dev/char/MAJOR:MINOR, which udev makes for the nodes that it knows. A runc that
// finds no such link (1.1.5 in Debian 12) does not tell systemd about the device, and the next
// daemon-reload takes it from a running container.
func linkNumber(devRoot string, e device.Expected) error {
	dir, err := openDir(devRoot, "/dev/char", true)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	name := fmt.Sprintf("%d:%d", e.Major, e.Minor)
	err = unix.Symlinkat(".."+strings.TrimPrefix(e.Path, "/dev"), dir, name)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return &fs.PathError{Op: "link", Path: filepath.Join(devRoot, "dev/char", name), Err: err}
	}
	return nil
}

// differs says how a file differs from the expected node, "" if it does not. works is true if only
// mode or owner differ.
func differs(st *unix.Stat_t, e device.Expected) (wrong string, works bool) {
	if st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return "it is not a character device", false
	}
	rdev := uint64(st.Rdev) //nolint:unconvert // 32 bits on some architectures
	if major, minor := unix.Major(rdev), unix.Minor(rdev); major != e.Major || minor != e.Minor {
		return fmt.Sprintf("it is %d:%d, but driver %q has %d:%d", major, minor, e.Driver, e.Major, e.Minor), false
	}
	if mode := os.FileMode(st.Mode & 0o7777); mode != e.Mode || st.Uid != e.UID || st.Gid != e.GID {
		wrong = fmt.Sprintf("it has mode %04o and owner %d:%d, the driver's parameters require %04o and %d:%d", mode, st.Uid, st.Gid, e.Mode, e.UID, e.GID)
	}
	return wrong, true
}

// openDir opens <devRoot>/dev or a directory in it, which it makes if create is true. It follows no
// link below devRoot, and refuses a directory that users other than root can change: they could
// replace what is made there.
func openDir(devRoot, dir string, create bool) (int, error) {
	dev := filepath.Join(devRoot, "dev")
	fd, err := openTrusted(unix.AT_FDCWD, dev, dev)
	if err != nil || dir == "/dev" {
		return fd, err
	}
	// The driver has one level of directories.
	name, real := path.Base(dir), filepath.Join(devRoot, dir)
	defer unix.Close(fd)
	if create {
		err := unix.Mkdirat(fd, name, 0o755)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return -1, &fs.PathError{Op: "mkdir", Path: real, Err: err}
		}
		if err == nil {
			// Users of containers must be able to read it, whatever the umask is. The name is new,
			// in a directory of root's: it is not a link.
			if err := unix.Fchmodat(fd, name, 0o755, 0); err != nil {
				return -1, &fs.PathError{Op: "chmod", Path: real, Err: err}
			}
		}
	}
	return openTrusted(fd, name, real)
}

// openTrusted opens a directory that only root can change.
func openTrusted(dir int, name, real string) (int, error) {
	// guard: root's files: no link for directories of nodes
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: real, Err: err}
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil {
		err = trusted.RootDirectory(&st) // guard: root's files: directories of nodes
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("%s %w", real, err)
	}
	return fd, nil
}

// mknod makes a node under a temporary name and renames it when owner and mode are right, so that
// no process opens it before.
func mknod(dir int, name string, e device.Expected, replace bool) error {
	tmp := "." + name + "." + rand.Text()[:8]
	if err := unix.Mknodat(dir, tmp, unix.S_IFCHR|0o600, int(unix.Mkdev(e.Major, e.Minor))); err != nil {
		return &fs.PathError{Op: "mknod", Path: e.HostPath, Err: err}
	}
	err := unix.Fchownat(dir, tmp, int(e.UID), int(e.GID), unix.AT_SYMLINK_NOFOLLOW)
	if err == nil {
		// The name is new in a directory of root: it is not a link.
		err = unix.Fchmodat(dir, tmp, uint32(e.Mode), 0)
	}
	if err == nil {
		flags := uint(unix.RENAME_NOREPLACE)
		if replace {
			flags = 0
		}
		err = unix.Renameat2(dir, tmp, dir, name, flags)
	}
	if err != nil {
		_ = unix.Unlinkat(dir, tmp, 0)
		return &fs.PathError{Op: "make", Path: e.HostPath, Err: err}
	}
	return nil
}

// ParseChannels parses a list of IMEX channels: "0-3,7". device.Expected knows the driver's limit.
func ParseChannels(text string) ([]int, error) {
	var list []int
	for item := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(item), "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		if err1 != nil || err2 != nil || from > to {
			return nil, fmt.Errorf("%.64q is not a number or range of IMEX channels, as 0 or 0-3", item)
		}
		for n := from; n <= to; n++ {
			list = append(list, int(n))
		}
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}
