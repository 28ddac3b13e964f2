package ldcache

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
)

// The section and the owner of the note that is read.
const (
	compatSection = ".note.cuda.fwd_compatibility"
	compatOwner   = "NVIDIA Corporation"
)

// CompatNote is the JSON of the note .note.cuda.fwd_compatibility, in which a forward compatibility
// libcuda.so declares what it works with (read by the enable-cuda-compat hook of
// nvidia-container-toolkit since v1.19).
type CompatNote struct {
	CUDAVersion string `json:"CUDA Version"` // "13.1"
	Driver      []int  `json:"Driver"`       // major versions of host drivers: 535, 550, ...
}

// compatNote finds the note by the section table.
func (f *elfReader) compatNote() (*CompatNote, error) {
	if f.shoff == 0 && f.shnum == 0 {
		return nil, nil // stripped of sections: no note
	}
	if f.strx >= f.shnum {
		return nil, errors.New("no section names")
	}
	step := f.pick(64, 40)
	headers, err := f.bytes(f.shoff, uint64(f.shnum*step), maxSections*64)
	if err != nil {
		return nil, fmt.Errorf("section headers: %w", err)
	}
	names, err := f.section(headers[f.strx*step:], maxSectionName)
	if err != nil {
		return nil, fmt.Errorf("section names: %w", err)
	}
	for ; len(headers) > 0; headers = headers[step:] {
		name, _, _ := bytes.Cut(names[min(int(le.Uint32(headers)), len(names)):], []byte{0})
		if string(name) != compatSection || elf.SectionType(le.Uint32(headers[4:])) != elf.SHT_NOTE {
			continue
		}
		b, err := f.section(headers, maxNoteSection)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return parseCompatNote(b, f.word(headers[f.pick(48, 32):]))
	}
	return nil, nil
}

func (f *elfReader) section(header []byte, limit uint64) ([]byte, error) {
	return f.bytes(f.word(header[f.pick(24, 16):]), f.word(header[f.pick(32, 20):]), limit)
}

// parseCompatNote reads the first note of compatOwner in a note section.
func parseCompatNote(section []byte, align uint64) (*CompatNote, error) {
	text, ok := findNote(section, align, compatOwner)
	if !ok {
		return nil, errors.New(compatSection + ": no note of " + compatOwner)
	}
	text = bytes.Trim(text, "\x00")
	if len(text) > maxNoteJSON { // guard: parsers: size of a note
		return nil, fmt.Errorf("%s: %d bytes of JSON, limit %d", compatSection, len(text), maxNoteJSON)
	}
	parsed := new(CompatNote)
	if err := json.Unmarshal(text, parsed); err != nil {
		return nil, fmt.Errorf("%s: %w", compatSection, err)
	}
	return parsed, nil
}

// findNote returns the descriptor of the first note of an owner in a note section. It stops at a
// note that does not fit.
//
// NVIDIA's libraries for Jetson have a section aligned to 8 whose owner is padded as if it stood
// alone, and a descriptor that then ends behind the section (nvidia-container-toolkit, "Fix
// handling of CUDA compat on Orin", May 2026). So any padding before the descriptor, which is text,
// is skipped, and it is cut at the end of the section.
func findNote(b []byte, align uint64, owner string) (desc []byte, ok bool) {
	if align != 8 {
		align = 4
	}
	up := func(n uint64) uint64 { return (n + align - 1) &^ (align - 1) }
	for len(b) >= 12 {
		size := uint64(len(b))
		nameLen, descLen := uint64(le.Uint32(b)), uint64(le.Uint32(b[4:]))
		if nameLen > size-12 {
			break
		}
		if string(bytes.TrimRight(b[12:12+nameLen], "\x00")) == owner {
			desc = bytes.TrimLeft(b[12+nameLen:], "\x00")
			return desc[:min(descLen, uint64(len(desc)))], true
		}
		b = b[min(up(up(12+nameLen)+descLen), size):]
	}
	return nil, false
}
