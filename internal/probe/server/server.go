package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/nvml"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/podresources"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// Answer answers the questions. If NVML was asked, the process cannot start programs afterwards,
// and may be unable to exit. A program that cannot load NVML becomes the one that can, which
// answers.
func Answer(ctx context.Context, q probe.Questions) probe.Answers {
	var a probe.Answers
	confined := mustBeConfined(q)
	if (q.Facts || q.Live || q.Watch > 0 || confined) && !nvml.Linked || confined && !nvml.IsConfined(q) {
		err := fmt.Errorf("NVML cannot be asked: %w", becomeNVMLProgram(q))
		text := err.Error()
		a.FactsError, a.LiveError, a.MoveError, a.WatchError = text, text, text, text
		a.MemoryError, a.MemoryCause = text, probe.MemoryCause(err)
		q = probe.Questions{Config: q.Config, Pod: q.Pod, Programs: q.Programs}
	}
	if q.Pod != nil {
		askKubelet(ctx, q, &a)
	}
	if q.Programs != nil {
		var err error
		if a.Versions, err = versions(ctx, q.Programs); err != nil {
			a.VersionsError = err.Error()
		}
	}
	switch {
	case q.Watch > 0:
		a.WatchError = watch(q).Error()
	case q.Live:
		live, err := askNVML(q, func(host config.Host) (nvml.Snapshot, error) { return nvml.Live(host, q.Cgroups) })
		if err == nil {
			a.Live, err = json.Marshal(live)
		}
		if err != nil {
			a.LiveError = err.Error()
		}
	case q.Facts:
		facts, err := askNVML(q, nvml.Facts)
		if err != nil {
			a.FactsError = err.Error()
		} else {
			a.Facts = &facts
		}
	case q.Suspend != nil:
		a.Moved, a.MoveError = move(q.Config, func(host config.Host) (moved []int, err error) {
			moved, a.Memory, err = nvml.Suspend(host, q)
			return moved, err
		})
	case q.Resume != nil:
		a.Moved, a.MoveError = move(q.Config, func(host config.Host) ([]int, error) {
			return nvml.Resume(host, q, func() error { return waitReady(q) })
		})
	case q.AsksMemory():
		use, err := memory(q)
		if err != nil {
			// In one line: that of each GPU is one of joined errors.
			a.MemoryError, a.MemoryCause = strings.ReplaceAll(err.Error(), "\n", "; "), probe.MemoryCause(err)
		} else {
			a.MemoryUse = &use
		}
	}
	return a
}

func askKubelet(ctx context.Context, q probe.Questions, a *probe.Answers) {
	ctx, cancel := context.WithTimeout(ctx, probe.KubeletTimeout)
	defer cancel()
	pod, err := podresources.Allocated(ctx, q.Pod.Socket, q.Pod.Namespace, q.Pod.Name)
	if err != nil {
		a.PodError = err.Error()
	} else {
		a.Pod = &pod
	}
}

// mustBeConfined reports whether a program that nvml.Confine has confined answers q.
func mustBeConfined(q probe.Questions) bool {
	return q.Suspend != nil || q.Resume != nil || q.AsksMemory()
}

// memory sets, reads or releases memory limits. This process has the lock since before it was confined: NVML
// adds to the files of the cgroup's ancestors, and two processes at once would lose one's part.
func memory(q probe.Questions) ([]probe.MemoryUse, error) {
	cfg, err := config.Find(q.Config)
	if err != nil {
		return nil, err
	}
	return within(q.Timeout, func() ([]probe.MemoryUse, error) {
		switch {
		case q.SetMemory != nil:
			return nvml.SetMemory(cfg.Host, q)
		case q.ReleaseMemory != nil:
			return []probe.MemoryUse{}, nvml.ReleaseMemory(cfg.Host, q)
		}
		return nvml.ReadMemory(cfg.Host, q)
	})
}

