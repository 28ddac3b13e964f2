package driver

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// stamp is the state of a file, a directory, or an absence, at Discover.
type stamp struct {
	// path is in the driver root; links in it are followed.
	path string
	// desktop says that it is for DesktopWatched.
	desktop bool
	state
}

// state is what two looks at a path are compared by.
type state struct {
	// Absent says that nothing could be resolved there. The rest is then zero.
	Absent     bool
	Dev, Inode uint64
	Size       int64
	// Mtime and Ctime are nanoseconds since 1970. A program that overwrites a file
	// in place can set the first back, but not the second.
	Mtime, Ctime int64
}

// settling is the time within which two changes can carry the same time: the
// kernel's clock for files ticks every 10 ms at worst (HZ=100).
const settling = 20 * time.Millisecond

func stateOf(st *unix.Stat_t) state {
	if st == nil {
		return state{Absent: true}
	}
	return state{
		Dev: uint64(st.Dev), Inode: st.Ino, Size: st.Size, //nolint:unconvert // Dev has 32 bits on some architectures
		Mtime: st.Mtim.Nano(), Ctime: st.Ctim.Nano(),
	}
}

// append adds the state to what is summed up, in a form of one length.
func (s state) append(b []byte) []byte {
	present := uint64(1)
	if s.Absent {
		present = 0
	}
	for _, n := range [...]uint64{present, s.Dev, s.Inode, uint64(s.Size), uint64(s.Mtime), uint64(s.Ctime)} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return b
}

func sum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// stamp records the state of a path, or with a nil st its absence.
func (s *search) stamp(path string, st *unix.Stat_t) {
	if s.stamped[path] {
		return
	}
	s.stamped[path] = true
	is := stateOf(st)
	s.stamps = append(s.stamps, stamp{path, s.desktop, is})
	// Times far in the future come from file systems that bring their own.
	since := time.Duration(is.Ctime - s.start.UnixNano())
	if !is.Absent && -settling < since && since < time.Hour {
		s.files.Settled = false
	}
}

// How Fresh looks at a path: the first byte of each of Files.Watched.
const (
	// plainly is stat(2), a third of the cost of resolving in the root. It can leave
	// the root by an absolute link, so it serves where it found the same as inRoot, and
	// only its "the very same file, unmodified" is believed.
	plainly = '='
	inRoot  = '~'
)

// seal turns the stamps into what Fresh compares and a view is known by. It does not
// look again at what Discover has seen: that may have changed since.
func (s *search) seal() {
	given := make(map[string]bool)
	for _, l := range s.files.Libraries {
		given[l.Path] = true
	}
	for _, b := range s.files.Binaries {
		given[b.Path] = true
	}
	for _, d := range s.files.Data {
		if d.Data == nil && !d.Direct {
			given[d.Path] = true
		}
	}
	var all, drawing []byte
	var files []string
	for _, stamp := range s.stamps {
		how := byte(inRoot)
		var st unix.Stat_t
		if err := unix.Fstatat(s.fd, strings.TrimPrefix(stamp.path, "/"), &st, 0); err == nil && stateOf(&st) == stamp.state {
			how = plainly
		}
		if stamp.desktop {
			s.files.DesktopWatched, drawing = append(s.files.DesktopWatched, string(how)+stamp.path), stamp.append(drawing)
		} else {
			s.files.Watched, all = append(s.files.Watched, string(how)+stamp.path), stamp.append(all)
		}
		if given[path.Join(s.files.RealRoot, stamp.path)] {
			files = append(files, string(stamp.append(append([]byte(stamp.path), 0))))
		}
	}
	// In whatever order the cache lists them.
	slices.Sort(files)
	s.files.State, s.files.DesktopState, s.files.Identity = sum(all), sum(drawing), sum([]byte(strings.Join(files, "")))
	s.files.Nested = slices.ContainsFunc(s.files.Libraries, func(l Library) bool {
		return (l.SOName == "libcuda.so.1" || l.SOName == "libnvidia-ml.so.1") && isMount(l)
	})
}

// isMount tells whether a library is a mount of its own (statx(2), kernel 5.8).
func isMount(l Library) bool {
	var stx unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, l.Path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE, &stx)
	return err == nil && stx.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// Fresh tells whether Discover would find the same again for these capabilities: the
// settings are the same, and every library directory, every file that was taken or
// refused, every place where nothing was, and the ld.so.cache are still what they
// were. It only looks at metadata. The caller compares Version with the loaded
// kernel module's.
func (f *Files) Fresh(host config.Host, caps []string) bool {
	if !f.Settled || len(f.Watched) == 0 || f.Root != host.DriverRoot || !slices.Equal(f.Extra, host.DriverLibraries) {
		return false
	}
	t, err := openTree(host.DriverRoot)
	if err != nil {
		return false
	}
	defer t.close()
	return t.real == f.RealRoot && t.same(f.Watched, f.State) &&
		(!desktop(caps) || t.same(f.DesktopWatched, f.DesktopState))
}

// same tells whether what is watched is as it was.
func (t *tree) same(watched []string, then string) bool {
	all := make([]byte, 0, len(watched)*len(state{}.append(nil)))
	for _, w := range watched {
		if w == "" {
			return false
		}
		all = t.look(w[0], w[1:]).append(all)
	}
	return sum(all) == then
}

// look is the present state of a path.
func (t *tree) look(how byte, name string) state {
	var st unix.Stat_t
	if how == plainly {
		if err := unix.Fstatat(t.fd, strings.TrimPrefix(name, "/"), &st, 0); err != nil {
			return state{Absent: true}
		}
		return stateOf(&st)
	}
	fd, st, err := t.open(name)
	if err != nil {
		return state{Absent: true}
	}
	unix.Close(fd)
	return stateOf(&st)
}
