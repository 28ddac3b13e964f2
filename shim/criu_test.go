package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/go-runc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/procmask"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// checkpointTasks is an embedded service with one container, that knows whether it is paused.
type checkpointTasks struct {
	pausedTasks
	paused bool
	ended  bool
	err    error
	config string // what CRIU would read
	other  string // what a runc for another container would have it read
	// during is called in the first call that pauses, resumes, checkpoints or restores.
	during func()
	// notFrozen fails the next Pause, notThawed the next Resume.
	notFrozen, notThawed error
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
	f.begin()
	if err := f.notFrozen; err != nil {
		f.notFrozen = nil
		return nil, err
	}
	f.paused = true
	return f.pausedTasks.Pause(ctx, r)
}

func (f *checkpointTasks) Resume(ctx context.Context, r *taskapi.ResumeRequest) (*emptypb.Empty, error) {
	f.begin()
	if err := f.notThawed; err != nil {
		f.notThawed = nil
		return nil, err
	}
	f.paused = false
	return f.pausedTasks.Resume(ctx, r)
}

func (f *checkpointTasks) begin() {
	if during := f.during; during != nil {
		f.during = nil
		during()
	}
}

// serviceWith returns a service with the container c.
func (f *checkpointTasks) serviceWith(t *testing.T, c gpuContainer) *Service {
	t.Helper()
	s, _ := serviceAround(&f.fakeTasks)
	s.TTRPCTaskService = f
	c.hasGPU, c.checkpoints, c.bundle, c.held = true, true, t.TempDir(), probe.Memory{}
	if c.state == unknown {
		c.state = ready
		if f.paused && c.suspendsGPU {
			c.state = suspended
		}
	}
	check(t, os.WriteFile(filepath.Join(c.bundle, gpuinject.RecordName), []byte(`{"mounts":[{"destination":"/usr/local/nvidia"}]}`), 0o600))
	s.put("c", c)
	return s
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
	f.begin()
	f.calls = append(f.calls, "checkpoint")
	f.config, f.other = criuConfig(ctx), criuConfig(context.Background())
	f.ended = errors.Is(f.err, errEnded)
	return &emptypb.Empty{}, f.err
}

var errEnded = errors.New("the container has ended")

