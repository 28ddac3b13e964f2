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
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/api/types/task"
	runctask "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/runc"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// pausedTasks is an embedded service with one running container.
type pausedTasks struct {
	fakeTasks
	// pidsErr fails the next Pids.
	pidsErr error
	// notFrozen is how many calls of Pause fail.
	notFrozen int
	// onPause is called by Pause.
	onPause func()
}

func (f *pausedTasks) State(context.Context, *taskapi.StateRequest) (*taskapi.StateResponse, error) {
	return &taskapi.StateResponse{Status: task.Status_RUNNING}, nil
}

func (f *pausedTasks) Pids(context.Context, *taskapi.PidsRequest) (*taskapi.PidsResponse, error) {
	err := f.pidsErr
	f.pidsErr = nil
	return &taskapi.PidsResponse{Processes: []*task.ProcessInfo{{Pid: uint32(os.Getpid())}}}, err
}

func (f *pausedTasks) Pause(context.Context, *taskapi.PauseRequest) (*emptypb.Empty, error) {
	f.calls = append(f.calls, "pause")
	if f.onPause != nil {
		f.onPause()
	}
	if f.notFrozen--; f.notFrozen >= 0 {
		return nil, errors.New("unable to freeze")
	}
	return &emptypb.Empty{}, nil
}

func (f *pausedTasks) Resume(context.Context, *taskapi.ResumeRequest) (*emptypb.Empty, error) {
	f.calls = append(f.calls, "resume")
	return &emptypb.Empty{}, nil
}

// endingTasks is an embedded service with a container one of whose processes ends after it was
// listed. Its PID then belongs to a process outside.
type endingTasks struct{ pausedTasks }

func (f *endingTasks) Pids(ctx context.Context, r *taskapi.PidsRequest) (*taskapi.PidsResponse, error) {
	resp, err := f.pausedTasks.Pids(ctx, r)
	if f.calls == nil {
		resp.Processes = append(resp.Processes, &task.ProcessInfo{Pid: uint32(os.Getppid())})
	}
	f.calls = append(f.calls, "pids")
	return resp, err
}

func TestAProcessOutsideTheContainerIsNotSuspended(t *testing.T) {
	f := &endingTasks{}
	s, _ := serviceAround(&f.fakeTasks)
	s.TTRPCTaskService = f
	list, err := s.processes(t.Context(), "c")
	if err != nil || len(list) != 1 || list[0].PID != os.Getpid() {
		t.Errorf("%v, %v; want process %d", list, err, os.Getpid())
	}
}

// It would keep its GPU, or stay suspended, without an error.
func TestAProcessThatCannotBeReadIsAnError(t *testing.T) {
	f := &pausedTasks{}
	s, _ := serviceAround(&f.fakeTasks)
	s.TTRPCTaskService = f
	var list []procfs.ID
	var err error
	testtree.LimitDescriptors(t, 0, func() { list, err = s.processes(t.Context(), "c") })
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("%v, %v", list, err)
	}
}

func TestPauseFreezesOnlyWhatTheProbeHasSuspended(t *testing.T) {
	reap(t)
	limit := moveLimit
	defer func() { moveLimit = limit }()
	for _, test := range []struct {
		name, script string
		end          string // of the error
		calls        []string
	}{
		{"suspended", `echo '{"moved":[4711]}'`, "", []string{"pause"}},
		{"a probe that does not know the question", `echo '{}'`, ": nvidia-shimctl is of another version than the shim; undoing it failed too, so pause the container again or delete it: nvidia: cannot resume the GPUs of container c: nvidia-shimctl is of another version than the shim", nil},
		{"a failure that is undone", `case "$questions" in *'"suspend"'*) echo '{"move_error":"no"}';; *) echo '{"moved":[4711]}';; esac`, "nvidia: cannot suspend the GPUs of container c: no", nil},
		{"a probe that hangs", `case "$questions" in *'"suspend"'*) exec sleep 60;; *) echo '{"moved":[4711]}';; esac`, "nvidia: cannot suspend the GPUs of container c: nvidia-shimctl did not answer within 2.001s", nil},
		{"a probe that dies", `kill -9 $$`, "cannot resume the GPUs of container c: nvidia-shimctl ended with status 137 and no message", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			putProbe(t, test.script)
			moveLimit = limit
			if strings.Contains(test.script, "sleep") {
				moveLimit = time.Millisecond // and what Ask adds
			}
			f := &pausedTasks{}
			s, _ := serviceAround(&f.fakeTasks)
			s.TTRPCTaskService = f
			s.put("c", gpuContainer{state: ready, suspendsGPU: true, bundle: t.TempDir()})
			_, err := s.Pause(t.Context(), &taskapi.PauseRequest{ID: "c"})
			if (err == nil) != (test.end == "") || err != nil && !strings.HasSuffix(err.Error(), test.end) {
				t.Errorf("error %v, want %q", err, test.end)
			}
			if !slices.Equal(f.calls, test.calls) {
				t.Errorf("calls %q, want %q", f.calls, test.calls)
			}
		})
	}
}

