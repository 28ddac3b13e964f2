package images

import (
	"embed"
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

// sources writes the programs' sources into the build's directory.
func (b *builder) sources() (string, error) {
	dir := filepath.Join(b.work, "programs")
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	return dir, os.CopyFS(b.work, programs)
}

// program compiles programs/<name>.c and gives the binary as /test/<name>.
func (b *builder) program(name string, c libc) (File, error) {
	dir, err := b.sources()
	if err != nil {
		return File{}, err
	}
	out := filepath.Join(b.work, name)
	args := []string{"-O2", "-s", "-Wall", "-o", out, filepath.Join(dir, name+".c")}
	compiler, pkg := "gcc", "gcc and libc6-dev"
	switch c {
	case static:
		args = append(args, "-static")
	case glibc:
		args = append(args, "-ldl") // before glibc 2.34 it is a library of its own
	case musl:
		compiler, pkg = "musl-gcc", "musl-tools"
	}
	if err := tool(pkg, compiler, args...); err != nil {
		return File{}, err
	}
	return FromHost("test/"+name, 0o755, out), nil
}

// staticPrograms are those that every image has.
func (b *builder) staticPrograms() ([]File, error) {
	return b.programs(static, "opendev", "mkdev", "hear")
}

func (b *builder) programs(c libc, names ...string) ([]File, error) {
	var files []File
	for _, name := range names {
		f, err := b.program(name, c)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

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
	// note, when not nil, is the text of a forward compatibility note.
	note *string
}

// library compiles a shared library.
func (b *builder) library(l library) (File, error) {
	dir, err := b.sources()
	if err != nil {
		return File{}, err
	}
	out, err := os.CreateTemp(b.work, "library-")
	if err != nil {
		return File{}, err
	}
	if err := out.Close(); err != nil {
		return File{}, err
	}
	args := []string{
		"-shared", "-fPIC", "-nostdlib", "-O2", "-s", "-Wl,--build-id=none",
		"-DVALUE=" + strconv.Itoa(l.value), "-o", out.Name(), filepath.Join(dir, "telltale.c"),
	}
	if l.soname != "" {
		args = append(args, "-Wl,-soname,"+l.soname)
	}
	if l.cuda {
		args = append(args, "-DCUDA")
	}
	if l.note != nil {
		file := out.Name() + ".note"
		if err := os.WriteFile(file, []byte(*l.note), 0o644); err != nil {
			return File{}, err
		}
		args = append(args, "-DNOTE_FILE="+strconv.Quote(file))
	}
	if err := tool("gcc", "gcc", args...); err != nil {
		return File{}, err
	}
	return FromHost(l.path, 0o644, out.Name()), nil
}
