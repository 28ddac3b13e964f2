package driver

import (
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// Stamp is the state of a file, a directory, or an absence, at Discover.
type Stamp struct {
	// Path is in the driver root; links in it are followed.
	Path string
	// Absent says that nothing could be resolved there. The rest is then zero.
	Absent     bool `json:",omitempty"`
	Dev, Inode uint64
	Size       int64
	// Mtime and Ctime are nanoseconds since 1970. A program that overwrites a file
	// in place can set the first back, but not the second.
	Mtime, Ctime int64
}

// settling is the time within which two changes can carry the same time: the
// kernel's clock for files ticks every 10 ms at worst (HZ=100).
const settling = 20 * time.Millisecond

func newStamp(path string, st *unix.Stat_t) Stamp {
	if st == nil {
		return Stamp{Path: path, Absent: true}
	}
	return Stamp{
		Path: path, Dev: uint64(st.Dev), Inode: st.Ino, Size: st.Size, //nolint:unconvert // Dev has 32 bits on some architectures
		Mtime: st.Mtim.Nano(), Ctime: st.Ctim.Nano(),
	}
}

// stamp records the state of a path, or with a nil st its absence.
func (s *search) stamp(path string, st *unix.Stat_t) {
	if s.stamped[path] {
		return
	}
	s.stamped[path] = true
	stamp := newStamp(path, st)
	s.files.Stamps = append(s.files.Stamps, stamp)
	// Times far in the future come from file systems that bring their own.
	since := time.Duration(stamp.Ctime - s.start.UnixNano())
	if !stamp.Absent && -settling < since && since < time.Hour {
		s.files.Settled = false
	}
}

// Fresh tells whether Discover would find the same again: the settings are the
// same, and every library directory, every file that was taken or refused, every
// place where nothing was, and the ld.so.cache are still what they were. It only
// looks at metadata. The caller compares Version with the loaded kernel module's.
func (f *Files) Fresh(host config.Host) bool {
	if !f.Settled || len(f.Stamps) == 0 || f.Root != host.DriverRoot || !slices.Equal(f.Extra, host.DriverLibraries) {
		return false
	}
	t, err := openTree(host.DriverRoot)
	if err != nil {
		return false
	}
	defer t.close()
	if t.real != f.RealRoot {
		return false
	}
	for i := range f.Stamps {
		if !t.unchanged(f.Stamps[i]) {
			return false
		}
	}
	return true
}

// unchanged compares one stamp. Plain stat is a third of the cost of resolving in
// the root. It can leave the root by an absolute link, so only its "the very same
// file, unmodified" is believed; everything else is looked up again in the root.
func (t *tree) unchanged(stamp Stamp) bool {
	var st unix.Stat_t
	if !stamp.Absent {
		err := unix.Fstatat(t.fd, strings.TrimPrefix(stamp.Path, "/"), &st, 0)
		if err == nil && newStamp(stamp.Path, &st) == stamp {
			return true
		}
	}
	fd, st, err := t.open(stamp.Path)
	if err != nil {
		return stamp.Absent
	}
	unix.Close(fd)
	return newStamp(stamp.Path, &st) == stamp
}
