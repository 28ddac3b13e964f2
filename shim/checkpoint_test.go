package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/go-runc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/procmask"
)

// checkpointTasks is an embedded service with one container, that knows whether it is paused.
type checkpointTasks struct {
	pausedTasks
	paused bool
	ended  bool
	err    error
	config string // what CRIU would read
}

func (f *checkpointTasks) State(context.Context, *taskapi.StateRequest) (*taskapi.StateResponse, error) {
	status := task.Status_RUNNING
	if f.paused {
		status = task.Status_PAUSED
	}
	if f.ended {
		status = task.Status_STOPPED
	}
	return &taskapi.StateResponse{Status: status, Pid: uint32(os.Getpid())}, nil
}

func (f *checkpointTasks) Pause(ctx context.Context, r *taskapi.PauseRequest) (*emptypb.Empty, error) {
	f.paused = true
	return f.pausedTasks.Pause(ctx, r)
}

func (f *checkpointTasks) Resume(ctx context.Context, r *taskapi.ResumeRequest) (*emptypb.Empty, error) {
	f.paused = false
	return f.pausedTasks.Resume(ctx, r)
}

// criuConfig is what the CRIU of a runc that is run with ctx reads.
func criuConfig(ctx context.Context) string {
	dir, err := os.MkdirTemp("", "runc")
	if err != nil {
		return err.Error()
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "runc")
	if err := os.WriteFile(program, []byte("#!/bin/sh\ncat \"$CRIU_CONFIG_FILE\" >\"$0.out\"\n"), 0o700); err != nil {
		return err.Error()
	}
	_, _ = (&runc.Runc{Command: program}).Version(ctx)
	text, _ := os.ReadFile(program + ".out")
	return string(text)
}

func (f *checkpointTasks) Checkpoint(ctx context.Context, _ *taskapi.CheckpointTaskRequest) (*emptypb.Empty, error) {
	f.calls = append(f.calls, "checkpoint")
	f.config = criuConfig(ctx)
	f.ended = errors.Is(f.err, errEnded)
	return &emptypb.Empty{}, f.err
}

var errEnded = errors.New("the container has ended")

