package images

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// File is one entry of an image. Directories above it that are not listed are
// made, owned by root with mode 0755.
type File struct {
	// Path is relative to the image's root.
	Path string
	// Mode is the type and the permission bits, as in st_mode of stat(2). Without a
	// type it is a regular file, or a hard link to Target.
	Mode uint32
	// UID and GID own it.
	UID, GID int
	// Data is the content of a regular file, unless Host or Size says otherwise.
	Data []byte
	// Host is a file of this host whose content is taken.
	Host string
	// Size, when not 0, makes the content that many zero bytes.
	Size int64
	// Target is what a symbolic link holds, or the path that a hard link names.
	Target string
	// Major and Minor are a device's numbers.
	Major, Minor uint32
}

// Dir is a directory.
func Dir(path string, mode uint32) File { return File{Path: path, Mode: unix.S_IFDIR | mode} }

// Text is a regular file with the given content.
func Text(path string, mode uint32, content string) File {
	return File{Path: path, Mode: mode, Data: []byte(content)}
}

// FromHost is a regular file with the content of a file of this host, which is
// read when the image is written; a symbolic link there is followed.
func FromHost(path string, mode uint32, host string) File {
	return File{Path: path, Mode: mode, Host: host}
}

// Symlink is a symbolic link that holds target, whatever that is.
func Symlink(path, target string) File {
	return File{Path: path, Mode: unix.S_IFLNK, Target: target}
}

// Link is a hard link to an entry that comes earlier.
func Link(path, target string) File {
	return File{Path: path, Target: target}
}

// FIFO is a named pipe.
func FIFO(path string) File { return File{Path: path, Mode: unix.S_IFIFO | 0o644} }

// Char is a character device node.
func Char(path string, mode, major, minor uint32) File {
	return File{Path: path, Mode: unix.S_IFCHR | mode, Major: major, Minor: minor}
}

// Block is a block device node.
func Block(path string, mode, major, minor uint32) File {
	return File{Path: path, Mode: unix.S_IFBLK | mode, Major: major, Minor: minor}
}

// Sparse is a file of that many zero bytes. In a layer they are real bytes that
// containerd unpacks; Populate makes a true sparse file of any size.
func Sparse(path string, size int64) File { return File{Path: path, Mode: 0o644, Size: size} }

// Populate writes the entries into an existing directory, for tests that use one
// as a root file system. Symbolic links below dir are not followed: each
// directory on the way has to be one. It needs root for owners and devices.
func Populate(dir string, files []File) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("populate %s: %w", dir, err)
	}
	defer root.Close()
	for _, f := range files {
		if err := populate(root, f); err != nil {
			return fmt.Errorf("populate %s: %w", f.Path, err)
		}
	}
	return nil
}

func populate(root *os.Root, f File) error {
	name := strings.TrimPrefix(path.Clean("/"+f.Path), "/")
	if name == "" {
		return errors.New("the root itself cannot be an entry")
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	full := filepath.Join(root.Name(), name)
	switch f.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		if err := root.MkdirAll(name, 0o755); err != nil {
			return err
		}
	case unix.S_IFLNK:
		if err := root.Symlink(f.Target, name); err != nil {
			return err
		}
		return root.Lchown(name, f.UID, f.GID)
	case 0:
		if f.Target != "" {
			return root.Link(strings.TrimPrefix(path.Clean("/"+f.Target), "/"), name)
		}
		if err := populateRegular(root, name, f); err != nil {
			return err
		}
	default:
		if err := unix.Mknod(full, f.Mode, int(unix.Mkdev(f.Major, f.Minor))); err != nil {
			return err
		}
	}
	if err := root.Lchown(name, f.UID, f.GID); err != nil {
		return err
	}
	// After chown, which clears setuid, and past the umask.
	return unix.Chmod(full, f.Mode&0o7777)
}

func populateRegular(root *os.Root, name string, f File) error {
	data := f.Data
	if f.Host != "" {
		read, err := os.ReadFile(f.Host)
		if err != nil {
			return err
		}
		data = read
	}
	out, err := root.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = out.Write(data)
	if f.Size > 0 && err == nil {
		err = out.Truncate(f.Size)
	}
	return errors.Join(err, out.Close())
}
