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

// binaries looks beside the libraries first, so that nvidia-smi fits them.
func (s *search) binaries() {
	var dirs []string
	for _, prefix := range s.prefixes() {
		dirs = append(dirs, path.Join(prefix, "bin"))
	}
	dirs = append(dirs, binaryDirs...)
	dirs = slices.DeleteFunc(dirs, func(d string) bool { return !s.exists(d) })
	for _, b := range binaryKinds {
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

// data finds the files of dataKinds. The first place wins: /etc is the
// administrator's.
func (s *search) data() {
	dirs := slices.Clone(dataDirs)
	for _, prefix := range s.prefixes() {
		// Container-Optimized OS has vulkan/icd.d directly below the prefix.
		dirs = append(dirs, path.Join(prefix, "share"), prefix)
	}
	dirs = slices.DeleteFunc(dirs, func(d string) bool { return !s.exists(d) })
	for _, k := range dataKinds {
		places := slices.DeleteFunc(slices.Clone(dirs), func(d string) bool { return !s.exists(path.Join(d, k.dir)) })
		for _, name := range k.names {
			for _, dir := range places {
				if host, _, ok := s.file(path.Join(dir, k.dir, name)); ok {
					s.files.Data = append(s.files.Data, File{Path: host, Dest: path.Join(k.dest, k.dir, name), Capabilities: k.capabilities})
					break
				}
			}
		}
	}
}

// xorg finds the modules of the X server. They keep the host's path, because
// nvidia-drm-outputclass.conf names their directory.
func (s *search) xorg() {
	dirs := slices.Clone(xorgDirs)
	for dir := range s.used {
		dirs = append(dirs, path.Join(dir, "nvidia/xorg"), path.Join(dir, "xorg/modules/drivers"), path.Join(dir, "xorg/modules/extensions"))
	}
	slices.Sort(dirs[len(xorgDirs):])
	dirs = slices.DeleteFunc(dirs, func(d string) bool { return !s.exists(d) })
	glx := "libglxserver_nvidia.so." + s.files.Version
	for _, m := range []struct{ name, real string }{
		// The versioned name is never asked for, and would leave a placeholder for each
		// version in a snapshot that outlives driver upgrades.
		{"nvidia_drv.so", ""}, {"libglxserver_nvidia.so", glx},
	} {
		for _, dir := range dirs {
			name := path.Join(dir, m.name)
			host, _, ok := s.file(name)
			if ok && (m.real == "" || path.Base(host) == m.real) {
				s.files.Data = append(s.files.Data, File{Path: host, Dest: name, Capabilities: graphics})
				break
			}
		}
	}
}
