package systemd

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// allowEveryDevice takes the device programs off a cgroup behind the back of
// the program that attached them, as tools do that edit device rules of a running container.
// What no program refuses is allowed. It says how many it took off.
func allowEveryDevice(cgroup string) (int, error) {
	dir, err := os.Open(cgroup)
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	ids, err := devicePrograms(dir)
	if err != nil {
		return 0, fmt.Errorf("device programs of %s: %w", cgroup, err)
	}
	for _, id := range ids {
		if err := detach(dir, id); err != nil {
			return 0, fmt.Errorf("detach program %d of %s: %w", id, cgroup, err)
		}
	}
	return len(ids), nil
}

// devicePrograms are the identifiers of the programs attached to the cgroup itself.
func devicePrograms(cgroup *os.File) ([]uint32, error) {
	ids := make([]uint32, 64) // the kernel's own limit
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&ids[0])
	attr := struct { // BPF_PROG_QUERY of union bpf_attr
		targetFD, attachType, queryFlags, attachFlags uint32
		programs                                      uint64
		count                                         uint32
		_                                             uint32
	}{
		targetFD: uint32(cgroup.Fd()), attachType: unix.BPF_CGROUP_DEVICE,
		programs: uint64(uintptr(unsafe.Pointer(&ids[0]))), count: uint32(len(ids)),
	}
	_, err := bpf(unix.BPF_PROG_QUERY, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	return ids[:attr.count], err
}

func detach(cgroup *os.File, id uint32) error {
	byID := struct{ id, nextID, flags uint32 }{id: id}
	program, err := bpf(unix.BPF_PROG_GET_FD_BY_ID, unsafe.Pointer(&byID), unsafe.Sizeof(byID))
	if err != nil {
		return err
	}
	defer unix.Close(program)
	attr := struct{ targetFD, programFD, attachType, flags uint32 }{
		targetFD: uint32(cgroup.Fd()), programFD: uint32(program), attachType: unix.BPF_CGROUP_DEVICE,
	}
	_, err = bpf(unix.BPF_PROG_DETACH, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	return err
}

func bpf(command int, attr unsafe.Pointer, size uintptr) (int, error) {
	for {
		fd, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(command), uintptr(attr), size)
		switch {
		case errno == 0:
			return int(fd), nil
		case !errors.Is(errno, unix.EINTR):
			return -1, errno
		}
	}
}