func TestCheckpoint(t *testing.T) {
	reap(t)
	exit, err := anypb.New(&runcoptions.CheckpointOptions{Exit: true})
	check(t, err)
	const works = `echo '{"moved":[4711]}'`
	const full = `case "$*" in *resume*) echo '{"move_error":"full"}';; *) echo '{"moved":[4711]}';; esac`
	for _, test := range []struct {
		name      string
		suspended bool // on-pause is suspend-gpu
		paused    bool
		script    string
		criu      error
		options   *anypb.Any
		calls     string
		err       string
	}{
		{"running", false, false, works, nil, nil, "pause checkpoint resume", ""},
		{"frozen", false, true, works, nil, nil, "resume pause checkpoint", ""},
		{"suspended", true, true, `exit 1`, nil, nil, "checkpoint", ""},
		{"ends", false, false, works, nil, exit, "pause checkpoint", ""},
		{"CRIU fails", false, false, works, errors.New("criu failed"), exit, "pause checkpoint resume", "criu failed"},
		{"the container ends meanwhile", false, false, full, errEnded, nil, "pause checkpoint", "the container has ended"},
		{"the driver fails", false, true, `case "$*" in *suspend*) echo '{"move_error":"no"}';; *) echo '{"moved":[4711]}';; esac`, nil, nil,
			"resume pause", "cannot suspend the GPUs of container c: no"},
		{"the GPU is full afterwards", false, false, full, nil, nil, "pause checkpoint resume pause",
			"nvidia: the checkpoint was written; the container stays paused: nvidia: cannot resume the GPUs of container c: full"},
	} {
		t.Run(test.name, func(t *testing.T) {
			putProbe(t, test.script)
			f := &checkpointTasks{paused: test.paused, err: test.criu}
			s, _ := serviceAround(&f.fakeTasks)
			s.TTRPCTaskService = f
			s.reserve("c")
			bundle, image := t.TempDir(), filepath.Join(t.TempDir(), "image")
			check(t, os.WriteFile(filepath.Join(bundle, gpuinject.RecordName), []byte("{}"), 0o600))
			s.update("c", gpuContainer{ready: true, hasGPU: true, suspendsGPU: test.suspended, bundle: bundle})
			_, err := s.Checkpoint(t.Context(), &taskapi.CheckpointTaskRequest{ID: "c", Path: image, Options: test.options})
			if (err == nil) != (test.err == "") || err != nil && !strings.HasSuffix(err.Error(), test.err) {
				t.Errorf("error %v, want %q", err, test.err)
			}
			if got := strings.Join(f.calls, " "); got != test.calls {
				t.Errorf("calls %q, want %q", got, test.calls)
			}
			if slices.Contains(f.calls, "checkpoint") {
				if want := "external \"mnt[/proc/driver]:/proc/driver\"\n"; f.config != want {
					t.Errorf("CRIU reads %q, want %q", f.config, want)
				}
				if _, err := os.Stat(filepath.Join(image, gpuinject.RecordName)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestACheckpointOfAContainerWithoutGPUsOrThatHasEnded(t *testing.T) {
	f := &checkpointTasks{}
	s, _ := serviceAround(&f.fakeTasks)
	s.TTRPCTaskService = f
	for range 2 {
		if _, err := s.Checkpoint(t.Context(), &taskapi.CheckpointTaskRequest{ID: "c"}); err != nil || f.config != "" {
			t.Errorf("%v, CRIU reads %q", err, f.config)
		}
		f.ended = true
		s.reserve("c")
		s.update("c", gpuContainer{ready: true, hasGPU: true})
	}
}

// restoreTasks notes what CRIU would mount at /proc/driver.
type restoreTasks struct {
	checkpointTasks
	mask  []os.DirEntry
	start error
	// at is where CRIU mounts the mask.
	at string
}

func (f *restoreTasks) Start(ctx context.Context, r *taskapi.StartRequest) (*taskapi.StartResponse, error) {
	f.config = criuConfig(ctx)
	_, at, _ := strings.Cut(f.config, "mnt[/proc/driver]:")
	at, _, _ = strings.Cut(at, "\"")
	f.mask, _ = os.ReadDir(at)
	if f.start != nil {
		return nil, f.start
	}
	if err := unix.Mount(at, f.at, "", unix.MS_BIND, ""); err != nil {
		return nil, err
	}
	return f.checkpointTasks.Start(ctx, r)
}

func TestARestoredContainerHasTheMaskWhenItStarts(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	reap(t)
	for _, test := range []struct {
		name, script string
		start        error
		at, calls    string
		err          string
	}{
		{"restored", `echo '{"moved":[4711]}'`, nil, procmask.Dir, "start", ""},
		{"CRIU fails", `exit 1`, errors.New("criu failed"), "", "kill", "criu failed"},
		{"the GPU is full", `echo '{"move_error":"full"}'`, nil, procmask.Dir, "start kill", "nvidia: cannot resume the GPUs of container c: full"},
		{"a forged checkpoint", `echo '{"moved":[4711]}'`, nil, "/mnt", "start kill", fmt.Sprintf("mask: it is not on /proc/driver of process %d", os.Getpid())},
	} {
		t.Run(test.name, func(t *testing.T) {
			putProbe(t, test.script)
			f := &restoreTasks{start: test.start, at: test.at}
			s, _ := serviceAround(&f.fakeTasks)
			s.TTRPCTaskService = f
			mask, err := procmask.New([]procmask.File{{Path: "nvidia/version", Data: []byte("x")}}, "")
			check(t, err)
			bundle := t.TempDir()
			s.reserve("c")
			s.update("c", gpuContainer{ready: true, hasGPU: true, bundle: bundle, restoration: &restoration{mask: mask, view: "/nonexistent"}})
			_, err = s.Start(t.Context(), &taskapi.StartRequest{ID: "c"})
			_ = unix.Unmount(test.at, unix.MNT_DETACH)
			if (err == nil) != (test.err == "") || err != nil && !strings.HasSuffix(err.Error(), test.err) {
				t.Errorf("error %v, want %q", err, test.err)
			}
			if got := strings.Join(f.calls, " "); got != test.calls {
				t.Errorf("calls %q, want %q", got, test.calls)
			}
			if len(f.mask) != 1 || f.mask[0].Name() != "nvidia" {
				t.Errorf("CRIU mounts %v by %s", f.mask, f.config)
			}
			if _, err := os.Stat(filepath.Join(bundle, restoredMask)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the mask is still mounted: %v", err)
			}
		})
	}
}
