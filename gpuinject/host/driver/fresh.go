package driver

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// format is raised whenever a search finds something else on the same host, so that the results of
// an older shim are not used. A test (tablesSum) notices a change of the tables.
const format = 5

// Stamp is the state of a file or directory at the time of a search. If there was none, all but
// Path is zero.
type Stamp struct {
	// Path is in the driver root; links in it are followed.
	Path  string
	Dev   uint64 `json:",omitempty"`
	Inode uint64 `json:",omitempty"`
	Size  int64  `json:",omitempty"`
	// Ctime is in nanoseconds since 1970. Unlike the modification time, no program can set it back.
	Ctime int64 `json:",omitempty"`
	// Mtime is in nanoseconds since 1970. Removing a name changes Ctime, but not Mtime.
	Mtime int64 `json:",omitempty"`
}

// IsContentOf reports whether a file still has the content that it had at the time of the stamp,
// whatever its names.
func (s Stamp) IsContentOf(st unix.Stat_t) bool {
	now := newStamp(s.Path, st)
	now.Ctime = s.Ctime
	return s.Inode != 0 && now == s
}

// settling is the time within which two changes can get the same timestamp: the kernel's clock for
// files ticks every 10 ms at worst (HZ=100).
const settling = 20 * time.Millisecond

// stamp records the state of a path, or its absence if st is zero.
func (s *Search) stamp(name string, st unix.Stat_t) {
	if !slices.ContainsFunc(s.files.Stamps, func(x Stamp) bool { return x.Path == name }) {
		s.files.Stamps = append(s.files.Stamps, newStamp(name, st))
	}
}

func newStamp(name string, st unix.Stat_t) Stamp {
	return Stamp{
		Path: name, Inode: st.Ino, Size: st.Size, Ctime: st.Ctim.Nano(), Mtime: st.Mtim.Nano(),
		Dev: uint64(st.Dev), //nolint:unconvert // 32 bits on some architectures
	}
}

// Fresh reports whether a new search with these arguments would find the same: every library
// directory, every file that was taken or refused, every place where nothing was, and the
// ld.so.cache are in the state they were in. It looks at metadata only.
func (f Files) Fresh(cfg config.Host, version string) bool {
	if f.Format != format || f.Version != version || f.Root != cfg.DriverRoot || !slices.Equal(f.Extra, cfg.DriverLibraries) {
		return false
	}
	t, err := openTree(cfg.DriverRoot)
	if err != nil {
		return false
	}
	defer t.Close()
	if t.real != f.RealRoot {
		return false
	}
	for _, then := range f.Stamps {
		// A file changed just before the search may have changed again after it with the same
		// timestamp. Times far in the future come from file systems with timestamps of their own.
		since := time.Duration(then.Ctime - f.Found)
		if then.Ctime != 0 && -settling < since && since < time.Hour || t.stamp(then.Path) != then {
			return false
		}
	}
	return true
}

func (t *tree) stamp(name string) Stamp {
	fd, st, err := t.resolve(name)
	if err == nil {
		unix.Close(fd)
	}
	return newStamp(name, st)
}

// identity returns a checksum of the states of the files that a view is made of.
func (s *Search) identity() string {
	given := map[string]bool{}
	var lines []string
	for _, l := range s.files.Libraries {
		given[l.Path] = true
		if path.Base(l.Path) != l.Name {
			lines = append(lines, l.Path+" is "+l.Name)
		}
	}
	for _, b := range s.files.Binaries {
		given[b.Path] = true
	}
	for _, d := range s.files.Data {
		given[d.Path] = d.Data == nil && !d.Direct
	}
	for _, stamp := range s.files.Stamps {
		if given[path.Join(s.real, stamp.Path)] {
			lines = append(lines, fmt.Sprintf("%+v", stamp))
		}
	}
	slices.Sort(lines) // the order in ld.so.cache may change
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	return hex.EncodeToString(sum[:])
}

// IsContainer reports whether libcuda or libnvidia-ml is a mount point, as in a container: then
// this host is itself a container.
func IsContainer(cfg config.Host, version string) bool {
	s, err := NewSearch(cfg, version)
	if err != nil {
		return false
	}
	defer s.Close()
	names := s.cache()
	for _, dir := range append(slices.Clone(cfg.DriverLibraries), libraryDirs()...) {
		for _, stem := range []string{"libcuda.so.", "libnvidia-ml.so."} {
			names = append(names, path.Join(dir, stem+"1"), path.Join(dir, stem+version))
		}
	}
	return slices.ContainsFunc(names, func(name string) bool {
		fd, _, err := s.resolve(name)
		if err != nil {
			return false
		}
		defer unix.Close(fd)
		var stx unix.Statx_t
		err = unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE, &stx)
		return err == nil && stx.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 // kernel 5.8
	})
}
