package driver

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
)

const version = "580.159.04"

// fakeRoot is a driver root.
type fakeRoot struct {
	t    testing.TB
	dir  string
	host config.Host
}

func newRoot(t testing.TB) *fakeRoot {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("driver files must be owned by root: run these tests as root")
	}
	dir := t.TempDir()
	return &fakeRoot{t, dir, config.Host{DriverRoot: dir}}
}

func (r *fakeRoot) check(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// write makes a file and returns its path on the host.
func (r *fakeRoot) write(name string, data []byte, mode os.FileMode) string {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	r.check(os.MkdirAll(filepath.Dir(path), 0o755))
	r.check(os.WriteFile(path, data, 0o644))
	r.check(os.Chmod(path, mode))
	return path
}

func (r *fakeRoot) link(name, target string) {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	r.check(os.MkdirAll(filepath.Dir(path), 0o755))
	r.check(os.Symlink(target, path))
}

func machines() (elf.Machine, elf.Machine, string, string) {
	return arch.machine64, arch.machine32, arch.triple, arch.triple32
}

// lib makes a 64-bit library with a SONAME and the link of that name.
func (r *fakeRoot) lib(name, soname string) string {
	r.t.Helper()
	machine, _, _, _ := machines()
	path := r.write(name, elf64(machine, soname), 0o755)
	if soname != filepath.Base(name) {
		os.Symlink(filepath.Base(name), filepath.Join(filepath.Dir(path), soname))
	}
	return path
}

// core makes the two libraries that compute and utility need.
func (r *fakeRoot) core(dir, version string) {
	r.t.Helper()
	r.lib(dir+"/libcuda.so."+version, "libcuda.so.1")
	r.lib(dir+"/libnvidia-ml.so."+version, "libnvidia-ml.so.1")
}

// cache writes an ld.so.cache that lists SONAMEs at paths, in this order.
func (r *fakeRoot) cache(paths ...string) {
	r.t.Helper()
	machine, _, _, _ := machines()
	flags, _ := ldcache.FlagsFor(elf.ELFCLASS64, machine)
	c := &ldcache.Cache{}
	for _, p := range paths {
		c.Entries = append(c.Entries, ldcache.Entry{Name: filepath.Base(p), Path: p, Flags: flags})
	}
	r.write("etc/ld.so.cache", c.Encode(), 0o644)
}

func (r *fakeRoot) discover() *Files {
	r.t.Helper()
	files, err := Discover(r.host, version)
	r.check(err)
	return files
}

// settled discovers after a pause that lets Fresh trust the times of files.
func (r *fakeRoot) settled() *Files {
	r.t.Helper()
	time.Sleep(2 * settling)
	return r.discover()
}

func libraryNames(files *Files) []string {
	var names []string
	for _, l := range files.Libraries {
		names = append(names, filepath.Join(l.Subdir, l.Name))
	}
	return names
}

func (r *fakeRoot) library(files *Files, name string) Library {
	r.t.Helper()
	for _, l := range files.Libraries {
		if l.Name == name {
			return l
		}
	}
	r.t.Fatalf("no %s in %v; refused %v", name, libraryNames(files), files.Refused)
	return Library{}
}

// refusal returns why the file with this base name was refused.
func refusal(files *Files, base string) string {
	for _, r := range files.Refused {
		if filepath.Base(r.Path) == base {
			return r.Reason
		}
	}
	return ""
}

// elf64 is the least file that a loader would map: a header, a PT_LOAD of all of it
// and a PT_DYNAMIC with a SONAME.
func elf64(machine elf.Machine, soname string) []byte {
	const header, program = 64, 56
	dynamic := uint64(header + 2*program)
	table := dynamic + 4*16
	strtab := "\x00" + soname + "\x00"
	size := table + uint64(len(strtab))
	var b bytes.Buffer
	put := func(v any) { binary.Write(&b, binary.LittleEndian, v) }
	put(elf.Header64{
		Ident: ident(elf.ELFCLASS64), Type: uint16(elf.ET_DYN), Machine: uint16(machine), Version: 1,
		Phoff: header, Ehsize: header, Phentsize: program, Phnum: 2, Shentsize: 64,
	})
	put(elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: 5, Filesz: size, Memsz: size, Align: 4096})
	put(elf.Prog64{Type: uint32(elf.PT_DYNAMIC), Flags: 6, Off: dynamic, Vaddr: dynamic, Paddr: dynamic, Filesz: 64, Memsz: 64, Align: 8})
	put([]elf.Dyn64{{Tag: int64(elf.DT_STRTAB), Val: table}, {Tag: int64(elf.DT_STRSZ), Val: uint64(len(strtab))}, {Tag: int64(elf.DT_SONAME), Val: 1}, {}})
	b.WriteString(strtab)
	return b.Bytes()
}

// elf32 is the same for 32 bits.
func elf32(machine elf.Machine, soname string) []byte {
	const header, program = 52, 32
	dynamic := uint32(header + 2*program)
	table := dynamic + 4*8
	strtab := "\x00" + soname + "\x00"
	size := table + uint32(len(strtab))
	var b bytes.Buffer
	put := func(v any) { binary.Write(&b, binary.LittleEndian, v) }
	put(elf.Header32{
		Ident: ident(elf.ELFCLASS32), Type: uint16(elf.ET_DYN), Machine: uint16(machine), Version: 1,
		Phoff: header, Ehsize: header, Phentsize: program, Phnum: 2, Shentsize: 40,
	})
	put(elf.Prog32{Type: uint32(elf.PT_LOAD), Flags: 5, Filesz: size, Memsz: size, Align: 4096})
	put(elf.Prog32{Type: uint32(elf.PT_DYNAMIC), Flags: 6, Off: dynamic, Vaddr: dynamic, Paddr: dynamic, Filesz: 32, Memsz: 32, Align: 4})
	put([]elf.Dyn32{{Tag: int32(elf.DT_STRTAB), Val: table}, {Tag: int32(elf.DT_STRSZ), Val: uint32(len(strtab))}, {Tag: int32(elf.DT_SONAME), Val: 1}, {}})
	b.WriteString(strtab)
	return b.Bytes()
}

func ident(class elf.Class) [16]byte {
	return [16]byte{0x7f, 'E', 'L', 'F', byte(class), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)}
}

// says fails unless err has all of the words and one line.
func says(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("%q has several lines", err)
	}
}