// The driver needs running processes, but a container that is thawed for nothing uses a GPU that it
// does not have.
func TestResumeThawsWhenTheProbeIsPrepared(t *testing.T) {
	reap(t)
	for _, test := range []struct {
		name  string
		put   func(*testing.T, string)
		calls string
	}{
		{"it fails before", putUnprepared, ""},
		{"it fails afterwards", putProbe, "resume pause"},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.put(t, `case "$questions" in *'"resume"'*) echo '{"move_error":"full"}';; *) echo '{"moved":[4711]}';; esac`)
			f := &checkpointTasks{paused: true}
			s := f.serviceWith(t, gpuContainer{suspendsGPU: true})
			_, err := s.Resume(t.Context(), &taskapi.ResumeRequest{ID: "c"})
			if err == nil || !strings.HasSuffix(err.Error(), "cannot resume the GPUs of container c: full") || strings.Join(f.calls, " ") != test.calls || !f.paused {
				t.Errorf("%v, calls %q, want %q", err, f.calls, test.calls)
			}
		})
	}
}

// replacedTasks is an embedded service whose container is deleted, and another one created with its
// id, at a call.
type replacedTasks struct {
	checkpointTasks
	at      string
	replace func()
}

func (f *replacedTasks) call(name string) {
	if name == f.at && f.replace != nil {
		f.replace()
		f.replace = nil
	}
}

func (f *replacedTasks) Pids(ctx context.Context, r *taskapi.PidsRequest) (*taskapi.PidsResponse, error) {
	f.call("pids")
	return f.checkpointTasks.Pids(ctx, r)
}

func (f *replacedTasks) Pause(ctx context.Context, r *taskapi.PauseRequest) (*emptypb.Empty, error) {
	f.call("pause")
	return f.checkpointTasks.Pause(ctx, r)
}

func (f *replacedTasks) Resume(ctx context.Context, r *taskapi.ResumeRequest) (*emptypb.Empty, error) {
	f.call("resume")
	return f.checkpointTasks.Resume(ctx, r)
}

func TestALaterContainerOfTheIDIsNotChanged(t *testing.T) {
	reap(t)
	putProbe(t, `echo '{"moved":[4711],"memory":{"4711":{"GPU-a":1}}}'`)
	for _, at := range []string{"pids", "pause", "resume"} {
		t.Run(at, func(t *testing.T) {
			f := &replacedTasks{at: at}
			f.paused = at == "resume"
			s := f.serviceWith(t, gpuContainer{suspendsGPU: true})
			s.TTRPCTaskService = f
			old := s.get("c")
			f.replace = func() {
				s.remove("c")
				s.put("c", gpuContainer{state: ready, bundle: old.bundle, rootfs: "new"})
			}
			if f.paused {
				_, _ = s.Resume(t.Context(), &taskapi.ResumeRequest{ID: "c"})
			} else {
				_, _ = s.Pause(t.Context(), &taskapi.PauseRequest{ID: "c"})
			}
			if c := s.get("c"); c.rootfs != "new" || c.suspendsGPU || f.replace != nil {
				t.Errorf("%+v", c)
			}
			if _, err := os.Stat(filepath.Join(old.bundle, gpuinject.SuspendedName)); err == nil {
				t.Error("the later container is shown as suspended")
			}
			if at == "pids" && slices.Contains(f.calls, "pause") {
				t.Errorf("the later container was frozen: %q", f.calls)
			}
		})
	}
}

func TestAProcessUsesAGPUByTheNumberOfItsNode(t *testing.T) {
	const major = 0xfff // no driver has it
	dir := t.TempDir()
	uses := func(limit int, ctx context.Context) (bool, error) {
		return usesGPU(ctx, os.Getpid(), []uint32{major}, &limit)
	}
	named, err := os.Create(filepath.Join(dir, "nvidia-uvm"))
	check(t, err)
	defer named.Close()
	if got, err := uses(1000, t.Context()); got || err != nil {
		t.Errorf("a file with the name of the node: %v, %v", got, err)
	}
	if _, err := uses(2, t.Context()); err == nil || !strings.Contains(err.Error(), "open files") {
		t.Errorf("too many descriptors: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := uses(1000, ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a request that was cancelled: %v", err)
	}
	name := filepath.Join(dir, "renamed")
	check(t, unix.Mknod(name, unix.S_IFCHR|0o600, int(unix.Mkdev(major, 0))))
	node, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	check(t, err)
	defer unix.Close(node)
	if got, err := uses(1000, t.Context()); !got || err != nil {
		t.Errorf("a renamed node: %v, %v", got, err)
	}
	testtree.LimitDescriptors(t, 0, func() {
		if _, err := uses(1000, t.Context()); !errors.Is(err, unix.EMFILE) {
			t.Errorf("a process that cannot be read: %v", err)
		}
	})
}