func TestCheckpoint(t *testing.T) {
	reap(t)
	exit, err := anypb.New(&runcoptions.CheckpointOptions{Exit: true})
	check(t, err)
	const works = `echo '{"moved":[4711]}'`
	const full = `case "$questions" in *'"resume"'*) echo '{"move_error":"full"}';; *) echo '{"moved":[4711]}';; esac`
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
		{"the driver fails", false, true, `case "$questions" in *'"suspend"'*) echo '{"move_error":"no"}';; *) echo '{"moved":[4711]}';; esac`, nil, nil,
			"resume pause", "cannot suspend the GPUs of container c: no"},
		{"the GPU is full afterwards", false, false, full, nil, nil, "pause checkpoint resume pause",
			"nvidia: the checkpoint was written; the container stays paused: nvidia: cannot resume the GPUs of container c: full"},
	} {
		t.Run(test.name, func(t *testing.T) {
			putProbe(t, test.script)
			f := &checkpointTasks{paused: test.paused, err: test.criu}
			s := f.serviceWith(t, gpuContainer{suspendsGPU: test.suspended})
			image := filepath.Join(t.TempDir(), "image")
			_, err := s.Checkpoint(t.Context(), &taskapi.CheckpointTaskRequest{ID: "c", Path: image, Options: test.options})
			if (err == nil) != (test.err == "") || err != nil && !strings.HasSuffix(err.Error(), test.err) {
				t.Errorf("error %v, want %q", err, test.err)
			}
			if got := strings.Join(f.calls, " "); got != test.calls {
				t.Errorf("calls %q, want %q", got, test.calls)
			}
			if slices.Contains(f.calls, "checkpoint") {
				if want := "external \"mnt[/proc/driver]:/proc/driver\"\n"; f.config != want || f.other != "" {
					t.Errorf("CRIU reads %q, want %q; for another container %q", f.config, want, f.other)
				}
				if _, err := os.Stat(filepath.Join(image, gpuinject.RecordName)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// pausing are the calls that run one after the other. image is where Checkpoint writes.
var pausing = map[string]func(s *Service, image string) error{
	"Pause": func(s *Service, _ string) error {
		_, err := s.Pause(context.Background(), &taskapi.PauseRequest{ID: "c"})
		return err
	},
	"Resume": func(s *Service, _ string) error {
		_, err := s.Resume(context.Background(), &taskapi.ResumeRequest{ID: "c"})
		return err
	},
	"Checkpoint": func(s *Service, image string) error {
		_, err := s.Checkpoint(context.Background(), &taskapi.CheckpointTaskRequest{ID: "c", Path: image})
		return err
	},
}

// waitsForLock waits until the call ends or waits for a lock, and reports whether it waits.
func waitsForLock(name string, done <-chan struct{}) bool {
	for stacks := make([]byte, 1<<20); ; time.Sleep(time.Millisecond) {
		select {
		case <-done:
			return false
		default:
		}
		for stack := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if strings.Contains(stack, "sync.(*Mutex).Lock(") && strings.Contains(stack, "shim.(*Service)."+name+"(") {
				return true
			}
		}
	}
}

func TestPauseResumeAndCheckpointWaitForEachOther(t *testing.T) {
	reap(t)
	putProbe(t, `echo '{"moved":[4711]}'`)
	for first, call := range pausing {
		for second, other := range pausing {
			t.Run(first+" then "+second, func(t *testing.T) {
				image := t.TempDir()
				f := &checkpointTasks{paused: first == "Resume"}
				s := f.serviceWith(t, gpuContainer{})
				done := make(chan struct{})
				f.during = func() {
					go func() {
						defer close(done)
						check(t, other(s, image))
					}()
					if !waitsForLock(second, done) {
						t.Error("it did not wait")
					}
					_, err := s.Kill(t.Context(), &taskapi.KillRequest{ID: "c"}) // which does not wait
					check(t, err)
				}
				check(t, call(s, image))
				<-done
			})
		}
	}
}

// A Resume that waits for a Checkpoint moves back what that has left on the host.
func TestResumeAfterACheckpointThatLeftTheContainerPaused(t *testing.T) {
	reap(t)
	dir := t.TempDir()
	full, resumed := filepath.Join(dir, "full"), filepath.Join(dir, "resumed")
	check(t, os.WriteFile(full, nil, 0o600))
	putProbe(t, fmt.Sprintf(`case "$questions" in *'"resume"'*) if rm %s 2>/dev/null; then echo '{"move_error":"full"}'; exit; fi; : >%s;; esac; echo '{"moved":[4711]}'`, full, resumed))
	f := &checkpointTasks{}
	s := f.serviceWith(t, gpuContainer{})
	done := make(chan struct{})
	f.during = func() {
		go func() {
			defer close(done)
			check(t, pausing["Resume"](s, ""))
		}()
		waitsForLock("Resume", done)
	}
	if err := pausing["Checkpoint"](s, t.TempDir()); err == nil || !strings.Contains(err.Error(), "the container stays paused") {
		t.Error(err)
	}
	<-done
	if _, err := os.Stat(resumed); err != nil || f.paused {
		t.Errorf("GPU memory was not moved back: %v", err)
	}
	c := s.get("c")
	if _, err := os.Stat(filepath.Join(c.bundle, gpuinject.SuspendedName)); err == nil || c.state != ready {
		t.Error("the container is still said to be suspended")
	}
}

// A container that could be neither suspended nor resumed is said to be suspended until a call
// succeeds.
func TestACheckpointAfterOneThatFailed(t *testing.T) {
	reap(t)
	putProbe(t, `echo '{"move_error":"no"}'`)
	f := &checkpointTasks{}
	s := f.serviceWith(t, gpuContainer{})
	for _, fails := range []bool{true, false} {
		if err := pausing["Checkpoint"](s, t.TempDir()); (err != nil) != fails {
			t.Error(err)
		}
		c := s.get("c")
		if _, err := os.Stat(filepath.Join(c.bundle, gpuinject.SuspendedName)); (err == nil) != fails || (c.state == suspended) != fails {
			t.Errorf("suspended: %v, want %v", !fails, fails)
		}
		putProbe(t, `echo '{"moved":[4711]}'`)
	}
}

func TestAContainerIsKilledAndDeletedDuringACheckpoint(t *testing.T) {
	reap(t)
	putProbe(t, `echo '{"moved":[4711]}'`)
	f := &checkpointTasks{err: errEnded}
	s := f.serviceWith(t, gpuContainer{})
	f.during = func() {
		_, err := s.Kill(t.Context(), &taskapi.KillRequest{ID: "c"})
		check(t, err)
		_, err = s.Delete(t.Context(), &taskapi.DeleteRequest{ID: "c"})
		check(t, err)
	}
	if err := pausing["Checkpoint"](s, t.TempDir()); err == nil || !strings.HasSuffix(err.Error(), errEnded.Error()) {
		t.Error(err)
	}
	if s.get("c").state != unknown {
		t.Error("the container is still known")
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
		s.put("c", gpuContainer{state: ready, hasGPU: true})
	}
}

// Without the fixes of runc and CRIU an image would choose what CRIU mounts.
func TestT72CheckpointsAreRefused(t *testing.T) {
	reap(t)
	for _, test := range []struct {
		name, versions string
		allowed        bool
		denied         bool
		want           string
	}{
		{"not allowed", `"runc version 1.5.3","Version: 4.3.1"`, false, true, "policy.allow-checkpoints"},
		{"runc", `"runc version 1.5.2","Version: 4.3.1"`, true, false, "update runc"},
		{"CRIU", `"runc version 1.5.3","Version: 4.3"`, true, false, "update CRIU"},
		{"unknown", `"runc version 1.5.3"`, true, false, "another version"},
	} {
		t.Run(test.name, func(t *testing.T) {
			putVersions(t, test.versions, `echo '{"moved":[4711]}'`)
			f := &checkpointTasks{}
			s := f.serviceWith(t, gpuContainer{})
			c := s.get("c")
			c.checkpoints = test.allowed
			s.update("c", c)
			_, err := s.Checkpoint(t.Context(), &taskapi.CheckpointTaskRequest{ID: "c", Path: t.TempDir()})
			native := errgrpc.ToNative(err)
			if !strings.Contains(fmt.Sprint(err), test.want) || errdefs.IsPermissionDenied(native) != test.denied || errdefs.IsFailedPrecondition(native) == test.denied {
				t.Errorf("%v, want %q", err, test.want)
			}
			if len(f.calls) > 0 {
				t.Errorf("calls %v", f.calls)
			}
		})
	}
}

// A pod, and a container whose configuration does not allow it, is neither written nor restored.
func TestWhoMayHaveCheckpoints(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	reap(t)
	for _, test := range []struct {
		name, config, cgroup string
		versions             string
		written              string // why it is not
		restored             string
	}{
		{"by default", "", "", `"runc version 1.5.3","Version: 4.3.1"`, "policy.allow-checkpoints", "policy.allow-checkpoints is false"},
		{"in Kubernetes", "allow-checkpoints = true", "/kubepods/pod1/c", `"runc version 1.5.3","Version: 4.3.1"`, "outside Kubernetes", "in Kubernetes"},
		{"allowed", "allow-checkpoints = true", "", `"runc version 1.5.3","Version: 4.3.1"`, "", ""},
		{"an old runc", "allow-checkpoints = true", "", `"runc version 1.5.2","Version: 4.3.1"`, "update runc", "update runc"},
	} {
		t.Run(test.name, func(t *testing.T) {
			putVersions(t, test.versions, `echo '{"moved":[4711]}'`)
			dir := simulatedHost(t, admin)
			file := filepath.Join(dir, "config.json")
			text, err := os.ReadFile(file)
			check(t, err)
			check(t, os.WriteFile(file, []byte(strings.Replace(string(text), `"linux": {`, `"linux": {"cgroupsPath": "`+test.cgroup+`", `, 1)), 0o600))
			settings, err := os.ReadFile(os.Getenv(config.EnvFile))
			check(t, err)
			check(t, os.WriteFile(os.Getenv(config.EnvFile), append(settings, "\n[policy]\nkubernetes = \"trust-env\"\n"+test.config+"\n"...), 0o600))

			f := &checkpointTasks{}
			s, _ := serviceAround(&f.fakeTasks)
			s.TTRPCTaskService = f
			_, err = s.Create(t.Context(), &taskapi.CreateTaskRequest{ID: "c", Bundle: dir})
			check(t, err)
			image := t.TempDir()
			_, err = s.Checkpoint(t.Context(), &taskapi.CheckpointTaskRequest{ID: "c", Path: image})
			if (err == nil) != (test.written == "") || !strings.Contains(fmt.Sprint(err), test.written) {
				t.Errorf("written: %v, want %q", err, test.written)
			}
			if err != nil {
				record, err := os.ReadFile(filepath.Join(dir, gpuinject.RecordName))
				check(t, err)
				check(t, os.WriteFile(filepath.Join(image, gpuinject.RecordName), record, 0o600))
			}
			_, err = s.Create(t.Context(), &taskapi.CreateTaskRequest{ID: "d", Bundle: dir, Checkpoint: image})
			if (err == nil) != (test.restored == "") || !strings.Contains(fmt.Sprint(err), test.restored) {
				t.Errorf("restored: %v, want %q", err, test.restored)
			}
		})
	}
}

func TestNoAmbiguousNameIsWrittenForCRIU(t *testing.T) {
	for name, source := range map[string]string{"/a]:b": "/c", "/a": "/b\nc", "/a\"b": "/c"} {
		dir := t.TempDir()
		if _, err := withExternal(t.Context(), dir, map[string]string{name: source}); err == nil {
			t.Errorf("%q, %q: written", name, source)
		}
		if _, err := os.Stat(filepath.Join(dir, "nvidia-criu.conf")); err == nil {
			t.Error("there is a file")
		}
	}
}

// restoreTasks notes what CRIU would mount at /proc/driver.
type restoreTasks struct {
	checkpointTasks
	mask  []os.DirEntry
	start error
	// at is where CRIU mounts the mask, or part of it; over is where it mounts a procfs then.
	at, part, over string
}

func (f *restoreTasks) Start(ctx context.Context, r *taskapi.StartRequest) (*taskapi.StartResponse, error) {
	f.config = criuConfig(ctx)
	_, at, _ := strings.Cut(f.config, "mnt[/proc/driver]:")
	at, _, _ = strings.Cut(at, "\"")
	f.mask, _ = os.ReadDir(at)
	f.begin()
	if f.start != nil {
		return nil, f.start
	}
	if err := unix.Mount(at+f.part, f.at, "", unix.MS_BIND, ""); err != nil {
		return nil, err
	}
	if f.over != "" {
		if err := unix.Mount("proc", f.over, "proc", 0, ""); err != nil {
			return nil, err
		}
	}
	return f.checkpointTasks.Start(ctx, r)
}

// A container that may mount chooses names. CRIU's file may name programs, which CRIU runs as root.
func TestT72NoMountAddsToCRIUsFile(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	dir := t.TempDir()
	for _, name := range []string{"good", "line\nfeed", "a\"quote", "a\\b", "#comment", "a\tb", "a b", "a]:b", "a[b"} {
		at := filepath.Join(dir, name)
		check(t, os.Mkdir(at, 0o700))
		check(t, unix.Mount("tmpfs", at, "tmpfs", 0, ""))
		t.Cleanup(func() { check(t, unix.Unmount(at, unix.MNT_DETACH)) })
	}
	got, err := mountsBelow("self", dir)
	if want := filepath.Join(dir, "good"); err != nil || !slices.Equal(got, []string{want}) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
}

func TestARestoredContainerHasTheMaskWhenItStarts(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	reap(t)
	const moved = `echo '{"moved":[4711]}'`
	forged := fmt.Sprintf("mask: it is not on /proc/driver of process %d", os.Getpid())
	for _, test := range []struct {
		name, script string
		start        error
		at, calls    string
		err          string
		part, over   string
	}{
		{"restored", moved, nil, procmask.Dir, "start", "", "", ""},
		{"CRIU fails", `exit 1`, errors.New("criu failed"), "", "kill", "criu failed", "", ""},
		{"the GPU is full", `echo '{"move_error":"full"}'`, nil, procmask.Dir, "start kill", "nvidia: cannot resume the GPUs of container c: full", "", ""},
		{"a forged checkpoint", moved, nil, "/mnt", "start kill", forged, "", ""},
		{"one with a part of the mask", moved, nil, procmask.Dir, "start kill", forged, "/nvidia", ""},
		{"one that covers the mask", moved, nil, procmask.Dir, "start kill", forged, "", procmask.Dir},
		{"one that covers /proc", moved, nil, procmask.Dir, "start kill", forged, "", "/proc"},
	} {
		t.Run(test.name, func(t *testing.T) {
			putProbe(t, test.script)
			f := &restoreTasks{start: test.start, at: test.at, part: test.part, over: test.over}
			s, _ := serviceAround(&f.fakeTasks)
			s.TTRPCTaskService = f
			mask, err := procmask.New([]procmask.File{{Path: "nvidia/version", Data: []byte("x")}}, "")
			check(t, err)
			bundle := t.TempDir()
			s.put("c", gpuContainer{state: restoring, hasGPU: true, bundle: bundle, restoration: restoration{mask: mask, view: "/nonexistent"}})
			f.during = func() {
				_, err := s.Exec(t.Context(), &taskapi.ExecProcessRequest{ID: "c", ExecID: "e"})
				if !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
					t.Errorf("exec before the mask is seen: %v", err)
				}
			}
			_, err = s.Start(t.Context(), &taskapi.StartRequest{ID: "c"})
			if test.over != "" {
				check(t, unix.Unmount(test.over, unix.MNT_DETACH))
			}
			for unix.Unmount(test.at, unix.MNT_DETACH) == nil {
			}
			if (err == nil) != (test.err == "") || err != nil && !strings.HasSuffix(err.Error(), test.err) {
				t.Errorf("error %v, want %q", err, test.err)
			}
			if got := strings.Join(f.calls, " "); got != test.calls {
				t.Errorf("calls %q, want %q", got, test.calls)
			}
			want := ready
			if test.err != "" {
				want = notRestored
			}
			if got := s.get("c").state; got != want {
				t.Errorf("state %v, want %v", got, want)
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
