package shim

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// processes returns the processes of the container. It lists the PIDs twice, because another
// process may have got the PID of one that has ended.
func (s *Service) processes(ctx context.Context, id string) (list []procfs.ID, err error) {
	pids, err := s.pids(ctx, id)
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		p, err := procfs.Host.ID(pid)
		if err == nil {
			list = append(list, p)
		} else if !procfs.HasEnded(err) {
			return nil, err
		}
	}
	pids, err = s.pids(ctx, id)
	// guard: shim: processes outside
	return slices.DeleteFunc(list, func(p procfs.ID) bool { return !slices.Contains(pids, p.PID) }), err
}

func (s *Service) pids(ctx context.Context, id string) ([]int, error) {
	resp, err := s.Pids(ctx, &taskapi.PidsRequest{ID: id})
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, p := range resp.Processes {
		pids = append(pids, int(p.Pid))
	}
	return pids, nil
}

// usersOfGPU returns the processes of the container that have CUDA's device node open. A suspended
// process has closed it; a child of a process that uses CUDA may have inherited it.
func (s *Service) usersOfGPU(ctx context.Context, id string) (users []procfs.ID, err error) {
	cfg, err := config.Find("")
	if err != nil {
		return nil, err
	}
	majors, err := device.UVMMajors(cfg.Host)
	if err != nil {
		return nil, err
	}
	list, err := s.processes(ctx, id)
	limit := maxDescriptors
	for _, p := range list {
		uses, err := usesGPU(ctx, p.PID, majors, &limit)
		if err != nil {
			return nil, err
		}
		if uses {
			users = append(users, p)
		}
	}
	return users, err
}

// maxDescriptors limits the descriptors that a container's processes may have to be suspended:
// reading them takes a microsecond each.
const maxDescriptors = 1 << 18

// usesGPU reports whether a process has a character device with one of these major numbers open, by
// whatever name. It reduces limit by the descriptors that it reads.
func usesGPU(ctx context.Context, pid int, majors []uint32, limit *int) (bool, error) {
	dir, err := os.Open(procfs.Host.Path(pid, "fd"))
	if procfs.HasEnded(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(512)
		for _, name := range names {
			if *limit--; *limit < 0 { // guard: shim: descriptors limited
				return false, verdict.Precondition("the container's processes have more than %d open files", maxDescriptors)
			}
			// DONT_SYNC: the file may be on a file system whose server does not answer.
			var st unix.Statx_t
			const flags = unix.AT_STATX_DONT_SYNC | unix.AT_NO_AUTOMOUNT
			if err := unix.Statx(int(dir.Fd()), name, flags, unix.STATX_TYPE, &st); procfs.HasEnded(err) {
				continue // it was closed
			} else if err != nil {
				return true, nil // it may be that node
			}
			// guard: shim: descriptors by number
			if st.Mode&unix.S_IFMT == unix.S_IFCHR && slices.Contains(majors, st.Rdev_major) {
				return true, nil
			}
		}
		switch {
		case errors.Is(err, io.EOF) || procfs.HasEnded(err):
			return false, nil
		case err != nil:
			return false, err
		case ctx.Err() != nil:
			return false, ctx.Err()
		}
	}
}
