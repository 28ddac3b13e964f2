package ldcache

import (
	"debug/elf"
	"runtime"
)

// ABI is a binary interface: word size and machine.
type ABI struct {
	Class   elf.Class
	Machine elf.Machine
	// Flags mark its libraries in a cache, FLAG_ELF_LIBC6 included (sysdeps/generic/ldconfig.h of
	// glibc). 32-bit ARM means the hard-float ABI.
	Flags  int32
	Arch   string // as in the names of musl's loader and of Vulkan's manifests
	Triple string // of Debian's library directories
	Loader string // glibc's, by the name that programs ask for
}

// ABI64 is the 64-bit ABI of this machine and ABI32 its 32-bit companion, for which NVIDIA ships
// compat32 libraries on x86-64 only.
var ABI64, ABI32 = ABIs(runtime.GOARCH)

// ABIs returns the 64-bit and the 32-bit ABI of a machine.
func ABIs(goarch string) (wide, narrow ABI) {
	if goarch == "arm64" {
		return ABI{elf.ELFCLASS64, elf.EM_AARCH64, 0x0a03, "aarch64", "aarch64-linux-gnu", "/lib/ld-linux-aarch64.so.1"},
			ABI{elf.ELFCLASS32, elf.EM_ARM, 0x0903, "armhf", "arm-linux-gnueabihf", "/lib/ld-linux-armhf.so.3"}
	}
	return ABI{elf.ELFCLASS64, elf.EM_X86_64, 0x0303, "x86_64", "x86_64-linux-gnu", "/lib64/ld-linux-x86-64.so.2"},
		ABI{elf.ELFCLASS32, elf.EM_386, 0x0003, "i386", "i386-linux-gnu", "/lib/ld-linux.so.2"}
}

// Matches reports whether a file is of this ABI.
func (a ABI) Matches(e ELF) bool { return e.Class == a.Class && e.Machine == a.Machine }
