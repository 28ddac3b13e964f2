package images

import "debug/elf"

const (
	hostMachine = elf.EM_AARCH64
	hostLibDir  = "/usr/lib/aarch64-linux-gnu"
)
