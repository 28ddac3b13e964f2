package server

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/nvml"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/podresources"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// Answer answers the questions. If NVML was asked, the process cannot start programs afterwards,
// and may be unable to exit. A program that cannot load NVML becomes the one that can, which
// answers.
func Answer(ctx context.Context, q probe.Questions) probe.Answers {
	var a probe.Answers
	confined := mustBeConfined(q)
	if (q.Facts || q.Live || q.Watch > 0 || confined) && !linked || confined && !nvml.IsConfined(q) {
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
	answerNVML(q, &a)
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
