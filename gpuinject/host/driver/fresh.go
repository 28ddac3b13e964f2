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

// settling is the time within which two changes can get the same timestamp: the kernel's clock for
// files ticks every 10 ms at worst (HZ=100).
const settling = 20 * time.Millisecond

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

// dependsOn returns the stamps of the places that Fresh compares: of the directories and files that
// were read, such as manifests; of files that are not in one of them, or were refused, so that a
// repair is noticed; and of names that were absent there. Of an absent path the first component that
// is missing is enough.
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

// Files returns what was found. An incomplete search is an error: its result would be kept, and
// every container refused for a library that is there (T65).
func (s *Search) Files() (Files, error) {
	if s.err != nil {
		return Files{}, fmt.Errorf("find driver files: %w", s.err)
	}
	s.files.Identity = s.identity()
	var there []Stamp
	for _, place := range s.dependsOn() {
		if place.Inode == 0 {
			s.files.Absent = append(s.files.Absent, place.Path)
			continue
		}
		s.files.Places, there = append(s.files.Places, place.Path), append(there, place)
	}
	if s.files.isSettled(there) {
		s.files.Sum = sumOf(there)
	}
	s.files.Others = s.others
	return s.files, nil
}
