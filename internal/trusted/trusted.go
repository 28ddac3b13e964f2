package trusted

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/openat"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/rawio"
)

// euid is the effective user, which does not change.
var euid = uint32(os.Geteuid())

// byOthers are the mode bits that let users other than the owner write a file.
const byOthers = 0o022

// WritableByOthers reports whether users other than the owner can write a file with this mode.
func WritableByOthers(mode uint32) bool { return mode&byOthers != 0 }

// File returns an error unless st describes a regular file that only root can change. The text of
// the error continues a sentence that begins with the file's name.
func File(st *unix.Stat_t) error { return check(st, unix.S_IFREG, euid) }

// Directory checks a directory like File.
func Directory(st *unix.Stat_t) error { return check(st, unix.S_IFDIR, euid) }

// Parent checks the parent directory of a trusted file. It may also be a world-writable sticky
// directory like /tmp, where other users cannot replace a file that is not theirs.
func Parent(st *unix.Stat_t) error {
	parent := *st
	if parent.Mode&unix.S_ISVTX != 0 {
		parent.Mode &^= byOthers
	}
	return Directory(&parent)
}

// RootFile checks a file like File, but its owner must be root, and it must not be set-user-id or
// set-group-id.
func RootFile(st *unix.Stat_t) error {
	if err := check(st, unix.S_IFREG, 0); err != nil {
		return err
	}
	if st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 { // guard: root's files: no set-user-id
		return errors.New("is set-user-id or set-group-id")
	}
	return nil
}

// RootDirectory checks a directory like Directory, but its owner must be root.
func RootDirectory(st *unix.Stat_t) error { return check(st, unix.S_IFDIR, 0) }

// Above returns an error unless only root can replace the file at an absolute path without links: it
// checks each directory above it like Parent. Debian lets the group staff write below /usr/local,
// so a group may.
func Above(name string) error {
	for dir := filepath.Dir(name); ; dir = filepath.Dir(dir) {
		var st unix.Stat_t
		err := unix.Stat(dir, &st)
		st.Mode &^= 0o020
		if err == nil {
			err = Parent(&st)
		}
		if err != nil {
			return fmt.Errorf("%s %w", dir, err)
		}
		if dir == "/" || dir == "." {
			return nil
		}
	}
}

// Program returns the path without links of a program, or an error unless it is root's, like
// RootFile, and only root can replace it, like Above.
func Program(name string) (string, error) {
	f, err := os.OpenFile(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	var st unix.Stat_t
	if err = unix.Fstat(int(f.Fd()), &st); err == nil {
		err = RootFile(&st)
	}
	if err != nil {
		return "", fmt.Errorf("%s %w", name, err)
	}
	real, err := os.Readlink(openat.Path(int(f.Fd())))
	if err == nil {
		err = Above(real)
	}
	return real, err
}

// unmapped is the owner of a file whose uid the user namespace does not have (overflowuid).
const unmapped = 65534

func check(st *unix.Stat_t, kind, owner uint32) error {
	switch {
	case st.Mode&unix.S_IFMT != kind && kind == unix.S_IFDIR:
		return errors.New("is not a directory")
	case st.Mode&unix.S_IFMT != kind: // guard: root's files: type
		return errors.New("is not a regular file")
	case st.Uid == unmapped && st.Uid != owner:
		return fmt.Errorf("is owned by uid %d: chown it to root, or if this is a user namespace, where that uid stands for every unmapped one, mount it with root mapped", st.Uid)
	case st.Uid != 0 && st.Uid != owner: // guard: root's files: owner
		return fmt.Errorf("is owned by uid %d: chown it to root", st.Uid)
	case WritableByOthers(st.Mode): // guard: root's files: mode
		return fmt.Errorf("is writable by users other than root (mode %04o): chmod go-w it", st.Mode&0o7777)
	}
	return nil
}

// Read reads a regular file of at most maxSize bytes that only root can change, and returns its
// fstat(2). It does not follow a link in the last component, and does not wait for a writer of a
// FIFO.
func Read(path string, maxSize int64) (data []byte, st unix.Stat_t, err error) {
	fd, err := rawio.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK) // guard: root's files: no link
	if err != nil {
		return nil, st, err
	}
	defer unix.Close(fd)
	if err = unix.Fstat(fd, &st); err == nil {
		err = File(&st)
	}
	if err == nil && st.Size > maxSize { // guard: root's files: size
		err = fmt.Errorf("is larger than %d bytes", maxSize)
	}
	if err != nil {
		return nil, st, fmt.Errorf("%s %w", path, err)
	}
	data, err = rawio.Read(fd, int(st.Size), int(st.Size))
	if err == nil && len(data) < int(st.Size) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, st, fmt.Errorf("read %s: %w", path, err)
	}
	return data, st, nil
}
