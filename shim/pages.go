package shim

import (
	"debug/elf"
	"encoding/binary"
	"os"
	"reflect"
	"runtime"

	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/process"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
)

// createCode is where the code lies that a create needs and an idle container does
// not: packages follow each other in the order in which they depend on each other,
// so from the first part of gpuinject to the last one, and on to the libraries for
// cgroups, which are used once, to where containerd's own code for processes begins.
// Where a linker orders them in another way, other pages are given back, which costs
// a page fault each and no more.
func createCode() (start, end uintptr) {
	// Which of the two is first depends on who else imports it.
	return min(entry(bundle.Read), entry(device.Discover)), entry(process.NewRunc)
}

// entry is the address of a function.
func entry(function any) uintptr { return reflect.ValueOf(function).Pointer() }

// lineTables is where the runtime's tables of functions and lines lie (.gopclntab), the
// greatest part of a Go program's read-only data. An idle shim reads none of them: they
// are for stacks that grow, collections of garbage and panics. It is nothing where the
// section is not found, or is not what the running program uses.
func lineTables() (start, end uintptr) {
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		return 0, 0
	}
	defer func() { _ = f.Close() }()
	s := f.Section(".gopclntab")
	if s == nil {
		return 0, 0
	}
	start, end = uintptr(s.Addr), uintptr(s.Addr+s.Size)
	// What describes a function is an address in the tables.
	if at := reflect.ValueOf(runtime.FuncForPC(entry(bundle.Read))).Pointer(); at < start || at >= end {
		return 0, 0
	}
	return start, end
}

// Bits of an entry of /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst).
const (
	pagePresent = 1 << 63
	pageSwapped = 1 << 62
	pageOfFile  = 1 << 61
)

// unmap takes the pages from start to end, of a file's private mapping, out of this
// process. They stay in the page cache, where the next access finds them. Nothing is
// done where one of the pages is no longer the file's: a debugger or a uprobe has
// changed it, and the change would be lost.
func unmap(start, end uintptr) {
	size := uintptr(os.Getpagesize())
	start, end = (start+size-1)/size, end/size
	if end <= start {
		return
	}
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return
	}
	defer f.Close()
	entries := make([]byte, 8*(end-start))
	if _, err := f.ReadAt(entries, int64(8*start)); err != nil {
		return
	}
	for ; len(entries) > 0; entries = entries[8:] {
		if e := binary.NativeEndian.Uint64(entries); e&pageSwapped != 0 || e&pagePresent != 0 && e&pageOfFile == 0 {
			return
		}
	}
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, start*size, (end-start)*size, unix.MADV_DONTNEED)
}
