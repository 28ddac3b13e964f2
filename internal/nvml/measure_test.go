//go:build cgo

package nvml

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// With a real driver this is measured by
//
//	go test -c -o nvml.test ./internal/nvml
//	echo '{"suspend": [{"pid": PID, "start": FIELD-22-OF-ITS-STAT}]}' >questions
//	NVML_TEST_TASK=confine-measure:/etc/nvidia-shim/config.toml ./nvml.test <questions
//
// for a process that uses CUDA, with a configuration file that may be empty. The calls that it
// prints must be added to allowed, or are not needed. Seen with 580.159.04 on an H200: none.
func TestTheDriverNeedsNoOtherSystemCalls(t *testing.T) {
	d := sim.New(t, sim.Options{GPUs: 2, MIG: []sim.MIGDevice{{GPU: 1, GI: 1}}})
	id, output := startCounter(t, d)
	if a := answer(t, d, "confine-measure", probe.Questions{Suspend: []procfs.ID{id}}); a.MoveError != "" || len(*a.Moved) != 1 {
		t.Errorf("%+v", a)
	}
	check(t, counts(output))
}

// seccompNotification is struct seccomp_notif, and seccompAnswer struct seccomp_notif_resp.
type seccompNotification struct {
	ID         uint64
	PID, Flags uint32
	Number     int32
	Arch       uint32
	IP         uint64
	Args       [6]uint64
}

type seccompAnswer struct {
	ID    uint64
	Value int64
	Error int32
	Flags uint32
}

// measure suspends and resumes processes, lets the driver make every call that is not in refused,
// and prints the calls that are not in allowed.
func measure(name string) error {
	cfg, err := config.Load(name)
	if err != nil {
		return err
	}
	q, err := probe.ReadQuestions(os.Stdin)
	if err == nil {
		err = denyRefused()
	}
	if err != nil {
		return err
	}
	program := allowList(uint32(os.Getpid()), unix.SECCOMP_RET_USER_NOTIF)
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	const flags = unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH | unix.SECCOMP_FILTER_FLAG_NEW_LISTENER
	listener, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&fprog)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return errno
	}
	var calls []string
	go func() {
		for {
			var n seccompNotification
			if _, _, errno := unix.Syscall(unix.SYS_IOCTL, listener, unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n))); errno != 0 {
				continue
			}
			if call := fmt.Sprint(n.Number); !slices.Contains(calls, call) {
				calls = append(calls, call)
			}
			answer := seccompAnswer{ID: n.ID, Flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
			_, _, _ = unix.Syscall(unix.SYS_IOCTL, listener, unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&answer)))
		}
	}()
	moved, err := suspendAndResume(cfg.Host, q.Suspend)
	if len(calls) > 0 {
		err = errors.Join(err, fmt.Errorf("system calls %s", strings.Join(calls, ", ")))
	}
	a := probe.Answers{Moved: &moved}
	if err != nil {
		a.MoveError = err.Error()
	}
	return json.NewEncoder(os.Stdout).Encode(a)
}

// suspendAndResume makes the calls of Suspend and Resume.
func suspendAndResume(host config.Host, ids []procfs.ID) ([]int, error) {
	path, err := libraryPath(host, cudaName)
	if err != nil {
		return nil, err
	}
	c, err := openCheckpointer(path)
	if err != nil {
		return nil, err
	}
	list, err := c.processes(ids)
	if err != nil {
		return nil, err
	}
	for _, step := range []struct {
		function string
		from     int
	}{{"Lock", running}, {"Checkpoint", locked}, {"Restore", checkpointed}, {"Unlock", locked}} {
		err = errors.Join(err, c.each(list, step.from, step.function))
	}
	_, failed := devices(host, nil)
	return pids(list), errors.Join(err, failed)
}
