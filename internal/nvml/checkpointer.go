//go:build cgo

package nvml

/*
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

static int cuda_init(void *lib) {
	int (*call)(unsigned) = (int (*)(unsigned))dlsym(lib, "cuInit");
	return call ? call(0) : -1;
}

static int get_state(void *call, int pid, int *state) {
	return ((int (*)(int, int *))call)(pid, state);
}

// The arguments of each call are 64 bytes, all 0 except a lock's timeout and a restore's pairs.
static int change_state(void *call, int pid, unsigned timeout_ms) {
	uint64_t args[8] = {0};
	*(unsigned *)args = timeout_ms;
	return ((int (*)(int, void *))call)(pid, args);
}

static int restore(void *call, int pid, const void *pairs, unsigned count) {
	struct { const void *pairs; unsigned count; char zero[52]; } args = {pairs, count, {0}};
	return ((int (*)(int, void *))call)(pid, &args);
}

static const char *error_name(void *lib, int code) {
	const char *name = NULL;
	int (*call)(int, const char **) = (int (*)(int, const char **))dlsym(lib, "cuGetErrorName");
	return call && call(code, &name) == 0 && name ? name : "unknown error";
}
*/
import "C"

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// The driver's states of a process (CUprocessState).
const (
	running = iota
	locked
	checkpointed
)

// cudaProcess is a process with a CUDA context. While its pidfd reports that it has not been
// reaped, no other process has its id.
type cudaProcess struct {
	procfs.ID
	fd int
}

// checkpointer calls the functions of libcuda that suspend another process.
type checkpointer struct {
	lib       unsafe.Pointer
	functions map[string]unsafe.Pointer
	// placement is the parameter of Resume.
	placement map[string]string
}

func openCheckpointer(path string) (*checkpointer, error) {
	lib, err := openCUDA(path)
	if err != nil {
		return nil, err
	}
	c := &checkpointer{lib: lib, functions: map[string]unsafe.Pointer{}}
	for _, function := range []string{"GetState", "Lock", "Checkpoint", "Restore", "Unlock"} {
		symbol := C.CString("cuCheckpointProcess" + function)
		c.functions[function] = C.dlsym(lib, symbol)
		C.free(unsafe.Pointer(symbol))
		if c.functions[function] == nil {
			return nil, fmt.Errorf("the driver cannot suspend processes: it needs release 570 or later (%s)", path)
		}
	}
	if rc := C.cuda_init(lib); rc != 0 {
		return nil, fmt.Errorf("libcuda cannot be initialized: %s", c.text("Init", int(rc)))
	}
	return c, nil
}

// each calls a function for each process in the state from.
func (c *checkpointer) each(list []cudaProcess, from int, function string) error {
	for _, p := range list {
		state, rc := c.state(p)
		if rc == 0 && state == from {
			if rc = c.change(p, function); rc == 0 {
				if err := c.undoOther(p, function); err != nil { // guard: probe: the process that was meant
					return err
				}
			}
		}
		switch {
		case p.ended() || rc != 0 && p.exiting():
		case rc != 0:
			return fmt.Errorf("process %d: cuCheckpointProcess%s: %s", p.PID, function, c.text(function, rc))
		case state > checkpointed:
			return fmt.Errorf("process %d: a suspension or resumption that failed has left it in the driver's state %d", p.PID, state)
		}
	}
	return nil
}

// inverse undoes a function.
var inverse = map[string]string{"Lock": "Unlock", "Checkpoint": "Restore", "Restore": "Checkpoint", "Unlock": "Lock"}

// undoOther undoes a call that has reached another process: the driver finds a process by its PID,
// and p may have ended, and another process got its PID, after state found it alive.
func (c *checkpointer) undoOther(p cudaProcess, function string) error {
	if !p.ended() {
		return nil
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("process %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	after := map[string]int{"Lock": locked, "Checkpoint": checkpointed, "Restore": locked, "Unlock": running}[function]
	other := cudaProcess{procfs.ID{PID: p.PID}, fd}
	if state, rc := c.state(other); rc != 0 || state != after { // also if p has not been reaped yet
		return nil
	}
	placement := c.placement
	c.placement = nil
	rc := c.change(other, inverse[function])
	c.placement = placement
	if rc != 0 && !other.ended() {
		return fmt.Errorf("process %d has ended, and another one with its PID was changed by cuCheckpointProcess%s; undoing it failed: %s", p.PID, function, c.text(inverse[function], rc))
	}
	return nil
}

// change calls a function that changes the state of a process.
func (c *checkpointer) change(p cudaProcess, function string) int {
	call, pid := c.functions[function], C.int(p.PID)
	switch {
	case function == "Lock":
		return int(C.change_state(call, pid, C.uint(lockTimeout.Milliseconds())))
	case function == "Restore" && len(c.placement) > 0:
		var pairs []byte // CUcheckpointGpuPair
		for from, to := range c.placement {
			pairs = append(append(pairs, uuidBytes(from)...), uuidBytes(to)...)
		}
		return int(C.restore(call, pid, unsafe.Pointer(&pairs[0]), C.uint(len(c.placement))))
	}
	return int(C.change_state(call, pid, 0))
}

// uuidBytes returns the 16 bytes of a GPU's UUID (CUuuid), "GPU-" and 36 characters. For any other
// text it returns zeros, which the driver refuses.
func uuidBytes(uuid string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(strings.TrimPrefix(uuid, "GPU-"), "-", ""))
	if err != nil || len(b) != 16 {
		return make([]byte, 16)
	}
	return b
}

// state returns the state of a process and the driver's result, which is not 0 if the state is
// unknown.
func (c *checkpointer) state(p cudaProcess) (state, rc int) {
	var s C.int
	if p.ended() {
		return 0, notInitialized
	}
	rc = int(C.get_state(c.functions["GetState"], C.int(p.PID), &s))
	return int(s), rc
}

func (c *checkpointer) text(function string, rc int) string {
	text := C.GoString(C.error_name(c.lib, C.int(rc)))
	if reason := reasonFor(function, rc, len(c.placement) > 0); reason != "" {
		text += ": " + reason
	}
	return text
}

func (p cudaProcess) ended() bool {
	fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1
}

// exiting reports whether the process no longer has memory: the kernel first releases the memory,
// then the files by which the driver finds the process, and reports the end of the process last.
func (p cudaProcess) exiting() bool {
	_, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.PID))
	return errors.Is(err, fs.ErrNotExist)
}
