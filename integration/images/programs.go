package images

import (
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

//go:embed programs
var programs embed.FS

// libc says which C library a program is built for.
type libc int

const (
	static libc = iota
	glibc
	musl
)

// source is the path of programs/<name>.c, written into the build's directory.
func (b *builder) source(name string) string {
	dir := filepath.Join(b.work, "programs")
	if _, err := os.Stat(dir); err != nil {
		b.check(os.CopyFS(b.work, programs))
	}
	return filepath.Join(dir, name+".c")
}

// programs compiles programs/<name>.c and adds the binaries as /test/<name>.
func (b *builder) programs(c libc, names ...string) {
	for _, name := range names {
		out := filepath.Join(b.work, name)
		args := []string{"-O2", "-s", "-Wall", "-o", out, b.source(name)}
		compiler, pkg := "gcc", "gcc and libc6-dev"
		switch c {
		case static:
			args = append(args, "-static")
		case glibc:
			args = append(args, "-ldl") // before glibc 2.34 it is a library of its own
		case musl:
			compiler, pkg = "musl-gcc", "musl-tools"
		}
		b.check(tool(pkg, compiler, args...))
		b.add(FromHost("test/"+name, 0o755, out))
	}
}

// staticPrograms are those that every image has.
func (b *builder) staticPrograms() { b.programs(static, "opendev", "mkdev", "hear") }

// library is a shared library to be made of programs/telltale.c.
type library struct {
	// path is where it goes in the image.
	path string
	// soname may be empty: then ldconfig takes the file's name.
	soname string
	// value is what its functions give.
	value int
	// cuda adds the functions of a libcuda.
	cuda bool
	// note, if not empty, is the text of a forward compatibility note.
	note string
}

// libraries compiles and adds shared libraries.
func (b *builder) libraries(list ...library) {
	for _, l := range list {
		out := filepath.Join(b.work, fmt.Sprint("library-", len(b.files)))
		args := []string{
			"-shared", "-fPIC", "-nostdlib", "-O2", "-s", "-Wl,--build-id=none",
			"-DVALUE=" + strconv.Itoa(l.value), "-o", out, b.source("telltale"),
		}
		if l.soname != "" {
			args = append(args, "-Wl,-soname,"+l.soname)
		}
		if l.cuda {
			args = append(args, "-DCUDA")
		}
		if l.note != "" {
			b.check(os.WriteFile(out+".note", []byte(l.note), 0o644))
			args = append(args, "-DNOTE_FILE="+strconv.Quote(out+".note"))
		}
		b.check(tool("gcc", "gcc", args...))
		b.add(FromHost(l.path, 0o644, out))
	}
}
