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
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// lockTimeout limits the wait for the GPU work that a process has begun.
const lockTimeout = 10 * time.Second

// The driver's states of a process (CUprocessState).
const (
	running = iota
	locked
	checkpointed
)

// Results of the driver (CUresult).
const (
	invalidValue   = 1
	notInitialized = 3
	notSupported   = 801
)

// reasons are the usual causes of the driver's results.
var reasons = map[int]string{
	2:   "there is not enough free memory",
	304: "the driver cannot restore a process again for which the GPU was full (seen with 580.159.04): delete the container",
	600: fmt.Sprintf("its GPU work did not end within %s", lockTimeout),

	notSupported: "it uses MPS, or memory that the driver cannot move, such as managed memory",
}

// sharesMemory is why a suspended process cannot be restored, for some results.
const sharesMemory = "it uses memory of another process (CUDA IPC) or much of another GPU (peer access), which the driver cannot restore (seen with 580.159.04): delete the container"

// cudaProcess is a process with a CUDA context. While its pidfd reports that it has not been
// reaped, no other process has its id.
type cudaProcess struct{ pid, fd int }

// checkpointer calls the functions of libcuda that suspend another process.
type checkpointer struct {
	lib       unsafe.Pointer
	functions map[string]unsafe.Pointer
	// placement is the parameter of Resume.
	placement map[string]string
}

// Suspend moves the GPU memory of the processes that have a CUDA context to the host. It returns
// these processes and their memory. It locks all of them before it moves the memory of the first.
// It is an error if a process still uses a GPU afterwards. After an error some processes may be
// suspended: Resume continues them.
func Suspend(host config.Host, ids []procfs.ID) (moved []int, memory probe.Memory, err error) {
	memory = probe.Memory{}
	moved, err = withProcesses(host, ids, func(c *checkpointer, list []cudaProcess) error {
		if err := c.each(list, running, "Lock"); err != nil {
			return err
		}
		err := eachUse(host, ids, func(d gpuDevice, p Process) error {
			if memory[p.PID] == nil {
				memory[p.PID] = map[string]uint64{}
			}
			if p.Memory != nil {
				memory[p.PID][d.uuid] = *p.Memory
			}
			return nil
		})
		if err == nil {
			err = checkHostMemory(procfs.Host, "/sys/fs/cgroup", memory)
		}
		if err == nil {
			err = c.each(list, locked, "Checkpoint")
		}
		if err != nil {
			return err
		}
		return eachUse(host, ids, func(d gpuDevice, p Process) error {
			isKnown := func(known cudaProcess) bool { return known.pid == p.PID }
			if _, rc := c.state(cudaProcess{p.PID, -1}); rc == 0 && !slices.ContainsFunc(list, isKnown) {
				return nil // it has begun since: the caller tries again
			}
			return fmt.Errorf("process %d still uses GPU %d (type %s): only CUDA gives it back, graphics does not", p.PID, d.index, p.Type)
		})
	})
	return moved, memory, err
}

// gpuDevice is a GPU or a MIG device; index is the index of the GPU.
type gpuDevice struct {
	State
	uuid, model string
	index       int
}

// devices returns NVML's devices. There are none if NVML is absent, as it may be on a Tegra.
func devices(host config.Host) (list []gpuDevice, err error) {
	path, err := libraryPath(host, nvmlName)
	if errors.Is(err, errAbsent) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s, err := withLibrary(path, true, nil)
	if err != nil {
		return nil, err
	}
	for _, g := range s.GPUs {
		list = append(list, gpuDevice{g.State, g.Facts.UUID, g.Facts.Name, g.Facts.Index})
		for i, state := range g.Instances {
			list = append(list, gpuDevice{state, g.Facts.Instances[i].UUID, g.Facts.Instances[i].Name, g.Facts.Index})
		}
	}
	return list, nil
}

