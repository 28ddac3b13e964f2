package driver

import (
	"path"
	"slices"

	"golang.org/x/sys/unix"
)

// prefixes are the directories above the library directories that were used, where
// the driver has a tree of its own: /usr/local/nvidia of /usr/local/nvidia/lib64.
func (s *search) prefixes() []string {
	var list []string
	for dir := range s.used {
		prefix := path.Dir(dir)
		base := path.Base(dir)
		if (base == "lib64" || base == "lib") && prefix != "/" && prefix != "/usr" {
			list = append(list, prefix)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// file resolves one file and checks it. Both its name, which may be a link, and the
// file are stamped, or its absence.
func (s *search) file(name string) (host string, st unix.Stat_t, ok bool) {
	fd, st, err := s.open(name)
	if err != nil {
		s.stamp(name, nil)
		return "", st, false
	}
	defer unix.Close(fd)
	host, inner, err := s.name(fd)
	if err != nil {
		s.refuse(s.host(name), err.Error())
		return "", st, false
	}
	s.stamp(name, &st)
	s.stamp(inner, &st)
	if reason := unsafeFile(&st); reason != "" {
		s.refuse(host, reason)
		return "", st, false
	}
	return host, st, true
}

// exists tells whether a directory can be used to look for files of known names.
// It is not stamped, since /etc and /usr/bin change often; those files are.
func (s *search) exists(dir string) bool {
	fd, _, usable := s.directory(dir)
	if usable {
		unix.Close(fd)
	}
	return usable
}

// binaries looks beside the libraries first, so that nvidia-smi fits them. Those for
// graphics alone are looked for apart.
func (s *search) binaries(drawing bool) {
	var dirs []string
	for _, prefix := range s.prefixes() {
		dirs = append(dirs, path.Join(prefix, "bin"))
	}
	dirs = append(dirs, binaryDirs...)
	dirs = append(dirs, s.places.binaries...)
	dirs = slices.DeleteFunc(dirs, func(d string) bool { return !s.exists(d) })
	for _, b := range binaryKinds {
		if desktop(b.Capabilities) != drawing {
			continue
		}
		for _, dir := range dirs {
			host, st, ok := s.file(path.Join(dir, b.Name))
			if ok && st.Mode&0o111 == 0 {
				s.refuse(host, "is not executable")
				ok = false
			}
			if ok {
				s.files.Binaries = append(s.files.Binaries, Binary{Path: host, Name: b.Name, Capabilities: b.Capabilities})
				break
			}
		}
	}
}