// waitReady has the caller call Questions.Ready, if there is one, and waits for its end.
func waitReady(q probe.Questions) error {
	if !q.Wait {
		return nil
	}
	if err := json.NewEncoder(os.Stdout).Encode(probe.Answers{Ready: true}); err != nil {
		return err
	}
	var buf [1]byte
	if n, err := unix.Read(probe.ReadyFD, buf[:]); n != 1 {
		return fmt.Errorf("the caller has given up: %w", cmp.Or(err, io.EOF))
	}
	return nil
}

// becomeNVMLProgram executes nvidia-shim-nvml in this process. It returns only if that fails.
func becomeNVMLProgram(q probe.Questions) error {
	path, err := probe.NVMLProgram()
	if err == nil && q.AsksMemory() {
		q.CgroupPath, err = nvml.FindCgroup()
	}
	if err != nil {
		return err
	}
	questions, err := probe.QuestionsFile(q)
	if err != nil {
		return err
	}
	defer questions.Close()
	if err := unix.Dup3(int(questions.Fd()), unix.Stdin, 0); err != nil {
		return os.NewSyscallError("dup3", err)
	}
	if mustBeConfined(q) {
		if err := confine(q, path); err != nil {
			return fmt.Errorf("confine the probe: %w", err)
		}
	}
	if err := unix.Exec(path, []string{filepath.Base(path)}, []string{}); err != nil {
		return fmt.Errorf("%s needs the C library of this host, glibc 2.34 or later: %w", path, err)
	}
	return nil
}

// confine confines the program at path, which this process executes next. A program that limits
// memory gets the lock of those that ask NVML.
func confine(q probe.Questions, path string) error {
	runtime.LockOSThread() // for good: Exec keeps what this thread has
	cfg, err := config.Find(q.Config)
	if err != nil {
		return err
	}
	if q.AsksMemory() {
		lock, err := lockHost(cfg.Host, q.Timeout) // guard: probe: one process sets limits
		if err != nil {
			return err
		}
		if lock != nil {
			_, err := unix.Dup(int(lock.Fd())) // without FD_CLOEXEC
			lock.Close()
			if err != nil {
				return os.NewSyscallError("dup", err)
			}
		}
	}
	return nvml.Confine(cfg.Host, q, path, q.Config)
}

// move suspends or resumes processes. It does not take NVML's lock: it may take minutes, and other
// containers are created meanwhile.
func move(name string, fn func(config.Host) ([]int, error)) (*[]int, string) {
	cfg, err := config.Find(name)
	moved := []int{}
	if err == nil {
		moved, err = fn(cfg.Host)
	}
	if err != nil {
		return nil, err.Error()
	}
	return &moved, ""
}

// askNVML runs fn, which loads NVML, while no other process does so, and gives up at the limit.
func askNVML[T any](q probe.Questions, fn func(config.Host) (T, error)) (answer T, err error) {
	cfg, err := config.Find(q.Config)
	if err != nil {
		return answer, err
	}
	lock, err := lockHost(cfg.Host, q.Timeout)
	if err != nil {
		return answer, err
	}
	return within(q.Timeout, func() (T, error) {
		answer, err := fn(cfg.Host)
		if lock != nil {
			lock.Close() // not at the time limit: a process that hangs must keep it
		}
		return answer, err
	})
}

// within runs fn, which asks NVML, and gives up at the limit.
func within[T any](limit time.Duration, fn func() (T, error)) (none T, err error) {
	type result struct {
		answer T
		err    error
	}
	done := make(chan result, 1)
	go func() {
		answer, err := fn()
		done <- result{answer, err}
	}()
	select {
	case r := <-done:
		return r.answer, r.err
	case <-time.After(limit):
		return none, fmt.Errorf("NVML has not answered within %s: nvidia-smi on this host should hang as well; without persistence mode the driver starts slowly (nvidia-persistenced avoids that), else look for Xid in the kernel log", limit)
	}
}

