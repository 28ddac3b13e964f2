package testtree

import (
	"debug/elf"
	"encoding/binary"
	"strings"
)

var le = binary.LittleEndian

// Library is the text of the least shared library that a loader accepts: a header, a PT_LOAD of the whole file and a PT_DYNAMIC with a SONAME.
func Library(class elf.Class, machine elf.Machine, soname string) string {
	word, header, program := 8, 64, 56
	if class == elf.ELFCLASS32 {
		word, header, program = 4, 52, 32
	}
	dynamic := header + 2*program
	table := dynamic + 8*word
	size := table + len(soname) + 2
	var b []byte
	put := func(bytes int, values ...int) {
		for _, v := range values {
			b = append(b, le.AppendUint64(nil, uint64(v))[:bytes]...)
		}
	}
	put(1, 0x7f, 'E', 'L', 'F', int(class), int(elf.ELFDATA2LSB), int(elf.EV_CURRENT))
	b = append(b, make([]byte, 9)...)
	put(2, int(elf.ET_DYN), int(machine))
	put(4, 1)
	put(word, 0, header, 0)
	put(4, 0)
	put(2, header, program, 2, 5*word+24, 0, 0)
	for _, s := range []struct{ kind, offset, size int }{{int(elf.PT_LOAD), 0, size}, {int(elf.PT_DYNAMIC), dynamic, 8 * word}} {
		put(4, s.kind)
		if class == elf.ELFCLASS64 {
			put(4, 5)
		}
		put(word, s.offset, s.offset, s.offset, s.size, s.size)
		if class == elf.ELFCLASS32 {
			put(4, 5)
		}
		put(word, word)
	}
	put(word, int(elf.DT_STRTAB), table, int(elf.DT_STRSZ), len(soname)+2, int(elf.DT_SONAME), 1, 0, 0)
	return string(append(b, "\x00"+soname+"\x00"...))
}

// WithNote is a 64-bit Library with the note section name of this content. Its section headers are
// at the end: none, the names, the note.
func WithNote(machine elf.Machine, soname, name string, note []byte) []byte {
	b := []byte(Library(elf.ELFCLASS64, machine, soname))
	names := "\x00.shstrtab\x00" + name + "\x00"
	namesAt := uint64(len(b))
	noteAt := namesAt + uint64(len(names))
	b = append(append(b, names...), note...)
	le.PutUint64(b[40:], uint64(len(b))) // e_shoff
	le.PutUint16(b[60:], 3)              // e_shnum
	le.PutUint16(b[62:], 1)              // e_shstrndx
	b, err := binary.Append(b, le, []elf.Section64{
		{}, {Name: 1, Type: uint32(elf.SHT_STRTAB), Off: namesAt, Size: uint64(len(names))},
		{Name: 11, Type: uint32(elf.SHT_NOTE), Off: noteAt, Size: uint64(len(note)), Addralign: 4},
	})
	if err != nil {
		panic(err)
	}
	return b
}

// Note is a note of an owner.
func Note(owner, desc string) []byte {
	pad := func(s string) string { return s + strings.Repeat("\x00", -len(s)&3) }
	b := le.AppendUint32(nil, uint32(len(owner)+1))
	b = le.AppendUint32(b, uint32(len(desc)))
	b = le.AppendUint32(b, 1)
	return append(b, pad(owner+"\x00")+pad(desc)...)
}
