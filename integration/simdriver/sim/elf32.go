package sim

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
)

// elf32 makes the smallest i386 shared object that ldconfig, readelf and the
// loader take for one: no code, one segment (writable: the loader relocates the
// dynamic section), SONAME and NEEDED. Written by hand because few hosts have a 32-bit compiler.
func elf32(soname string, needed []string, comment string) []byte {
	const ehsize, phsize, shsize, dynsize = 52, 32, 40, 8
	strtab := []byte{0}
	add := func(s string) uint32 {
		at := len(strtab)
		strtab = append(append(strtab, s...), 0)
		return uint32(at)
	}
	type dyn struct{ tag, value uint32 }
	var dynamic []dyn
	for _, n := range needed {
		dynamic = append(dynamic, dyn{uint32(elf.DT_NEEDED), add(n)})
	}
	dynamic = append(dynamic, dyn{uint32(elf.DT_SONAME), add(soname)})
	add(comment)
	for len(strtab)%4 != 0 {
		strtab = append(strtab, 0)
	}
	shnames := "\x00.hash\x00.dynsym\x00.dynstr\x00.dynamic\x00.shstrtab\x00"
	hash := []uint32{1, 1, 0, 0} // one bucket, one symbol: the empty one

	const phnum, shnum, symsize = 3, 6, 16
	hashAt := uint32(ehsize + phnum*phsize)
	symAt := hashAt + uint32(4*len(hash))
	strAt := symAt + symsize
	dynAt := strAt + uint32(len(strtab))
	dynamic = append(dynamic,
		dyn{uint32(elf.DT_HASH), hashAt}, dyn{uint32(elf.DT_STRTAB), strAt}, dyn{uint32(elf.DT_SYMTAB), symAt},
		dyn{uint32(elf.DT_STRSZ), uint32(len(strtab))}, dyn{uint32(elf.DT_SYMENT), symsize}, dyn{uint32(elf.DT_NULL), 0})
	dynLen := uint32(dynsize * len(dynamic))
	shstrAt := dynAt + dynLen
	shAt := (shstrAt + uint32(len(shnames)) + 3) &^ 3

	var b bytes.Buffer
	put := func(v any) { binary.Write(&b, binary.LittleEndian, v) } // a Buffer takes everything
	h := elf.Header32{
		Type: uint16(elf.ET_DYN), Machine: uint16(elf.EM_386), Version: uint32(elf.EV_CURRENT),
		Phoff: ehsize, Shoff: shAt, Ehsize: ehsize, Phentsize: phsize, Phnum: phnum,
		Shentsize: shsize, Shnum: shnum, Shstrndx: shnum - 1,
	}
	copy(h.Ident[:], elf.ELFMAG+string([]byte{byte(elf.ELFCLASS32), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)}))
	put(h)
	put(elf.Prog32{Type: uint32(elf.PT_LOAD), Filesz: shstrAt, Memsz: shstrAt, Flags: uint32(elf.PF_R | elf.PF_W), Align: 0x1000})
	put(elf.Prog32{Type: uint32(elf.PT_DYNAMIC), Off: dynAt, Vaddr: dynAt, Paddr: dynAt, Filesz: dynLen, Memsz: dynLen, Flags: uint32(elf.PF_R), Align: 4})
	put(elf.Prog32{Type: uint32(elf.PT_GNU_STACK), Flags: uint32(elf.PF_R | elf.PF_W), Align: 16})
	put(hash)
	put(elf.Sym32{})
	b.Write(strtab)
	put(dynamic)
	b.WriteString(shnames)
	b.Write(make([]byte, int(shAt)-b.Len()))
	alloc := uint32(elf.SHF_ALLOC)
	put([shnum]elf.Section32{
		{},
		{Name: 1, Type: uint32(elf.SHT_HASH), Flags: alloc, Addr: hashAt, Off: hashAt, Size: uint32(4 * len(hash)), Link: 2, Addralign: 4, Entsize: 4},
		{Name: 7, Type: uint32(elf.SHT_DYNSYM), Flags: alloc, Addr: symAt, Off: symAt, Size: symsize, Link: 3, Info: 1, Addralign: 4, Entsize: symsize},
		{Name: 15, Type: uint32(elf.SHT_STRTAB), Flags: alloc, Addr: strAt, Off: strAt, Size: uint32(len(strtab)), Addralign: 1},
		{Name: 23, Type: uint32(elf.SHT_DYNAMIC), Flags: alloc, Addr: dynAt, Off: dynAt, Size: dynLen, Link: 3, Addralign: 4, Entsize: dynsize},
		{Name: 32, Type: uint32(elf.SHT_STRTAB), Off: shstrAt, Size: uint32(len(shnames)), Addralign: 1},
	})
	return b.Bytes()
}
