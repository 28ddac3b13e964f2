package driver

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// format is raised whenever a search finds something else on the same host, so that the results of
// an older shim are not used. A test (tablesSum) notices a change of the tables.
const format = 6

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
	return s.Inode != 0 && now == s // guard: view: files of the loaded driver as they were
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

// Fresh reports whether a new search with these arguments would find the same: the directories that
// and files that were read, and what the search depended on outside them, are in the state they were
// in. Any other file in these directories is replaced, added or removed only by changing its
// directory, and one changed in place is the one that a view shows. It looks at metadata only.
func (f Files) Fresh(cfg config.Host, version string) bool {
	if f.Format != format || f.Sum == "" || f.Version != version || f.Root != cfg.DriverRoot || !slices.Equal(f.Extra, cfg.DriverLibraries) {
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
	for _, name := range f.Absent {
		if t.stamp(name) != (Stamp{Path: name}) {
			return false
		}
	}
	// A path by which the kernel finds the same file outside t is as good, and cheaper. An absolute
	// link leads elsewhere.
	return f.sumOfPlaces(t.stampOutside) == f.Sum || f.sumOfPlaces(t.stamp) == f.Sum
}

func (f Files) sumOfPlaces(stamp func(name string) Stamp) string {
	now := make([]Stamp, len(f.Places))
	for i, name := range f.Places {
		now[i] = stamp(name)
	}
	return sumOf(now)
}

// sumOf returns a checksum of stamps.
func sumOf(stamps []Stamp) string {
	var text []byte
	for _, s := range stamps {
		text = s.append(text)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// append appends what fmt.Appendln would, without reflection: Fresh does so for each container.
func (s Stamp) append(text []byte) []byte {
	text = append(append(text, '{'), s.Path...)
	text = strconv.AppendUint(append(text, ' '), s.Dev, 10)
	text = strconv.AppendUint(append(text, ' '), s.Inode, 10)
	text = strconv.AppendInt(append(text, ' '), s.Size, 10)
	text = strconv.AppendInt(append(text, ' '), s.Ctime, 10)
	text = strconv.AppendInt(append(text, ' '), s.Mtime, 10)
	return append(text, "}\n"...)
}

// dependsOn returns the stamps of the places that Fresh compares: of the directories and files that
// were read, such as manifests; of files that are not in one of them, or were refused, so that a
// repair is noticed; and of names
// that were absent there. Of an absent path the first component that is missing is enough.
func (s *Search) dependsOn() (places []Stamp) {
	refused := map[string]bool{}
	for _, r := range s.files.Refused {
		refused[r.Path] = true
	}
	for _, stamp := range s.files.Stamps {
		if stamp.Inode == 0 {
			stamp.Path = s.firstMissing(stamp.Path)
		}
		inDirectory := s.read[path.Dir(stamp.Path)] && !s.leadsOut(stamp.Path)
		needed := s.read[stamp.Path] || refused[s.host(stamp.Path)] || !inDirectory
		if needed && !slices.Contains(places, stamp) {
			places = append(places, stamp)
		}
	}
	return places
}

// firstMissing returns the first component of an absent path that is missing, as a path.
func (s *Search) firstMissing(name string) string {
	for dir := path.Dir(name); ; name, dir = dir, path.Dir(dir) {
		if fd, _, err := s.resolve(dir); err == nil || dir == "/" {
			unix.Close(fd)
			return name
		}
	}
}

// leadsOut reports whether a name in a directory is a link to another directory, so that a change
// there changes what the name leads to.
func (s *Search) leadsOut(name string) bool {
	fd, _, err := s.resolve(path.Dir(name))
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	text, base := make([]byte, unix.PathMax), path.Base(name)
	for range 40 {
		n, err := unix.Readlinkat(fd, base, text)
		if err != nil {
			return false
		}
		if base = string(text[:n]); strings.Contains(base, "/") {
			return true
		}
	}
	return true
}

// isSettled reports whether no place was changed so shortly before the search that it may have
// changed again after it with the same timestamp. Times far in the future come from file systems
// with timestamps of their own.
func (f Files) isSettled(places []Stamp) bool {
	return !slices.ContainsFunc(places, func(s Stamp) bool {
		since := time.Duration(s.Ctime - f.Found)
		return s.Ctime != 0 && -settling < since && since < time.Hour
	})
}

func (t *tree) stamp(name string) Stamp {
	fd, st, err := t.resolve(name)
	if err == nil {
		unix.Close(fd)
	}
	return newStamp(name, st)
}

// stampOutside is like stamp, but links are followed from the root of the host.
func (t *tree) stampOutside(name string) Stamp {
	var st unix.Stat_t
	if err := unix.Fstatat(t.fd, "./"+name, &st, 0); err != nil {
		st = unix.Stat_t{}
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
