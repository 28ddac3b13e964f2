package testtree

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Process adds a process to a procfs of plain files and links below the root: root's, in the
// namespaces of process 1, with what it executes at the path program below the root.
func (r Root) Process(proc string, pid int, program string, environ []string, args ...string) {
	r.Helper()
	if _, err := os.Lstat(filepath.Join(r.Dir, proc, "1")); err != nil && pid != 1 {
		r.Process(proc, 1, "/sbin/init", nil)
	}
	dir := filepath.Join(proc, strconv.Itoa(pid))
	base := filepath.Base(program)
	for name, text := range map[string]string{
		"comm":    base[:min(15, len(base))] + "\n",
		"environ": strings.Join(environ, "\x00") + "\x00",
		"cmdline": strings.Join(append([]string{program}, args...), "\x00") + "\x00",
		"status":  "Name:\tx\nUid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n",
	} {
		r.Write(filepath.Join(dir, name), text)
	}
	if _, err := os.Stat(filepath.Join(r.Dir, program)); err != nil {
		r.Write(program, "")
	}
	links := map[string]string{"exe": filepath.Join(r.Dir, program), "root": r.Dir}
	for _, kind := range []string{"mnt", "user", "pid"} {
		links["ns/"+kind] = kind + ":[1]"
	}
	for name, target := range links {
		r.Check(os.RemoveAll(filepath.Join(r.Dir, dir, name)))
		r.Link(filepath.Join(dir, name), target)
	}
}

// ReplaceLink makes a symbolic link in place of another.
func (r Root) ReplaceLink(name, target string) {
	r.Helper()
	r.Check(os.Remove(filepath.Join(r.Dir, name)))
	r.Link(name, target)
}
