package image

import (
	"debug/elf"
	"runtime"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
)

// abi is one kind of binary that this machine runs, with the places where images keep its C
// library.
type abi struct {
	class   elf.Class
	machine elf.Machine
	loader  string   // glibc's loader, by the name that programs ask for
	dirs    []string // default directories of Debian's, Red Hat's and plain glibc
	musl    string   // <arch> of ld-musl-<arch>.so.1
}

// abi64 is the 64-bit ABI of this machine and abi32 its 32-bit companion, for which NVIDIA ships
// compat32 libraries on x86-64 only.
var abi64, abi32 = hostABIs()

func hostABIs() (wide, narrow abi) {
	if runtime.GOARCH == "arm64" {
		return abi{elf.ELFCLASS64, elf.EM_AARCH64, "/lib/ld-linux-aarch64.so.1", libDirs("aarch64-linux-gnu", "64"), "aarch64"},
			abi{elf.ELFCLASS32, elf.EM_ARM, "/lib/ld-linux-armhf.so.3", libDirs("arm-linux-gnueabihf", "32"), "armhf"}
	}
	return abi{elf.ELFCLASS64, elf.EM_X86_64, "/lib64/ld-linux-x86-64.so.2", libDirs("x86_64-linux-gnu", "64"), "x86_64"},
		abi{elf.ELFCLASS32, elf.EM_386, "/lib/ld-linux.so.2", libDirs("i386-linux-gnu", "32"), "i386"}
}

func libDirs(triple, bits string) []string {
	return []string{"/lib/" + triple, "/usr/lib/" + triple, "/lib" + bits, "/usr/lib" + bits, "/lib", "/usr/lib"}
}

// matches reports whether a file is of this ABI.
func (a *abi) matches(e ldcache.ELF) bool { return e.Class == a.class && e.Machine == a.machine }

// flags mark the ABI's libraries in ld.so.cache.
func (a *abi) flags() int32 { return ldcache.FlagsFor(a.class, a.machine) }
