//go:build cgo

package server

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/nvml"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// linked reports whether this program can load NVML.
const linked = true

// answerNVML answers the questions to NVML.
func answerNVML(q probe.Questions, a *probe.Answers) {
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
}

// memory sets, reads or releases memory limits. This process has the lock since before it was
// confined: NVML adds to the files of the cgroup's ancestors, and two processes at once would lose
// one's part.
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
