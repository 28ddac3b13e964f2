package images

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Layer is one layer of an image: a finished layer tar, or a directory tree with
// the inline files on top. Everything is optional.
type Layer struct {
	// Tar is an uncompressed layer, used as it is; the other fields are then unused.
	Tar string
	// Dir is a directory of this host. Owners, modes, devices, symbolic links and
	// hard links are kept, extended attributes are not.
	Dir string
	// Skip leaves out an entry of Dir (its path relative to Dir) and, if it is a
	// directory, all below it.
	Skip func(path string) bool
	// Files follow, in order.
	Files []File
}

// maxSparse is the largest Sparse file of a layer.
const maxSparse = 256 << 20

// mtime is the time of every entry, so that the same tree gives the same bytes.
var mtime = time.Unix(1_700_000_000, 0).UTC()

// layerWriter writes one layer's tar.
type layerWriter struct {
	tw *tar.Writer
	// written holds the paths that have an entry.
	written map[string]bool
	// entries holds what has been written, for hard links to it.
	entries map[string]File
	// inodes holds the first path of each file with several links.
	inodes map[inode]string
}

type inode struct{ dev, ino uint64 }

// write writes the layer's tar.
func (l Layer) write(w io.Writer) error {
	if l.Tar != "" {
		f, err := os.Open(l.Tar)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, f)
		return err
	}
	lw := &layerWriter{tw: tar.NewWriter(w), written: map[string]bool{}, entries: map[string]File{}, inodes: map[inode]string{}}
	if l.Dir != "" {
		if err := lw.tree(l.Dir, l.Skip); err != nil {
			return err
		}
	}
	for _, f := range l.Files {
		if err := lw.file(f); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	return lw.tw.Close()
}

// tree writes a directory of the host; WalkDir's order is by name.
func (lw *layerWriter) tree(dir string, skip func(string) bool) error {
	return filepath.WalkDir(dir, func(full string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, full)
		if err != nil || rel == "." {
			return err
		}
		if skip != nil && skip(rel) {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		return lw.hostEntry(full, rel)
	})
}

func (lw *layerWriter) hostEntry(full, rel string) error {
	info, err := os.Lstat(full)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("no stat of this system")
	}
	f := File{Path: rel, Mode: st.Mode & 0o7777, UID: int(st.Uid), GID: int(st.Gid)}
	f.Major, f.Minor = unix.Major(uint64(st.Rdev)), unix.Minor(uint64(st.Rdev))
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		f.Host = full
	case unix.S_IFDIR:
		f.Kind = Directory
	case unix.S_IFLNK:
		f.Kind = SymbolicLink
		if f.Target, err = os.Readlink(full); err != nil {
			return err
		}
	case unix.S_IFCHR:
		f.Kind = CharDevice
	case unix.S_IFBLK:
		f.Kind = BlockDevice
	case unix.S_IFIFO:
		f.Kind = NamedPipe
	default:
		return nil // a socket has no place in an image
	}
	if f.Kind != Directory && st.Nlink > 1 {
		key := inode{uint64(st.Dev), st.Ino}
		if first, ok := lw.inodes[key]; ok {
			f.Kind, f.Target = HardLink, first
		} else {
			lw.inodes[key] = rel
		}
	}
	return lw.file(f)
}

// file writes one entry and the directories above it that have none yet.
func (lw *layerWriter) file(f File) error {
	name := strings.TrimPrefix(path.Clean("/"+f.Path), "/")
	if name == "" {
		return errors.New("the root itself cannot be an entry")
	}
	if err := lw.parents(path.Dir(name)); err != nil {
		return err
	}
	if f.Kind == HardLink {
		// Whoever unpacks the layer sets owner and mode once more for each link.
		f.Target = strings.TrimPrefix(path.Clean("/"+f.Target), "/")
		if to, ok := lw.entries[f.Target]; ok {
			f.Mode, f.UID, f.GID = to.Mode, to.UID, to.GID
		}
	}
	h := &tar.Header{
		Format: tar.FormatPAX, Name: name, Mode: int64(f.Mode),
		Uid: f.UID, Gid: f.GID, ModTime: mtime,
	}
	var content io.Reader
	switch f.Kind {
	case Directory:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case SymbolicLink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, f.Target
	case HardLink:
		h.Typeflag, h.Linkname = tar.TypeLink, f.Target
	case CharDevice:
		h.Typeflag, h.Devmajor, h.Devminor = tar.TypeChar, int64(f.Major), int64(f.Minor)
	case BlockDevice:
		h.Typeflag, h.Devmajor, h.Devminor = tar.TypeBlock, int64(f.Major), int64(f.Minor)
	case NamedPipe:
		h.Typeflag = tar.TypeFifo
	case Regular:
		h.Typeflag = tar.TypeReg
		opened, size, closer, err := f.open()
		if err != nil {
			return err
		}
		defer closer()
		content, h.Size = opened, size
	default:
		return fmt.Errorf("unknown kind %d", f.Kind)
	}
	lw.written[name] = true
	lw.entries[name] = f
	if err := lw.tw.WriteHeader(h); err != nil {
		return err
	}
	if content != nil {
		if _, err := io.Copy(lw.tw, content); err != nil {
			return err
		}
	}
	return nil
}

// parents writes the directories on the way that have no entry yet.
func (lw *layerWriter) parents(dir string) error {
	if dir == "." || lw.written[dir] {
		return nil
	}
	if err := lw.parents(path.Dir(dir)); err != nil {
		return err
	}
	lw.written[dir] = true
	return lw.tw.WriteHeader(&tar.Header{
		Format: tar.FormatPAX, Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: mtime,
	})
}

// open gives the content of a regular file and its size.
func (f File) open() (io.Reader, int64, func(), error) {
	switch {
	case f.Host != "":
		file, err := os.Open(f.Host)
		if err != nil {
			return nil, 0, nil, err
		}
		info, err := file.Stat()
		if err == nil && !info.Mode().IsRegular() {
			err = fmt.Errorf("%s is not a regular file", f.Host)
		}
		if err != nil {
			file.Close()
			return nil, 0, nil, err
		}
		return io.LimitReader(file, info.Size()), info.Size(), func() { file.Close() }, nil
	case f.Size > maxSparse:
		return nil, 0, nil, fmt.Errorf("%d zero bytes are too many for a layer: use Populate and a root file system directory", f.Size)
	case f.Size > 0:
		return io.LimitReader(zeros{}, f.Size), f.Size, func() {}, nil
	}
	return strings.NewReader(string(f.Data)), int64(len(f.Data)), func() {}, nil
}

// zeros reads as zero bytes without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
