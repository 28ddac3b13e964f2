package ldcache

import (
	"path"
	"slices"
	"strings"
)

// MuslDefault is the path that musl searches without a path file (ldso/dynlink.c). A path file
// replaces this default, so a new file has to begin with it.
const MuslDefault = "/lib:/usr/local/lib:/usr/lib\n"

// IsConfDir reports whether a directory can be a line of ld.so.conf and of musl's path file, which
// have no quoting: "=" introduces a type, "#" a comment, ":" is a separator.
func IsConfDir(dir string) bool {
	return path.IsAbs(dir) && path.Clean(dir) == dir && len(dir) <= maxString && dir != "/" &&
		strings.IndexFunc(dir, func(r rune) bool {
			return r <= ' ' || r == 0x7f || strings.ContainsRune("=#:,*?[]\\\"'", r)
		}) < 0
}

// ConfEntry returns the text of a file in /etc/ld.so.conf.d that names dirs.
func ConfEntry(dirs []string) []byte {
	const header = "# NVIDIA driver; written by containerd-shim-nvidia at each start of the container."
	return []byte(header + "\n" + strings.Join(dirs, "\n") + "\n")
}

// ConfIncludes reports whether ldconfig reads the file name because of a line of conf, the text of
// /etc/ld.so.conf (parse_conf in glibc's elf/ldconfig.c: "#" starts a comment, patterns are
// separated by blanks and relative to /etc).
func ConfIncludes(conf, name string) bool {
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

// AddMuslDirs returns the text of musl's path file, with the missing ones of dirs added at its end.
func AddMuslDirs(text string, dirs []string) []byte {
	text, _, _ = strings.Cut(text, "\x00") // musl reads up to here
	listed := strings.FieldsFunc(text, func(r rune) bool { return r == ':' || r == '\n' })
	for _, dir := range dirs {
		if slices.Contains(listed, dir) {
			continue
		}
		if text != "" && !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		text += dir + "\n"
	}
	return []byte(text)
}
