package systemd

import (
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// allowEveryDevice removes the device programs of a cgroup behind the back of the program that
// attached them, like tools that edit device rules of a running container. Without a program every
// device is allowed. It returns how many programs it removed.
func allowEveryDevice(cgroup string) (int, error) {
	dir, err := os.Open(cgroup)
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	attached, err := link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: ebpf.AttachCGroupDevice})
	if err != nil {
		return 0, err
	}
	for _, a := range attached.Programs {
		program, err := ebpf.NewProgramFromID(a.ID)
		if err != nil {
			return 0, err
		}
		defer program.Close()
		options := link.RawDetachProgramOptions{Target: int(dir.Fd()), Program: program, Attach: ebpf.AttachCGroupDevice}
		if err := link.RawDetachProgram(options); err != nil {
			return 0, err
		}
	}
	return len(attached.Programs), nil
}
