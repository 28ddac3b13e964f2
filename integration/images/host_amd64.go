package images

import "debug/elf"

const (
	hostMachine = elf.EM_X86_64
	hostLibDir  = "/usr/lib/x86_64-linux-gnu"
)