// On a busy host runc gives up freezing before each process has run.
func TestPauseTriesAgainToFreeze(t *testing.T) {
	reap(t)
	putProbe(t, `echo '{"moved":[4711]}'`)
	for fails, want := range map[int]string{maxRounds - 1: "", maxRounds: "unable to freeze"} {
		f := &pausedTasks{notFrozen: fails}
		s, _ := serviceAround(&f.fakeTasks)
		s.TTRPCTaskService = f
		s.put("c", gpuContainer{state: ready, suspendsGPU: true, bundle: t.TempDir()})
		_, err := s.Pause(t.Context(), &taskapi.PauseRequest{ID: "c"})
		if (err == nil) != (want == "") || err != nil && !strings.HasSuffix(err.Error(), want) || len(f.calls) != maxRounds {
			t.Errorf("%d failures: %v after %q", fails, err, f.calls)
		}
	}
	f := &pausedTasks{notFrozen: maxRounds}
	s, _ := serviceAround(&f.fakeTasks)
	s.TTRPCTaskService = f
	s.put("c", gpuContainer{state: ready, suspendsGPU: true, bundle: t.TempDir()})
	ctx, cancel := context.WithCancel(t.Context())
	f.onPause = cancel
	if _, err := s.Pause(ctx, &taskapi.PauseRequest{ID: "c"}); err == nil || len(f.calls) != 1 {
		t.Errorf("a request that was cancelled: %v after %q", err, f.calls)
	}
}

// A container that was frozen with its GPU memory on the host continues with that memory.
func TestAPauseThatFailsAfterTheFreezeIsUndone(t *testing.T) {
	reap(t)
	resumed := filepath.Join(t.TempDir(), "resumed")
	putProbe(t, fmt.Sprintf(`case "$questions" in *'"resume"'*) : >%s;; esac; echo '{"moved":[4711]}'`, resumed))
	f := &checkpointTasks{notThawed: errors.New("not thawed")}
	s := f.serviceWith(t, gpuContainer{suspendsGPU: true})
	f.during = func() { f.pidsErr = errors.New("no cgroup") }
	_, err := s.Pause(t.Context(), &taskapi.PauseRequest{ID: "c"})
	if want := "no cgroup"; err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
	if _, err := os.Stat(resumed); err != nil || f.paused {
		t.Errorf("the container does not run: paused %v, %v", f.paused, err)
	}
}

// runc is killed when the time of a request is up, possibly after it has done its work.
func TestWhatRuncDidThoughItFailedIsUndone(t *testing.T) {
	reap(t)
	putProbe(t, `echo '{"moved":[4711]}'`)
	for _, test := range []struct {
		paused bool
		call   func(s *Service, ctx context.Context) error
		fails  bool   // Pause is repeated
		want   string // the call of runc
	}{
		{false, func(s *Service, ctx context.Context) error {
			_, err := s.Pause(ctx, &taskapi.PauseRequest{ID: "c"})
			return err
		}, false, "--root /r/ns --log-format json resume c"},
		{true, func(s *Service, ctx context.Context) error {
			_, err := s.Resume(ctx, &taskapi.ResumeRequest{ID: "c"})
			return err
		}, true, "--root /r/ns --log-format json pause c"},
	} {
		failed := errors.New("killed")
		f := &checkpointTasks{paused: test.paused, notFrozen: failed, notThawed: failed}
		s := f.serviceWith(t, gpuContainer{suspendsGPU: true})
		c := s.get("c")
		program := filepath.Join(c.bundle, "runc")
		check(t, os.WriteFile(program, []byte("#!/bin/sh\necho \"$*\" >>$0.calls\n"), 0o700))
		check(t, runctask.WriteOptions(c.bundle, &runcoptions.Options{BinaryName: program, Root: "/r"}))
		if err := test.call(s, namespaces.WithNamespace(t.Context(), "ns")); (err != nil) != test.fails || err != nil && !strings.HasSuffix(err.Error(), failed.Error()) {
			t.Errorf("paused %v: error %v", test.paused, err)
		}
		calls, err := os.ReadFile(program + ".calls")
		if got := strings.TrimSpace(string(calls)); got != test.want {
			t.Errorf("runc was called %q, %v; want %q", got, err, test.want)
		}
	}
}
