package testenv

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// NeedPrograms32 skips the test if the kernel runs no 32-bit programs of x86: without
// CONFIG_IA32_EMULATION, or started with ia32_emulation=0, it answers "exec format error".
func NeedPrograms32(t testing.TB) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "exit32")
	if err := os.WriteFile(path, exit32(), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	switch err := exec.Command(path).Run(); {
	case errors.Is(err, unix.ENOEXEC):
		t.Skipf("NOT TESTED: this kernel runs no 32-bit programs: %v", err)
	case err != nil:
		t.Fatal(err)
	}
}

// exit32 returns a static 32-bit program of x86 that ends with status 0.
func exit32() []byte {
	const base = 0x08048000
	code := []byte{
		0xb8, 1, 0, 0, 0, // mov eax, 1: exit
		0x31, 0xdb, // xor ebx, ebx
		0xcd, 0x80, // int 0x80
	}
	header := elf.Header32{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS32), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(elf.EM_386), Version: uint32(elf.EV_CURRENT),
		Phnum: 1,
	}
	header.Ehsize, header.Phoff = uint16(binary.Size(header)), uint32(binary.Size(header)) //nolint:gosec // 52
	segment := elf.Prog32{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: base, Align: 0x1000}
	header.Phentsize = uint16(binary.Size(segment)) //nolint:gosec // 32
	start := uint32(header.Ehsize) + uint32(header.Phentsize)
	header.Entry = base + start
	segment.Filesz = start + uint32(len(code)) //nolint:gosec // 9
	segment.Memsz = segment.Filesz
	var b bytes.Buffer
	for _, part := range []any{header, segment, code} {
		_ = binary.Write(&b, binary.LittleEndian, part) // a Buffer takes everything
	}
	return b.Bytes()
}
