package ldcache

import (
	"debug/elf"
	"runtime"
)

// Flags of a cache entry: FLAG_ELF_LIBC6 and the ABI (sysdeps/generic/ldconfig.h
// of glibc). The value for i386 is the one of every 32-bit ABI that needs no
// distinction on its machine.
const (
	flagsI386    = 0x0003
	flagsX8664   = 0x0303
	flagsS390X   = 0x0403
	flagsPPC64   = 0x0503
	flagsX32     = 0x0803
	flagsARMHF   = 0x0903
	flagsAArch64 = 0x0a03
	flagsRISCV64 = 0x1003
	flagsLoong64 = 0x1203
)

// FlagsFor returns the flags by which ld.so.cache tells one ABI from another, and
// false for a machine that no NVIDIA driver or image of this field runs on
// (sysdeps/generic/ldconfig.h and the machine's readelflib.c in glibc). 32-bit
// ARM means the hard-float ABI, RISC-V and LoongArch the double-float one.
func FlagsFor(class elf.Class, machine elf.Machine) (int32, bool) {
	switch {
	case class == elf.ELFCLASS64 && machine == elf.EM_X86_64:
		return flagsX8664, true
	case class == elf.ELFCLASS32 && machine == elf.EM_X86_64:
		return flagsX32, true
	case class == elf.ELFCLASS64 && machine == elf.EM_AARCH64:
		return flagsAArch64, true
	case class == elf.ELFCLASS32 && machine == elf.EM_386:
		return flagsI386, true
	case class == elf.ELFCLASS32 && machine == elf.EM_ARM:
		return flagsARMHF, true
	case class == elf.ELFCLASS64 && machine == elf.EM_PPC64:
		return flagsPPC64, true
	case class == elf.ELFCLASS64 && machine == elf.EM_S390:
		return flagsS390X, true
	case class == elf.ELFCLASS64 && machine == elf.EM_RISCV:
		return flagsRISCV64, true
	case class == elf.ELFCLASS64 && machine == elf.EM_LOONGARCH:
		return flagsLoong64, true
	}
	return 0, false
}

// abi is one kind of binary that this machine runs, with the places where images
// keep its C library.
type abi struct {
	class   elf.Class
	machine elf.Machine
	loader  string   // glibc's loader, by the name that programs ask for
	dirs    []string // default directories of Debian's, Red Hat's and plain glibc
	musl    string   // <arch> of ld-musl-<arch>.so.1
}

// flags are the cache flags of the ABI.
func (a *abi) flags() int32 {
	f, _ := FlagsFor(a.class, a.machine)
	return f
}

// is tells whether a file is of this ABI.
func (a *abi) is(e ELF) bool { return e.Class == a.class && e.Machine == a.machine }

// hostABIs returns the 64-bit ABI of this machine and its 32-bit companion, for
// which NVIDIA ships compat32 libraries on x86-64 only.
func hostABIs() (abi, abi) {
	if runtime.GOARCH == "arm64" {
		return abi{
				class: elf.ELFCLASS64, machine: elf.EM_AARCH64, musl: "aarch64",
				loader: "/lib/ld-linux-aarch64.so.1",
				dirs: []string{"/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
					"/lib64", "/usr/lib64", "/lib", "/usr/lib"},
			}, abi{
				class: elf.ELFCLASS32, machine: elf.EM_ARM, musl: "armhf",
				loader: "/lib/ld-linux-armhf.so.3",
				dirs:   []string{"/lib/arm-linux-gnueabihf", "/usr/lib/arm-linux-gnueabihf", "/lib", "/usr/lib"},
			}
	}
	return abi{
			class: elf.ELFCLASS64, machine: elf.EM_X86_64, musl: "x86_64",
			loader: "/lib64/ld-linux-x86-64.so.2",
			dirs: []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu",
				"/lib64", "/usr/lib64", "/lib", "/usr/lib"},
		}, abi{
			class: elf.ELFCLASS32, machine: elf.EM_386, musl: "i386",
			loader: "/lib/ld-linux.so.2",
			dirs: []string{"/lib/i386-linux-gnu", "/usr/lib/i386-linux-gnu",
				"/lib32", "/usr/lib32", "/lib", "/usr/lib"},
		}
}
