package ldcache

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// ELF holds what the shim needs to know about a library.
type ELF struct {
	Class   elf.Class
	Machine elf.Machine
	// SOName is DT_SONAME, "" if there is none.
	SOName string
	// Note is .note.cuda.fwd_compatibility, nil if there is none.
	Note *CompatNote
	// NoteErr says why the sections or the note could not be read; Note is nil then. Loaders ignore
	// sections, so the rest holds.
	NoteErr error
}

// ReadELF reads a little-endian ELF file of size bytes. DT_SONAME is found as a loader finds it, by
// the program headers; the note by section name. It reads at most about 300 KiB, whatever the
// headers say, and never panics.
//
// A file without a valid header, program headers or dynamic section is an error. Invalid sections
// or an invalid note are reported in ELF.NoteErr.
func ReadELF(r io.ReaderAt, size int64) (ELF, error) {
	f := elfReader{r: r, size: uint64(max(size, 0))}
	var e ELF
	var err error
	if e.Class, e.Machine, err = f.header(); err != nil {
		return ELF{}, fmt.Errorf("ELF header: %w", err)
	}
	if e.SOName, err = f.soname(); err != nil {
		return ELF{}, fmt.Errorf("ELF dynamic section: %w", err)
	}
	if e.Note, err = f.compatNote(); err != nil {
		e.Note, e.NoteErr = nil, fmt.Errorf("ELF sections: %w", err)
	}
	return e, nil
}

type segment struct {
	typ                elf.ProgType
	off, vaddr, filesz uint64
}

func (f *elfReader) segments() ([]segment, error) {
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
func (f *elfReader) soname() (string, error) {
	segments, err := f.segments()
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(segments, func(s segment) bool { return s.typ == elf.PT_DYNAMIC })
	if i < 0 {
		return "", nil
	}
	b, err := f.bytes(segments[i].off, segments[i].filesz, maxDynamic)
	if err != nil {
		return "", err
	}
	values := map[elf.DynTag]uint64{}
	half := f.pick(8, 4)
	for ; len(b) >= 2*half; b = b[2*half:] {
		tag := elf.DynTag(f.word(b))
		if tag == elf.DT_NULL {
			break
		}
		values[tag] = f.word(b[half:])
	}
	name, hasName := values[elf.DT_SONAME]
	table, hasTable := values[elf.DT_STRTAB]
	if !hasName || !hasTable {
		return "", nil
	}
	return f.dynString(segments, table, values[elf.DT_STRSZ], name)
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