// watch answers Questions.Watch, until the caller reads no more or NVML fails. Only its first
// question is one that others wait for: NVML answers many processes at once, and if it hangs later,
// the caller starts no other watcher.
func watch(q probe.Questions) error {
	cfg, err := config.Find(q.Config)
	if err != nil {
		return err
	}
	lock, err := lockHost(cfg.Host, q.Timeout)
	if err != nil {
		return err
	}
	answers := json.NewEncoder(os.Stdout)
	err = nvml.Watch(cfg.Host, q.Watch, q.Use, func(o probe.Observation) error {
		lock.Close()
		return answers.Encode(probe.Answers{Observed: &o})
	})
	lock.Close()
	return cmp.Or(err, io.EOF)
}

// lockHost takes the lock of those that ask NVML. It is nil for users that cannot use the state
// directory, which the shim makes before it asks.
func lockHost(host config.Host, limit time.Duration) (*os.File, error) {
	if _, err := os.Lstat(host.StateDir); err != nil || os.Geteuid() != 0 { // guard: probe: one process asks NVML
		return nil, nil
	}
	return lockNVML(host.StateDir, limit)
}

// lockName is the lock that the process which asks NVML holds until it has exited. The file says which
// process that is.
const lockName = "nvml.lock"

// strangerTimeout bounds the wait for a lock that no process asking NVML holds.
const strangerTimeout = time.Second

// lockNVML waits for the lock, unless the process that holds it is overdue. flock(2) needs no write
// access, so root in a container that sees the host's /run can hold the lock forever, but cannot
// write who holds it: a lock whose holder has ended, according to the file, stops no question.
func lockNVML(stateDir string, limit time.Duration) (*os.File, error) {
	st, err := state.Open(stateDir, false)
	if err != nil {
		return nil, err
	}
	name := filepath.Join(stateDir, lockName)
	lock, err := st.Lock(lockName, 0)
	for start := time.Now(); errors.Is(err, state.ErrBusy); lock, err = st.Lock(lockName, 10*time.Millisecond) {
		holder, until := readHolder(name)
		waited := time.Since(start)
		switch {
		case holder == 0 && waited > min(limit, strangerTimeout): // guard: probe: a lock that another program holds
			if lock, err = os.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err != nil {
				return nil, err
			}
			return lock, writeHolder(lock, limit)
		case holder == 0:
		case time.Now().After(until):
			return nil, fmt.Errorf("process %d asked NVML and should have ended at %s, but still hangs: reset the GPU or reboot the host (kill -9 %d has no effect while it is in the kernel)", holder, until.Format(time.TimeOnly), holder)
		case waited > limit:
			return nil, fmt.Errorf("process %d is asking NVML and has not ended within %s", holder, limit)
		}
	}
	if err != nil {
		return nil, err
	}
	return lock, writeHolder(lock, limit)
}

// writeHolder tells waiting processes that this process asks NVML, and when it will have ended.
// After an error the lock is closed.
func writeHolder(lock *os.File, limit time.Duration) error {
	self, err := procfs.Host.ID(os.Getpid())
	if err == nil {
		err = lock.Truncate(0)
	}
	if err == nil {
		_, err = fmt.Fprintf(lock, "%d %d %d\n", self.PID, time.Now().Add(limit+time.Second).UnixNano(), self.Start)
	}
	if err != nil {
		lock.Close()
	}
	return err
}

// readHolder reads which process asks NVML and when it will have ended; pid is 0 if that is unknown
// or if the process has ended.
func readHolder(name string) (pid int, until time.Time) {
	var nanoseconds int64
	var start uint64
	data, err := os.ReadFile(name)
	if err == nil {
		_, err = fmt.Sscanf(string(data), "%d %d %d", &pid, &nanoseconds, &start)
	}
	var now procfs.ID
	if err == nil {
		now, err = procfs.Host.ID(pid)
	}
	if err != nil || now.Start != start { // guard: probe: the same process holds it
		return 0, time.Time{}
	}
	return pid, time.Unix(0, nanoseconds)
}
