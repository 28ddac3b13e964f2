package simtest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Root is a directory with the file systems of a host that a test lays out by
// itself, where the simulated driver has no such host.
type Root struct {
	testing.TB
	Dir string
}

// NewRoot makes an empty one.
func NewRoot(t testing.TB) Root {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("files of a driver belong to root and nodes are made: run this test as root")
	}
	return Root{t, t.TempDir()}
}

// Check ends the test if err is not nil.
func (r Root) Check(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// Write makes a file of mode 0755 and returns its path.
func (r Root) Write(name, text string) string {
	r.Helper()
	file := filepath.Join(r.Dir, name)
	r.Check(os.MkdirAll(filepath.Dir(file), 0o755))
	r.Check(os.WriteFile(file, []byte(text), 0o755))
	return file
}

// Link makes a symbolic link.
func (r Root) Link(name, target string) {
	r.Helper()
	r.Check(os.MkdirAll(filepath.Dir(filepath.Join(r.Dir, name)), 0o755))
	r.Check(os.Symlink(target, filepath.Join(r.Dir, name)))
}

// Node makes a character device below dev, in place of what is there.
func (r Root) Node(name string, major, minor, mode uint32) {
	r.Helper()
	file := filepath.Join(r.Dir, "dev", name)
	r.Check(os.MkdirAll(filepath.Dir(file), 0o755))
	r.Check(os.RemoveAll(file))
	r.Check(unix.Mknod(file, unix.S_IFCHR|mode, int(unix.Mkdev(major, minor))))
	r.Check(os.Chmod(file, os.FileMode(mode)))
}

// Library is the smallest library that a loader would map: a header, a PT_LOAD
// of all of it and a PT_DYNAMIC with a SONAME.
func Library(class elf.Class, machine elf.Machine, soname string) string {
	ident := [16]byte{0x7f, 'E', 'L', 'F', byte(class), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)}
	names := "\x00" + soname + "\x00"
	dyn, library := uint16(elf.ET_DYN), uint16(machine)
	var parts []any
	if class == elf.ELFCLASS64 {
		const at, table = 64 + 2*56, 64 + 2*56 + 4*16
		size := uint64(table + len(names))
		parts = []any{
			elf.Header64{Ident: ident, Type: dyn, Machine: library, Version: 1, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 2},
			elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: 5, Filesz: size, Memsz: size, Align: 4096},
			elf.Prog64{Type: uint32(elf.PT_DYNAMIC), Flags: 6, Off: at, Vaddr: at, Filesz: 4 * 16, Memsz: 4 * 16, Align: 8},
			[]elf.Dyn64{{Tag: int64(elf.DT_STRTAB), Val: table}, {Tag: int64(elf.DT_STRSZ), Val: size - table}, {Tag: int64(elf.DT_SONAME), Val: 1}, {}},
		}
	} else {
		const at, table = 52 + 2*32, 52 + 2*32 + 4*8
		size := uint32(table + len(names))
		parts = []any{
			elf.Header32{Ident: ident, Type: dyn, Machine: library, Version: 1, Phoff: 52, Ehsize: 52, Phentsize: 32, Phnum: 2},
			elf.Prog32{Type: uint32(elf.PT_LOAD), Flags: 5, Filesz: size, Memsz: size, Align: 4096},
			elf.Prog32{Type: uint32(elf.PT_DYNAMIC), Flags: 6, Off: at, Vaddr: at, Filesz: 4 * 8, Memsz: 4 * 8, Align: 4},
			[]elf.Dyn32{{Tag: int32(elf.DT_STRTAB), Val: table}, {Tag: int32(elf.DT_STRSZ), Val: size - table}, {Tag: int32(elf.DT_SONAME), Val: 1}, {}},
		}
	}
	var b bytes.Buffer
	for _, part := range parts {
		_ = binary.Write(&b, binary.LittleEndian, part)
	}
	return b.String() + names
}

// Says fails the test unless err has all of the words and one line.
func Says(t testing.TB, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one with %q", words)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q does not say %q in one line", err, w)
		}
	}
}
