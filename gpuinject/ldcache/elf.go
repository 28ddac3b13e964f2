package ldcache

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Limits of an ELF file of an image (attack T11). Real libraries have a dozen
// segments and at most fifty sections; libcuda.so's note is a few hundred bytes.
const (
	maxSegments    = 64
	maxSections    = 512
	maxDynamic     = 64 << 10
	maxSectionName = 64 << 10
	maxNoteSection = 64 << 10
	maxNoteJSON    = 4 << 10
)

// ELF is what the linker package needs to know about a library.
type ELF struct {
	Class   elf.Class
	Machine elf.Machine
	Type    elf.Type
	// SOName is DT_SONAME, "" where there is none.
	SOName string
	// ABI is the oldest system that .note.ABI-tag asks for, nil where there is none.
	ABI *ABITag
	// TLSABI is true where ABI says Linux 2.3.99: with it NVIDIA marks the
	// libnvidia-tls and libGL for the TLS ABI that every system of today has
	// (nvc_info.c of libnvidia-container).
	TLSABI bool
	// Note is .note.cuda.fwd_compatibility, nil where there is none.
	Note *CompatNote
	// NoteErr says why the sections or a note could not be read: Note then is nil,
	// but not because there is none. Loaders ignore sections, so the rest holds.
	NoteErr error
}

// ABITag is the descriptor of NT_GNU_ABI_TAG: the system (0 is Linux) and its
// least version.
type ABITag struct {
	OS      uint32
	Version [3]uint32
}

// ReadELF reads a little-endian ELF file of size bytes. DT_SONAME is found as a
// loader finds it, by the program headers; the notes by section name. It reads at
// most about 300 KiB, whatever the file says about itself, and never panics.
//
// It is an error when the file has no sound header, program headers or dynamic
// section. Unsound sections and notes are ELF.NoteErr.
func ReadELF(r io.ReaderAt, size int64) (ELF, error) {
	f := elfReader{r: r, size: uint64(max(size, 0))}
	var e ELF
	if err := f.header(&e); err != nil {
		return ELF{}, fmt.Errorf("ELF header: %w", err)
	}
	if err := f.soname(&e); err != nil {
		return ELF{}, fmt.Errorf("ELF dynamic section: %w", err)
	}
	if err := f.notes(&e); err != nil {
		e.Note, e.NoteErr = nil, fmt.Errorf("ELF sections: %w", err)
	}
	return e, nil
}

// elfReader reads one file by bounded pieces.
type elfReader struct {
	r    io.ReaderAt
	size uint64
	wide bool // ELFCLASS64

	phoff, shoff       uint64
	phnum, shnum, strx int
}

// bytes reads n bytes at off.
func (f *elfReader) bytes(off, n, limit uint64) ([]byte, error) {
	if n > limit {
		return nil, fmt.Errorf("%d bytes, limit %d", n, limit)
	}
	if off > f.size || n > f.size-off {
		return nil, errors.New("lies outside of the file")
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

// pick is the value for the file's class: offsets and sizes differ.
func (f *elfReader) pick(wide, narrow int) int {
	if f.wide {
		return wide
	}
	return narrow
}

func (f *elfReader) header(e *ELF) error {
	b, err := f.bytes(0, 52, 64)
	if err != nil {
		return err
	}
	if string(b[:4]) != elf.ELFMAG {
		return errors.New("not an ELF file")
	}
	e.Class = elf.Class(b[elf.EI_CLASS])
	switch e.Class {
	case elf.ELFCLASS64:
		f.wide = true
		if b, err = f.bytes(0, 64, 64); err != nil {
			return err
		}
	case elf.ELFCLASS32:
	default:
		return fmt.Errorf("class %d", e.Class)
	}
	if elf.Data(b[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return errors.New("not little-endian")
	}
	e.Type, e.Machine = elf.Type(le.Uint16(b[16:])), elf.Machine(le.Uint16(b[18:]))
	f.phoff = f.word(b[f.pick(32, 28):])
	f.shoff = f.word(b[f.pick(40, 32):])
	counts := b[f.pick(54, 42):] // e_phentsize, e_phnum, e_shentsize, e_shnum, e_shstrndx
	f.phnum, f.shnum, f.strx = int(le.Uint16(counts[2:])), int(le.Uint16(counts[6:])), int(le.Uint16(counts[8:]))
	if f.phnum > 0 && int(le.Uint16(counts)) != f.pick(56, 32) {
		return fmt.Errorf("program headers of %d bytes", le.Uint16(counts))
	}
	if f.shnum > 0 && int(le.Uint16(counts[4:])) != f.pick(64, 40) {
		return fmt.Errorf("section headers of %d bytes", le.Uint16(counts[4:]))
	}
	return nil
}

// segment is a program header.
type segment struct {
	typ                elf.ProgType
	off, vaddr, filesz uint64
}

func (f *elfReader) segments() ([]segment, error) {
	if f.phnum > maxSegments {
		return nil, fmt.Errorf("%d segments, limit %d", f.phnum, maxSegments)
	}
	step := f.pick(56, 32)
	b, err := f.bytes(f.phoff, uint64(f.phnum*step), maxSegments*56)
	if err != nil {
		return nil, fmt.Errorf("program headers: %w", err)
	}
	out := make([]segment, f.phnum)
	for i := range out {
		h := b[i*step:]
		out[i] = segment{
			typ:    elf.ProgType(le.Uint32(h)),
			off:    f.word(h[f.pick(8, 4):]),
			vaddr:  f.word(h[f.pick(16, 8):]),
			filesz: f.word(h[f.pick(32, 16):]),
		}
	}
	return out, nil
}

// soname follows PT_DYNAMIC to DT_SONAME in DT_STRTAB.
func (f *elfReader) soname(e *ELF) error {
	segments, err := f.segments()
	if err != nil {
		return err
	}
	for _, s := range segments {
		if s.typ != elf.PT_DYNAMIC {
			continue
		}
		b, err := f.bytes(s.off, s.filesz, maxDynamic)
		if err != nil {
			return err
		}
		var name, table, size uint64
		var hasName, hasTable bool
		half := f.pick(8, 4)
	entries:
		for ; len(b) >= 2*half; b = b[2*half:] {
			value := f.word(b[half:])
			switch elf.DynTag(f.word(b)) {
			case elf.DT_NULL:
				break entries
			case elf.DT_SONAME:
				name, hasName = value, true
			case elf.DT_STRTAB:
				table, hasTable = value, true
			case elf.DT_STRSZ:
				size = value
			}
		}
		if !hasName || !hasTable {
			return nil
		}
		e.SOName, err = f.dynString(segments, table, size, name)
		return err
	}
	return nil
}

// dynString reads the string at offset name of the string table at address table.
func (f *elfReader) dynString(segments []segment, table, size, name uint64) (string, error) {
	if name >= size {
		return "", errors.New("string outside of the string table")
	}
	for _, s := range segments {
		if s.typ != elf.PT_LOAD || table < s.vaddr || table-s.vaddr >= s.filesz {
			continue
		}
		off := table - s.vaddr
		if name >= s.filesz-off || s.off > f.size || off > f.size-s.off || name >= f.size-s.off-off {
			break
		}
		start := s.off + off + name
		b, err := f.bytes(start, min(size-name, s.filesz-off-name, f.size-start, maxString), maxString)
		if err != nil {
			return "", err
		}
		str, _, terminated := strings.Cut(string(b), "\x00")
		if !terminated {
			return "", errors.New("unterminated string")
		}
		return str, nil
	}
	return "", errors.New("string table outside of the file")
}
