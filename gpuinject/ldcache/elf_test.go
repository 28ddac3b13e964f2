package ldcache

import (
	"bytes"
	"debug/elf"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

const goodNote = `{"Format":1,"CUDA Version":"13.1","Driver":[535,550,570,575,580,590],"Device":[1,2,7]}`

// Offsets in what elf64 returns.
const (
	headerSize, segmentSize, sectionSize = 64, 56, 64

	dynamicSegment = headerSize + segmentSize
	dynamicTable   = headerSize + 2*segmentSize
	tableValue     = dynamicTable + 8 // DT_STRTAB, DT_STRSZ and DT_SONAME
	sizeValue      = tableValue + 16
	nameValue      = sizeValue + 16
)

// elf64 makes a library of this machine with a SONAME and a note section.
func elf64(soname, noteName string, note []byte) []byte {
	return testtree.WithNote(ABI64.Machine, soname, noteName, note)
}

// elf32 makes a library of x86 with a SONAME and no sections.
func elf32() []byte { return []byte(testtree.Library(elf.ELFCLASS32, elf.EM_386, "libc.so.6")) }

func compatELF() []byte {
	return elf64("libcuda.so.1", compatSection, testtree.Note(compatOwner, goodNote))
}

func parseELF(data []byte) (ELF, error) { return ReadELF(bytes.NewReader(data), int64(len(data))) }

func TestALibraryIsRead(t *testing.T) {
	wide := ELF{Class: elf.ELFCLASS64, Machine: ABI64.Machine, SOName: "libcuda.so.1"}
	noted := wide
	noted.Note = &CompatNote{CUDAVersion: "13.1", Driver: []int{535, 550, 570, 575, 580, 590}}
	stripped := compatELF()
	le.PutUint64(stripped[40:], 0) // e_shoff
	le.PutUint16(stripped[60:], 0) // e_shnum
	for name, test := range map[string]struct {
		data []byte
		want ELF
	}{
		"with a note":       {compatELF(), noted},
		"without sections":  {stripped, wide},
		"of 32 bits":        {elf32(), ELF{Class: elf.ELFCLASS32, Machine: elf.EM_386, SOName: "libc.so.6"}},
		"with another note": {elf64("libcuda.so.1", ".note.other", []byte("garbage")), wide},
	} {
		if got, err := parseELF(test.data); err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, test.want)
		}
	}
}

func TestTheMachinesLibraryReadsAsTheStandardLibraryReadsIt(t *testing.T) {
	for _, e := range mustParse(t, hostCache(t)).Entries[:20] {
		std, err := elf.Open(e.Path)
		check(t, err)
		soname, err := std.DynString(elf.DT_SONAME)
		std.Close()
		data, readErr := os.ReadFile(e.Path)
		if err != nil || readErr != nil {
			t.Fatal(err, readErr)
		}
		got, err := parseELF(data)
		if err != nil || got.NoteErr != nil || got.SOName != strings.Join(soname, "") || got.Machine != std.Machine || got.Class != std.Class {
			t.Errorf("%s: got %+v, %v, want %q", e.Path, got, err, soname)
		}
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
		{"after a note of another owner", head(4, 4, 1) + "GNU\x00abcd" + head(19, 23, 1) + owner + "\x00" + json, 4, true},
		{"of another owner only", head(4, 23, 1) + "GNU\x00" + json, 4, false},
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
		data := elf64("libcuda.so.1", compatSection, []byte(test.section))
		le.PutUint64(data[len(data)-16:], test.align) // sh_addralign of the last section
		e, err := parseELF(data)
		if ok := e.Note != nil && e.Note.CUDAVersion == "12.9"; err != nil || ok != test.ok || ok == (e.NoteErr != nil) {
			t.Errorf("%s: got %+v, %v, %v", test.name, e.Note, e.NoteErr, err)
		}
	}
}

func TestAHostileLibraryIsAnErrorOrHasNoNote(t *testing.T) {
	good := compatELF()
	sections := int(le.Uint64(good[40:]))
	names, note := sections+sectionSize, sections+2*sectionSize
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
		{"dynamic section wraps", u64(dynamicSegment+8, 1<<64-1), fatal},
		{"dynamic section of 2^63 bytes", u64(dynamicSegment+32, 1<<63), fatal},
		{"soname outside of the string table", u64(nameValue, 1<<40), fatal},
		{"string table nowhere", u64(tableValue, 1<<63), fatal},
		{"string table of 0 bytes", u64(sizeValue, 0), fatal},
		{"soname cut off", u64(sizeValue, 4), fatal},
		{"section headers wrap", u64(40, 1<<64-64), noNote},
		{"section headers behind the file", u64(40, uint64(len(good)+1)), noNote},
		{"65535 sections", u16(60, 65535), noNote},
		{"no section but a table", u16(60, 0), noNote},
		{"section headers of 0 bytes", u16(58, 0), fatal},
		{"names in section 65535", u16(62, 65535), noNote},
		{"names wrap", u64(names+24, 1<<64-1), noNote},
		{"names of 2^63 bytes", u64(names+32, 1<<63), noNote},
		{"note wraps", u64(note+24, 1<<64-4), noNote},
		{"note of 10 MB", u64(note+32, 10<<20), noNote},
		{"note overlaps the ELF header", u64(note+24, 0), noNote},
		{"note of more than 64 KiB", elf64("libcuda.so.1", compatSection, append(testtree.Note(compatOwner, goodNote), make([]byte, maxNoteSection)...)), noNote},
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

// countingReader counts the bytes that are read.
type countingReader struct {
	bytes.Reader
	n int
}

func (c *countingReader) ReadAt(b []byte, off int64) (int, error) {
	n, err := c.Reader.ReadAt(b, off)
	c.n += n
	return n, err
}

func TestT11LittleIsReadOfAHostileLibrary(t *testing.T) {
	// As many note sections as allowed, each of the greatest size and of another owner.
	data := elf64("libcuda.so.1", compatSection, make([]byte, maxNoteSection))
	headers := len(data) - 3*sectionSize
	for range maxSections - 3 {
		data = append(data, data[headers+2*sectionSize:headers+3*sectionSize]...)
	}
	le.PutUint16(data[60:], maxSections)
	c := &countingReader{Reader: *bytes.NewReader(data)}
	if e, err := ReadELF(c, int64(len(data))); err != nil || e.NoteErr == nil {
		t.Errorf("got %+v, %v", e, err)
	}
	if c.n > 300<<10 {
		t.Errorf("%d bytes were read", c.n)
	}
}
