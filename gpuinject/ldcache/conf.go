package ldcache

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
)

const (
	confPath    = "/etc/ld.so.conf"
	confDirPath = "/etc/ld.so.conf.d/000-nvidia-shim.conf"

	// confHeader marks the entry as ours: the directories in it are those of an
	// earlier run.
	confHeader = "# NVIDIA driver; written by containerd-shim-nvidia at each start of the container.\n"

	maxConf        = 64 << 10 // bytes of a configuration file of the linker
	maxEarlierDirs = 16
)

// confFiles adds the entry of /etc/ld.so.conf.d by which a later ldconfig of the
// container (every apt or dnf runs one) lists the driver again, before everything
// else that this directory names. The name is fixed, so that there is one however
// often the container starts. /etc/ld.so.conf is made, or gets a line at its top,
// only where it would not read that entry.
func (u *update) confFiles() {
	var b strings.Builder
	b.WriteString(confHeader)
	if u.compat.Use {
		b.WriteString(u.compat.Dir + "\n")
	}
	for _, dir := range u.dirs {
		b.WriteString(dir + "\n")
	}
	u.add(confDirPath, []byte(b.String()))

	conf, err := u.root.ReadFile(confPath, maxConf)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		u.add(confPath, []byte("include /etc/ld.so.conf.d/*.conf\n"))
	case err != nil:
		u.note("%s of the image is left as it is, so a later ldconfig may lose the driver: %v", confPath, err)
	case !includes(string(conf), confDirPath):
		// Only our own entry: what else is in the directory was not read before.
		u.add(confPath, append([]byte("include "+confDirPath+"\n"), conf...))
	}
}

// includes tells whether ldconfig would read the file name because of a line of
// conf, which is /etc/ld.so.conf (parse_conf in glibc's elf/ldconfig.c: "#" starts
// a comment, patterns are separated by blanks and relative to /etc).
func includes(conf, name string) bool {
	for line := range strings.Lines(conf) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "include" {
			continue
		}
		for _, pattern := range fields[1:] {
			if !path.IsAbs(pattern) {
				pattern = path.Join("/etc", pattern)
			}
			if ok, err := path.Match(pattern, name); err == nil && ok {
				return true
			}
		}
	}
	return false
}

// earlierDirs are the directories that an earlier run named, by its own record in
// the image.
func (u *update) earlierDirs() []string {
	data, err := u.root.ReadFile(confDirPath, maxConf)
	if err != nil {
		return nil
	}
	lines, ours := strings.CutPrefix(string(data), confHeader)
	if !ours {
		return nil
	}
	var dirs []string
	for line := range strings.Lines(lines) {
		if dir := strings.TrimSuffix(line, "\n"); plainDir(dir) && len(dirs) < maxEarlierDirs {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// muslDefault is where musl looks when it has no path file (ldso/dynlink.c). A
// path file replaces it, so a new one has to begin with it.
const muslDefault = "/lib:/usr/local/lib:/usr/lib"

// muslPath adds musl's path file with the driver's directories at the end: they
// hold libraries for glibc, which must not come before the image's own.
func (u *update) muslPath() {
	a, _ := hostABIs()
	name := "/etc/ld-musl-" + a.musl + ".path"
	old, err := u.root.ReadFile(name, maxConf)
	text := string(old)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		text = muslDefault + "\n"
	case err != nil:
		u.note("%s of the image is of no use and is replaced by musl's default: %v", name, err)
		text = muslDefault + "\n"
	}
	text, _, _ = strings.Cut(text, "\x00") // musl reads up to here
	listed := strings.FieldsFunc(text, func(r rune) bool { return r == ':' || r == '\n' })
	for _, dir := range u.dirs {
		if slices.Contains(listed, dir) || !u.holds(dir, a.flags()) {
			continue
		}
		if text != "" && !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		text += dir + "\n"
	}
	u.add(name, []byte(text))
}

// holds tells whether libraries of the ABI are in dir: musl gives up at a library
// of another ABI instead of looking further.
func (u *update) holds(dir string, flags int32) bool {
	return slices.ContainsFunc(u.libs, func(l Library) bool {
		return l.Flags == flags && path.Dir(l.Path) == dir
	}) || !slices.ContainsFunc(u.libs, func(l Library) bool { return path.Dir(l.Path) == dir })
}
