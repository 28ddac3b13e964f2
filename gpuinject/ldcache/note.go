package ldcache

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
)

// The notes that are read, by section and by owner.
const (
	compatSection = ".note.cuda.fwd_compatibility"
	compatOwner   = "NVIDIA Corporation"
	abiSection    = ".note.ABI-tag"
	abiOwner      = "GNU"
	abiType       = 1 // NT_GNU_ABI_TAG
)

// CompatNote is the JSON of the note .note.cuda.fwd_compatibility, by which a
// forward compatibility libcuda.so says what it works with (read by the
// enable-cuda-compat hook of nvidia-container-toolkit since v1.19).
type CompatNote struct {
	Format      int    `json:"Format"`
	CUDAVersion string `json:"CUDA Version"` // "13.1"
	Driver      []int  `json:"Driver"`       // major versions of host drivers: 535, 550, ...
	Device      []int  `json:"Device"`       // families of devices; the rule does not use them
}

// section is a section header.
type section struct {
	name      uint32
	typ       elf.SectionType
	off, size uint64
	align     uint64
}

// notes walks the section table to the two notes.
func (f *elfReader) notes(e *ELF) error {
	if f.shoff == 0 && f.shnum == 0 {
		return nil // stripped of sections: no notes
	}
	if f.shnum == 0 || f.shnum > maxSections {
		return fmt.Errorf("%d sections, limit %d", f.shnum, maxSections)
	}
	if f.strx >= f.shnum {
		return errors.New("no section names")
	}
	step := f.pick(64, 40)
	b, err := f.bytes(f.shoff, uint64(f.shnum*step), maxSections*64)
	if err != nil {
		return fmt.Errorf("section headers: %w", err)
	}
	at := func(i int) section {
		h := b[i*step:]
		return section{
			name:  le.Uint32(h),
			typ:   elf.SectionType(le.Uint32(h[4:])),
			off:   f.word(h[f.pick(24, 16):]),
			size:  f.word(h[f.pick(32, 20):]),
			align: f.word(h[f.pick(48, 32):]),
		}
	}
	table := at(f.strx)
	names, err := f.bytes(table.off, table.size, maxSectionName)
	if err != nil {
		return fmt.Errorf("section names: %w", err)
	}
	for i := range f.shnum {
		s := at(i)
		if s.typ != elf.SHT_NOTE {
			continue
		}
		switch {
		case e.ABI == nil && isName(names, s.name, abiSection):
			err = f.abiTag(e, s)
		case e.Note == nil && isName(names, s.name, compatSection):
			err = f.compatNote(e, s)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// isName tells whether the string at off of a string table is name.
func isName(table []byte, off uint32, name string) bool {
	if uint64(off) >= uint64(len(table)) {
		return false
	}
	rest, ok := bytes.CutPrefix(table[off:], []byte(name))
	return ok && len(rest) > 0 && rest[0] == 0
}

func (f *elfReader) abiTag(e *ELF, s section) error {
	b, err := f.bytes(s.off, s.size, maxNoteSection)
	if err != nil {
		return fmt.Errorf("%s: %w", abiSection, err)
	}
	for _, n := range splitNotes(b, s.align) {
		if n.owner != abiOwner || n.typ != abiType || len(n.desc) < 16 {
			continue
		}
		e.ABI = &ABITag{OS: le.Uint32(n.desc), Version: [3]uint32{
			le.Uint32(n.desc[4:]), le.Uint32(n.desc[8:]), le.Uint32(n.desc[12:])}}
		e.TLSABI = *e.ABI == ABITag{Version: [3]uint32{2, 3, 99}}
		return nil
	}
	return nil
}

func (f *elfReader) compatNote(e *ELF, s section) error {
	b, err := f.bytes(s.off, s.size, maxNoteSection)
	if err != nil {
		return fmt.Errorf("%s: %w", compatSection, err)
	}
	for _, n := range splitNotes(b, s.align) {
		if n.owner != compatOwner {
			continue
		}
		text := bytes.Trim(n.desc, "\x00")
		if len(text) > maxNoteJSON {
			return fmt.Errorf("%s: %d bytes of JSON, limit %d", compatSection, len(text), maxNoteJSON)
		}
		note := new(CompatNote)
		if err := json.Unmarshal(text, note); err != nil {
			return fmt.Errorf("%s: %w", compatSection, err)
		}
		e.Note = note
		return nil
	}
	return fmt.Errorf("%s: no note of %s", compatSection, compatOwner)
}

// note is one entry of a note section.
type note struct {
	owner string
	typ   uint32
	desc  []byte
}

// splitNotes cuts a note section into its notes and stops where one does not fit.
//
// NVIDIA's libraries for Jetson have a section aligned to 8 whose owner is padded
// as if it stood alone, and a descriptor that then ends behind the section
// (nvidia-container-toolkit, "Fix handling of CUDA compat on Orin", May 2026). So
// a descriptor is cut at the end of the section, and its start is the first of the
// possible ones where a JSON object begins, else the one of the ELF gABI.
func splitNotes(b []byte, align uint64) []note {
	if align != 8 {
		align = 4
	}
	up := func(n uint64) uint64 { return (n + align - 1) &^ (align - 1) }
	var out []note
	for len(b) >= 12 {
		size := uint64(len(b))
		nameLen, descLen := uint64(le.Uint32(b)), uint64(le.Uint32(b[4:]))
		if nameLen > size-12 {
			break
		}
		start := up(12 + nameLen)
		for _, at := range []uint64{start, 12 + up(nameLen), (12 + nameLen + 3) &^ 3} {
			if at < size && b[at] == '{' {
				start = at
				break
			}
		}
		start = min(start, size)
		end := min(start+descLen, size)
		out = append(out, note{
			owner: string(bytes.TrimRight(b[12:12+nameLen], "\x00")),
			typ:   le.Uint32(b[8:]),
			desc:  b[start:end],
		})
		b = b[min(up(end), size):]
	}
	return out
}
