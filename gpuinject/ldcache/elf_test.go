package ldcache

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
)

const goodNote = `{"Format":1,"CUDA Version":"13.1","Driver":[535,550,570,575,580,590],"Device":[1,2,7]}`

func parseELF(data []byte) (ELF, error) { return ReadELF(bytes.NewReader(data), int64(len(data))) }

func TestALibraryOfTheCompilerIsRead(t *testing.T) {
	a, _ := hostABIs()
	file := filepath.Join(t.TempDir(), "libcuda.so.590.44.01")
	compatLibrary(t, file, noteBytes(goodNote), 4)
	got, err := parseELF([]byte(read(t, file)))
	if err != nil || got.NoteErr != nil {
		t.Fatal(err, got.NoteErr)
	}
	want := ELF{Class: a.class, Machine: a.machine, Type: elf.ET_DYN, SOName: "libcuda.so.1", Note: &CompatNote{
		Format: 1, CUDAVersion: "13.1", Driver: []int{535, 550, 570, 575, 580, 590}, Device: []int{1, 2, 7}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestANoteAddedByObjcopyIsRead(t *testing.T) {
	dir := t.TempDir()
	library(t, dir+"/in.so", "libcuda.so.1", "compat")
	write(t, dir+"/note", string(noteBytes(goodNote)))
	command(t, tool(t, "objcopy", "binutils"), "--add-section", compatSection+"="+dir+"/note", dir+"/in.so", dir+"/out.so")
	got, err := parseELF([]byte(read(t, dir+"/out.so")))
	if err != nil || got.Note == nil || got.Note.CUDAVersion != "13.1" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestA32BitLibraryIsRead(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("SKIPPED: only the compiler for x86-64 also makes i386 libraries")
	}
	file := filepath.Join(t.TempDir(), "libcuda.so")
	library(t, file, "libcuda.so.1", "32", "-m32")
	got, err := parseELF([]byte(read(t, file)))
	if err != nil || got.Class != elf.ELFCLASS32 || got.Machine != elf.EM_386 || got.SOName != "libcuda.so.1" || got.NoteErr != nil {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestTheMachinesLibraryReadsAsTheStandardLibraryReadsIt(t *testing.T) {
	a, _ := hostABIs()
	for _, name := range []string{a.loader, strings.TrimSpace(command(t, tool(t, "gcc", "gcc libc6-dev"), "-print-file-name=libc.so.6"))} {
		std, err := elf.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		soname, err := std.DynString(elf.DT_SONAME)
		std.Close()
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseELF([]byte(read(t, name)))
		if err != nil || got.NoteErr != nil || !slices.Equal([]string{got.SOName}, soname) || got.Machine != a.machine {
			t.Errorf("%s: got %+v, %v, want %q", name, got, err, soname)
		}
		if strings.Contains(name, "libc.so") && (got.ABI == nil || got.ABI.OS != 0 || got.ABI.Version[0] < 2) {
			t.Errorf("%s: ABI tag %+v", name, got.ABI)
		}
	}
}

func TestTheTLSVariantOfNVIDIAIsTold(t *testing.T) {
	for version, want := range map[string]bool{"0, 2, 3, 99": true, "0, 2, 2, 5": false, "1, 2, 3, 99": false} {
		file := filepath.Join(t.TempDir(), "libnvidia-tls.so")
		gcc(t, fmt.Sprintf("asm(%q);\n", ".section .note.ABI-tag,\"a\",%note\n.balign 4\n.long 4, 16, 1\n.asciz \"GNU\"\n.long "+version+"\n.previous\n"),
			"-shared", "-nostdlib", "-o", file)
		got, err := parseELF([]byte(read(t, file)))
		if err != nil || got.ABI == nil || got.TLSABI != want {
			t.Errorf("%s: got %+v, %v", version, got, err)
		}
	}
}

func TestAStrippedOrStaticFileIsStillRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lib.so")
	library(t, file, "liba.so.1", "a")
	data := []byte(read(t, file))
	le.PutUint64(data[40:], 0) // e_shoff
	le.PutUint16(data[60:], 0) // e_shnum
	got, err := parseELF(data)
	if err != nil || got.SOName != "liba.so.1" || got.NoteErr != nil {
		t.Errorf("got %+v, %v", got, err)
	}
	library(t, file, "", "a")
	if got, err := parseELF([]byte(read(t, file))); err != nil || got.SOName != "" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestNoteLayouts(t *testing.T) {
	owner := compatOwner + "\x00"
	head := func(name, desc, typ int) string {
		return string(le.AppendUint32(le.AppendUint32(le.AppendUint32(nil, uint32(name)), uint32(desc)), uint32(typ)))
	}
	json := `{"CUDA Version":"12.9"}` // 23 bytes
	for _, test := range []struct {
		name, section string
		align         uint64
		ok            bool
	}{
		{"aligned to 4", head(19, 23, 1) + owner + "\x00" + json, 4, true},
		{"aligned to 8 as the ELF gABI says", head(19, 23, 1) + owner + "\x00" + json, 8, true},
		{"aligned to 8 with the owner padded by itself, as on Jetson", head(19, 23, 1) + owner + "\x00\x00\x00\x00\x00" + json, 8, true},
		{"descriptor longer than the section", head(19, 64, 1) + owner + "\x00" + json, 4, true},
		{"descriptor padded with NULs", head(19, 32, 1) + owner + "\x00" + json + strings.Repeat("\x00", 9), 4, true},
		{"owner without its NUL", head(18, 23, 1) + compatOwner + "\x00\x00" + json, 4, true},
		{"after a note of somebody else", head(4, 4, 1) + "GNU\x00abcd" + head(19, 23, 1) + owner + "\x00" + json, 4, true},
		{"of somebody else only", head(4, 23, 1) + "GNU\x00" + json, 4, false},
		{"owner longer than the section", head(1<<31-1, 23, 1) + owner, 4, false},
		{"owner of 2^32-1 bytes", head(1<<32-1, 1<<32-1, 1) + owner, 4, false},
		{"descriptor empty", head(19, 0, 1) + owner + "\x00", 4, false},
		{"descriptor not JSON", head(19, 4, 1) + owner + "\x00" + "zzzz", 4, false},
		{"descriptor JSON of another shape", head(19, 14, 1) + owner + "\x00" + `{"Driver":"x"}`, 4, false},
		{"deep JSON", head(19, 4000, 1) + owner + "\x00" + strings.Repeat("[", 4000), 4, false},
		{"JSON over the limit", head(19, 5000, 1) + owner + "\x00" + `{"a":"` + strings.Repeat("a", 4992) + `"}`, 4, false},
		{"too short for a header", "abc", 4, false},
		{"empty", "", 4, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := elfReader{r: strings.NewReader(test.section), size: uint64(len(test.section))}
			var e ELF
			err := f.compatNote(&e, section{size: f.size, align: test.align})
			if ok := err == nil && e.Note != nil && e.Note.CUDAVersion == "12.9"; ok != test.ok {
				t.Errorf("got %+v, %v", e.Note, err)
			}
		})
	}
}

func TestAHostileLibraryIsAnErrorOrHasNoNote(t *testing.T) {
	file := filepath.Join(t.TempDir(), "libcuda.so")
	compatLibrary(t, file, noteBytes(goodNote), 4)
	good := []byte(read(t, file))
	phoff, shoff := int(le.Uint64(good[32:])), int(le.Uint64(good[40:]))
	phnum, shnum := int(le.Uint16(good[56:])), int(le.Uint16(good[60:]))
	find := func(from, n, step, typeAt int, typ uint32) int {
		for i := range n {
			if le.Uint32(good[from+i*step+typeAt:]) == typ {
				return from + i*step
			}
		}
		t.Fatalf("the fixture has no header of type %d", typ)
		return 0
	}
	dynamic := find(phoff, phnum, 56, 0, uint32(elf.PT_DYNAMIC))
	noteHeader := 0
	for i := range shnum {
		if h := shoff + i*64; le.Uint32(good[h+4:]) == uint32(elf.SHT_NOTE) && bytes.Contains(good[le.Uint64(good[h+24:]):][:le.Uint64(good[h+32:])], []byte(compatOwner)) {
			noteHeader = h
		}
	}
	if noteHeader == 0 {
		t.Fatal("the fixture has no note")
	}
	dynTable := int(le.Uint64(good[dynamic+8:]))
	dynValue := func(tag elf.DynTag) int {
		for at := dynTable; ; at += 16 {
			if elf.DynTag(le.Uint64(good[at:])) == tag {
				return at + 8
			}
		}
	}
	names := shoff + int(le.Uint16(good[62:]))*64
	u16 := func(at int, v uint16) []byte { b := slices.Clone(good); le.PutUint16(b[at:], v); return b }
	u64 := func(at int, v uint64) []byte { b := slices.Clone(good); le.PutUint64(b[at:], v); return b }
	const fatal, noNote = true, false
	for _, test := range []struct {
		name  string
		data  []byte
		fatal bool
	}{
		{"empty", nil, fatal},
		{"text", []byte(strings.Repeat("x", 100)), fatal},
		{"header cut", good[:60], fatal},
		{"class 3", append([]byte("\x7fELF\x03"), good[5:]...), fatal},
		{"big endian", append([]byte("\x7fELF\x02\x02"), good[6:]...), fatal},
		{"program headers wrap", u64(32, 1<<64-8), fatal},
		{"program headers behind the file", u64(32, uint64(len(good))), fatal},
		{"65535 segments", u16(56, 65535), fatal},
		{"program headers of 1 byte", u16(54, 1), fatal},
		{"dynamic section wraps", u64(dynamic+8, 1<<64-1), fatal},
		{"dynamic section of 2^63 bytes", u64(dynamic+32, 1<<63), fatal},
		{"soname outside of the string table", u64(dynValue(elf.DT_SONAME), 1<<40), fatal},
		{"string table nowhere", u64(dynValue(elf.DT_STRTAB), 1<<63), fatal},
		{"string table of 0 bytes", u64(dynValue(elf.DT_STRSZ), 0), fatal},
		{"soname cut off", u64(dynValue(elf.DT_STRSZ), le.Uint64(good[dynValue(elf.DT_SONAME):])+3), fatal},
		{"section headers wrap", u64(40, 1<<64-64), noNote},
		{"section headers behind the file", u64(40, uint64(len(good)+1)), noNote},
		{"65535 sections", u16(60, 65535), noNote},
		{"no section but a table", u16(60, 0), noNote},
		{"section headers of 0 bytes", u16(58, 0), fatal},
		{"names in section 65535", u16(62, 65535), noNote},
		{"names wrap", u64(names+24, 1<<64-1), noNote},
		{"names of 2^63 bytes", u64(names+32, 1<<63), noNote},
		{"note wraps", u64(noteHeader+24, 1<<64-4), noNote},
		{"note of 10 MB", u64(noteHeader+32, 10<<20), noNote},
		{"note overlaps the ELF header", u64(noteHeader+24, 0), noNote},
	} {
		got, err := parseELF(test.data)
		switch {
		case test.fatal && err == nil:
			t.Errorf("%s: accepted as %+v", test.name, got)
		case !test.fatal && (err != nil || got.Note != nil || got.NoteErr == nil):
			t.Errorf("%s: %+v, %v", test.name, got, err)
		}
	}
	if _, err := ReadELF(bytes.NewReader(good), -1); err == nil {
		t.Error("a negative size is accepted")
	}
	if _, err := ReadELF(bytes.NewReader(good[:100]), int64(len(good))); err == nil {
		t.Error("a file that shrinks while it is read is accepted")
	}
}

func TestANoteOf10MBIsRefusedWithoutReadingIt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "libcuda.so")
	library(t, file+".in", "libcuda.so.1", "compat")
	write(t, file+".note", string(noteBytes(`{"CUDA Version":"`+strings.Repeat("9", 10<<20)+`"}`)))
	command(t, tool(t, "objcopy", "binutils"), "--add-section", compatSection+"="+file+".note", file+".in", file)
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	count := &countingReader{f: f}
	got, err := ReadELF(count, info.Size())
	if err != nil || got.Note != nil || got.NoteErr == nil {
		t.Errorf("got %+v, %v", got, err)
	}
	if count.n > 300<<10 {
		t.Errorf("%d bytes were read", count.n)
	}
}

type countingReader struct {
	f *os.File
	n int
}

func (c *countingReader) ReadAt(b []byte, off int64) (int, error) {
	n, err := c.f.ReadAt(b, off)
	c.n += n
	return n, err
}