// eachUse calls fn for each device that one of the processes uses.
func eachUse(host config.Host, ids []procfs.ID, fn func(gpuDevice, Process) error) error {
	list, err := devices(host)
	if err != nil {
		return err
	}
	for _, d := range list {
		for _, p := range d.Processes {
			id, err := procfs.Host.ID(p.PID)
			if err != nil || !slices.Contains(ids, id) {
				continue
			}
			if err := fn(d, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkFree returns an error if a device has less free memory than the suspended processes need, or
// is of another model than the one that they used. If the driver finds too little memory for a
// process, it cannot restore that process later either.
func (c *checkpointer) checkFree(host config.Host, list []cudaProcess, needs probe.Memory) error {
	sum := map[string]uint64{}
	for _, p := range list {
		if state, rc := c.state(p); rc != 0 || state != checkpointed {
			continue
		}
		for uuid, bytes := range needs[p.pid] {
			sum[cmp.Or(c.placement[uuid], uuid)] += bytes
		}
	}
	if len(sum) == 0 {
		return nil
	}
	devices, err := devices(host)
	if err == nil {
		err = sameKind(devices, c.placement)
	}
	for _, d := range devices {
		if free := d.Memory.Free; free != nil && *free < sum[d.uuid] {
			return fmt.Errorf("%d MiB of GPU %d are free and %d MiB are needed: free memory, then resume again", *free>>20, d.index, sum[d.uuid]>>20)
		}
	}
	return err
}

// sameKind returns an error if memory would move to another model of GPU.
func sameKind(devices []gpuDevice, placement map[string]string) error {
	for _, from := range devices {
		for _, to := range devices {
			if to.uuid == placement[from.uuid] && to.model != from.model {
				return fmt.Errorf("GPU %d is a %s and GPU %d a %s: memory moves between GPUs of one model only", from.index, from.model, to.index, to.model)
			}
		}
	}
	return nil
}

// Resume moves the GPU memory of suspended processes back, if enough memory is free, and lets them
// continue. It accepts processes in any state. placement is empty or maps GPUs to the GPUs that
// their memory moves to: it has the UUID of each GPU that the processes see once as a key and once
// as a value.
func Resume(host config.Host, ids []procfs.ID, needs probe.Memory, placement map[string]string) ([]int, error) {
	return withProcesses(host, ids, func(c *checkpointer, list []cudaProcess) error {
		c.placement = placement
		if err := c.checkFree(host, list, needs); err != nil {
			return err
		}
		if err := c.each(list, checkpointed, "Restore"); err != nil {
			return err
		}
		return c.each(list, locked, "Unlock")
	})
}

// withProcesses calls fn with the processes that have a CUDA context, and returns their ids.
func withProcesses(host config.Host, ids []procfs.ID, fn func(*checkpointer, []cudaProcess) error) (found []int, err error) {
	path, err := libraryPath(host, cudaName)
	if err != nil {
		return nil, err
	}
	found = []int{} // in JSON, null would mean no answer
	err = isolated(host, unlink, func() error {
		c, err := openCheckpointer(path)
		if err != nil {
			return err
		}
		var list []cudaProcess
		for _, id := range ids {
			fd, err := unix.PidfdOpen(id.PID, 0)
			if errors.Is(err, unix.ESRCH) {
				continue
			}
			if err != nil {
				return fmt.Errorf("process %d: %w", id.PID, err)
			}
			defer unix.Close(fd)
			now, err := procfs.Host.ID(id.PID)
			if err != nil && !procfs.HasEnded(err) {
				return err
			}
			if err != nil || now != id {
				continue // it has ended; another process may have its PID
			}
			p := cudaProcess{id.PID, fd}
			if _, rc := c.state(p); rc == invalidValue || rc == notInitialized {
				continue // it has no CUDA context
			}
			list, found = append(list, p), append(found, id.PID)
		}
		return fn(c, list)
	})
	return found, err
}

func openCheckpointer(path string) (*checkpointer, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	lib := C.dlopen(name, C.RTLD_LAZY)
	if lib == nil {
		return nil, fmt.Errorf("load libcuda: %s", C.GoString(C.dlerror()))
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
			rc = c.change(p, function)
		}
		switch {
		case p.ended() || rc != 0 && p.exiting():
		case rc != 0:
			return fmt.Errorf("process %d: cuCheckpointProcess%s: %s", p.pid, function, c.text(function, rc))
		case state > checkpointed:
			return fmt.Errorf("process %d: a suspension or resumption that failed has left it in the driver's state %d", p.pid, state)
		}
	}
	return nil
}

// change calls a function that changes the state of a process.
func (c *checkpointer) change(p cudaProcess, function string) int {
	call, pid := c.functions[function], C.int(p.pid)
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
	rc = int(C.get_state(c.functions["GetState"], C.int(p.pid), &s))
	return int(s), rc
}

func (c *checkpointer) text(function string, rc int) string {
	text := C.GoString(C.error_name(c.lib, C.int(rc)))
	reason, ok := reasons[rc]
	switch {
	case function == "Restore" && rc == invalidValue && len(c.placement) > 0:
		reason, ok = "the driver does not move it between these GPUs: resume it where it was", true
	case function == "Restore" && (rc == invalidValue || rc == notSupported):
		reason, ok = sharesMemory, true
	}
	if ok {
		text += ": " + reason
	}
	return text
}

// ended reports whether the process has ended.
func (p cudaProcess) ended() bool {
	fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1
}

// exiting reports whether the process no longer has memory: the kernel first releases the memory,
// then the files by which the driver finds the process, and reports the end of the process last.
func (p cudaProcess) exiting() bool {
	_, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.pid))
	return errors.Is(err, fs.ErrNotExist)
}
