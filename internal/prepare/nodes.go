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

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
)

// nodes makes what is missing.
func (r *Report) nodes(o Options, expected []device.Expected) {
	for _, e := range expected {
		n := Node{
			Path: e.HostPath, Major: e.Major, Minor: e.Minor, Mode: fmt.Sprintf("%04o", e.Mode), UID: e.UID, GID: e.GID,
		}
		if !e.Loaded {
			// The line of the module, where it is one of ours, says it already.
			n.State = Missing
			n.Message = fmt.Sprintf("no driver %q in /proc/devices", e.Driver)
			n.Fix = "load its kernel module"
			if e.Driver == "nvidia-uvm" && o.DryRun && o.LoadModules {
				continue // its major number is not known yet
			}
			if e.Driver == "nvidia-caps-imex-channels" {
				n.Fix = "IMEX channels need a driver and GPUs that have them"
			}
		} else {
			n.State, n.Message, n.Fix = makeNode(o, e)
		}
		r.Nodes = append(r.Nodes, n)
	}
	if slices.ContainsFunc(expected, func(e device.Expected) bool { return !e.Managed }) {
		r.Notes = append(r.Notes, "the driver's parameter ModifyDeviceFiles or DeviceFileModify is 0: no node of those is made or changed here")
	}
}

const (
	fixReplace = "nvidia-shimctl prepare --replace"
	fixForeign = "the rules of udev, or whoever makes the nodes on this host, have to make it; or load nvidia with NVreg_ModifyDeviceFiles=1"
)

// makeNode brings one node to the state that is expected of it.
func makeNode(o Options, e device.Expected) (state, message, fix string) {
	dir, err := openDir(o.Host.DevRoot, path.Dir(e.Path), !o.DryRun && e.Managed)
	if errors.Is(err, fs.ErrNotExist) {
		if !e.Managed {
			return Missing, "it is not there", fixForeign
		}
		if o.DryRun {
			return Made, "", ""
		}
	}
	if err != nil {
		return Failed, err.Error(), "run it as root, with a directory that belongs to root alone"
	}
	defer unix.Close(dir)
	name := path.Base(e.Path)
	var st unix.Stat_t
	err = unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return Failed, err.Error(), "look at that directory"
	}
	wrong := ""
	if !missing {
		wrong = differs(&st, e)
	}
	switch {
	case !missing && wrong == "":
		return Present, "", ""
	case !e.Managed && missing:
		return Missing, "it is not there", fixForeign
	case !e.Managed:
		return Wrong, wrong, fixForeign
	case !missing && onlyMode(&st, e) && !o.Replace:
		// It works; an operator may want it so.
		return Present, wrong, ""
	case !missing && st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return Wrong, wrong, "remove that directory by hand"
	case !missing && !o.Replace:
		return Wrong, wrong, fixReplace
	case o.DryRun && missing:
		return Made, "", ""
	case o.DryRun:
		return Replaced, wrong, ""
	}
	if err := mknod(dir, name, e, !missing); err != nil {
		return Failed, err.Error(), "run it as root with CAP_MKNOD, on the host and not in a container"
	}
	if missing {
		return Made, "", ""
	}
	return Replaced, wrong, ""
}

// differs says what is not as expected of what is there, or "".
func differs(st *unix.Stat_t, e device.Expected) string {
	if st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return "it is no character device"
	}
	rdev := uint64(st.Rdev) //nolint:unconvert // 32 bits on some architectures
	if major, minor := unix.Major(rdev), unix.Minor(rdev); major != e.Major || minor != e.Minor {
		return fmt.Sprintf("it is %d:%d, and the driver %q has %d:%d for it", major, minor, e.Driver, e.Major, e.Minor)
	}
	if mode := os.FileMode(st.Mode & 0o7777); mode != e.Mode || st.Uid != e.UID || st.Gid != e.GID {
		return fmt.Sprintf("it has mode %04o and owner %d:%d, the driver's parameters say %04o and %d:%d", mode, st.Uid, st.Gid, e.Mode, e.UID, e.GID)
	}
	return ""
}

// onlyMode tells a node of the right numbers, whatever its mode and owner.
func onlyMode(st *unix.Stat_t, e device.Expected) bool {
	rdev := uint64(st.Rdev) //nolint:unconvert // 32 bits on some architectures
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && unix.Major(rdev) == e.Major && unix.Minor(rdev) == e.Minor
}

// openDir opens <devRoot>/dev or a directory in it, which it makes if told to. No link
// below devRoot is followed, and a directory that others than root can write to is
// refused: what is made there could be changed on the way.
func openDir(devRoot, dir string, create bool) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Open(filepath.Join(devRoot, "dev"), flags, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: filepath.Join(devRoot, "dev"), Err: err}
	}
	if err := rootsAlone(fd); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("%s %w", filepath.Join(devRoot, "dev"), err)
	}
	if dir == "/dev" {
		return fd, nil
	}
	// One level is all that the driver has.
	name, real := path.Base(dir), filepath.Join(devRoot, dir)
	defer unix.Close(fd)
	made := false
	if create {
		err := unix.Mkdirat(fd, name, 0o755)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return -1, &fs.PathError{Op: "mkdir", Path: real, Err: err}
		}
		made = err == nil
	}
	sub, err := unix.Openat(fd, name, flags, 0)
	if err == nil && made {
		// Whatever the umask is, containers' users look into it.
		err = unix.Fchmod(sub, 0o755)
	}
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: real, Err: err}
	}
	if err := rootsAlone(sub); err != nil {
		unix.Close(sub)
		return -1, fmt.Errorf("%s %w", real, err)
	}
	return sub, nil
}

func rootsAlone(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Uid != 0 || st.Mode&0o022 != 0 {
		return fmt.Errorf("can be written by others than root (uid %d, mode %04o): chown it to root and chmod go-w it", st.Uid, st.Mode&0o7777)
	}
	return nil
}

// mknod makes a node under a temporary name and renames it when owner and mode are
// right, so that nobody opens one that is not.
func mknod(dir int, name string, e device.Expected, replace bool) error {
	tmp := "." + name + "." + rand.Text()[:8]
	// Only the owner until the owner is right.
	if err := unix.Mknodat(dir, tmp, unix.S_IFCHR|0o600, int(unix.Mkdev(e.Major, e.Minor))); err != nil {
		return &fs.PathError{Op: "mknod", Path: e.HostPath, Err: err}
	}
	err := unix.Fchownat(dir, tmp, int(e.UID), int(e.GID), unix.AT_SYMLINK_NOFOLLOW)
	if err == nil {
		// The name is ours and fresh in a directory of root's alone: it is no link.
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
