package ldcache

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
)

// Limits of an ELF file of an image (attack T11). Real libraries have a dozen segments and at most
// fifty sections; libcuda.so's note is a few hundred bytes.
const (
	maxSegments    = 64
	maxSections    = 512
	maxDynamic     = 64 << 10
	maxSectionName = 64 << 10
	maxNoteSection = 64 << 10
	maxNoteJSON    = 4 << 10
)

// elfReader reads one file in bounded pieces.
type elfReader struct {
	r    io.ReaderAt
	size uint64
	wide bool // ELFCLASS64

	phoff, shoff       uint64
	phnum, shnum, strx int
}

func (f *elfReader) bytes(off, n, limit uint64) ([]byte, error) {
	if n > limit { // guard: parsers: size of ELF parts
		return nil, fmt.Errorf("%d bytes, limit %d", n, limit)
	}
	if off > f.size || n > f.size-off {
		return nil, errors.New("outside of the file")
	}
	if n == 0 {
		return nil, nil
	}
	buf := make([]byte, n)
	// A ReaderAt may say EOF together with the last byte.
	if got, err := f.r.ReadAt(buf, int64(off)); uint64(got) != n {
		return nil, fmt.Errorf("truncated: %w", err)
	}
	return buf, nil
}

// word reads an address-sized number: 8 bytes of a 64-bit file, 4 of a 32-bit one.
func (f *elfReader) word(b []byte) uint64 {
	if f.wide {
		return le.Uint64(b)
	}
	return uint64(le.Uint32(b))
}

// pick returns the value for the file's class: offsets and sizes differ.
func (f *elfReader) pick(wide, narrow int) int {
	if f.wide {
		return wide
	}
	return narrow
}

func (f *elfReader) header() (elf.Class, elf.Machine, error) {
	b, err := f.bytes(0, min(f.size, 64), 64)
	if err != nil {
		return 0, 0, err
	}
	if len(b) < 52 || string(b[:4]) != elf.ELFMAG {
		return 0, 0, errors.New("not an ELF file")
	}
	class := elf.Class(b[elf.EI_CLASS])
	f.wide = class == elf.ELFCLASS64
	if class != elf.ELFCLASS32 && (class != elf.ELFCLASS64 || len(b) < 64) {
		return 0, 0, fmt.Errorf("class %d in %d bytes", class, len(b))
	}
	if elf.Data(b[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return 0, 0, errors.New("not little-endian")
	}
	f.phoff = f.word(b[f.pick(32, 28):])
	f.shoff = f.word(b[f.pick(40, 32):])
	counts := b[f.pick(54, 42):] // e_phentsize, e_phnum, e_shentsize, e_shnum, e_shstrndx
	f.phnum, f.shnum, f.strx = int(le.Uint16(counts[2:])), int(le.Uint16(counts[6:])), int(le.Uint16(counts[8:]))
	if f.phnum > 0 && int(le.Uint16(counts)) != f.pick(56, 32) {
		return 0, 0, fmt.Errorf("program headers of %d bytes", le.Uint16(counts))
	}
	if f.shnum > 0 && int(le.Uint16(counts[4:])) != f.pick(64, 40) {
		return 0, 0, fmt.Errorf("section headers of %d bytes", le.Uint16(counts[4:]))
	}
	return class, elf.Machine(le.Uint16(b[18:])), nil
}
