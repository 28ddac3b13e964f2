package shim

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	eventsapi "github.com/containerd/containerd/api/events"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

var check = testtree.Check

// fakeTasks is an embedded service whose containers are this process, so that no mask can be
// attached to them: it would be the host's.
type fakeTasks struct {
	taskapi.TTRPCTaskService
	mu        sync.Mutex // of calls, which goroutines of the service make as well
	calls     []string
	createErr error
	deleteErr error
	// pid is that of the container's process, if not this one.
	pid int
	// deletePid is the pid that Delete returns. It is 0 if no process has run.
	deletePid uint32
	// onCreate is called by Create.
	onCreate func(*taskapi.CreateTaskRequest)
}

func (f *fakeTasks) call(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, name)
}

// called returns the calls so far.
func (f *fakeTasks) called() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

func (f *fakeTasks) Create(_ context.Context, r *taskapi.CreateTaskRequest) (*taskapi.CreateTaskResponse, error) {
	f.call("create")
	if f.onCreate != nil {
		f.onCreate(r)
	}
	if f.createErr != nil {
		return nil, f.createErr
	}
	return &taskapi.CreateTaskResponse{Pid: uint32(cmp.Or(f.pid, os.Getpid()))}, nil
}

func (f *fakeTasks) Start(context.Context, *taskapi.StartRequest) (*taskapi.StartResponse, error) {
	f.call("start")
	return &taskapi.StartResponse{Pid: uint32(os.Getpid())}, nil
}

func (f *fakeTasks) Exec(context.Context, *taskapi.ExecProcessRequest) (*emptypb.Empty, error) {
	f.call("exec")
	return &emptypb.Empty{}, nil
}

func (f *fakeTasks) Kill(context.Context, *taskapi.KillRequest) (*emptypb.Empty, error) {
	f.call("kill")
	return &emptypb.Empty{}, nil
}

func (f *fakeTasks) Wait(context.Context, *taskapi.WaitRequest) (*taskapi.WaitResponse, error) {
	return &taskapi.WaitResponse{}, nil
}

func (f *fakeTasks) Delete(context.Context, *taskapi.DeleteRequest) (*taskapi.DeleteResponse, error) {
	f.call("delete")
	return &taskapi.DeleteResponse{Pid: f.deletePid}, f.deleteErr
}

func (f *fakeTasks) Shutdown(context.Context, *taskapi.ShutdownRequest) (*emptypb.Empty, error) {
	f.call("shutdown")
	return &emptypb.Empty{}, nil
}

// serviceAround returns a Service with f embedded.
func serviceAround(f *fakeTasks) (*Service, *publisher) {
	p := &publisher{}
	return newService(f, &taskEvents{Publisher: p}), p
}

// put registers a container.
func (s *Service) put(id string, c gpuContainer) {
	now, _ := s.reserve(id)
	c.generation = now.generation
	s.update(id, c)
}

// publisher records what is published.
type publisher struct{ published []events.Event }

func (p *publisher) Publish(_ context.Context, _ string, e events.Event) error {
	p.published = append(p.published, e)
	return nil
}

func (p *publisher) Close() error { return nil }

// inOwnMounts runs the calling test in a process with its own mount namespace, so that its mounts
// are never the host's. It reports whether this is that process.
func inOwnMounts(t *testing.T) bool {
	t.Helper()
	const inside = "SHIM_TEST_INSIDE"
	if os.Getenv(inside) != "" {
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"=1")
	// The os package makes the mounts of the new namespace private.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// simulatedHost prepares a host with a driver and the bundle of a container that asks for
// a GPU. privileges are masked and admin.
func simulatedHost(t *testing.T, privileges string) (bundle string) {
	t.Helper()
	d := testtree.NewHost(t, 1)
	t.Setenv(config.EnvFile, d.Config)
	t.Cleanup(func() {
		_ = unix.Unmount(filepath.Join(d.State, "view"), unix.MNT_DETACH)
	})
	return gpuBundle(t, privileges)
}

// The bounding sets of a container that gets the mask, and of one that does not.
const masked, admin = `[]`, `["CAP_SYS_ADMIN"]`

func gpuBundle(t *testing.T, privileges string) string {
	t.Helper()
	dir := plainBundle(t, `{"root": {"path": "rootfs"}, "process": {"env": ["NVIDIA_VISIBLE_DEVICES=0"], "capabilities": {"bounding": `+privileges+`}},
		"mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
		"linux": {"namespaces": [{"type": "mount"}]}}`)
	check(t, os.MkdirAll(filepath.Join(dir, "rootfs"), 0o755))
	return dir
}

// Invariant I8.
func TestAContainerWithoutItsMaskIsNeverStarted(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	f := &fakeTasks{deleteErr: errors.New("runc is gone")}
	dir := simulatedHost(t, masked)
	s, _ := serviceAround(f)
	_, err := s.Create(t.Context(), &taskapi.CreateTaskRequest{ID: "c", Bundle: dir})
	if err == nil || !strings.Contains(err.Error(), "mount namespace of the host") {
		t.Fatalf("create: %v", err)
	}
	_, err = s.Start(t.Context(), &taskapi.StartRequest{ID: "c"})
	if !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
		t.Errorf("start: %v", err)
	}
	_, err = s.Exec(t.Context(), &taskapi.ExecProcessRequest{ID: "c", ExecID: "e"})
	if !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
		t.Errorf("exec: %v", err)
	}
	_, err = s.Start(t.Context(), &taskapi.StartRequest{ID: "c", ExecID: "e"})
	if !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
		t.Errorf("start of an exec: %v", err)
	}
	if slices.Contains(f.calls, "start") || slices.Contains(f.calls, "exec") {
		t.Errorf("the container or a process in it was started: %v", f.calls)
	}
	// It can be deleted later, and the id is free then.
	f.deleteErr = nil
	if _, err := s.Delete(t.Context(), &taskapi.DeleteRequest{ID: "c"}); err != nil || s.get("c").state != unknown {
		t.Errorf("delete: %v, the id is in use", err)
	}
}

func TestAContainerWhoseMaskFailedIsDestroyed(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	f := &fakeTasks{}
	s, _ := serviceAround(f)
	_, err := s.Create(t.Context(), &taskapi.CreateTaskRequest{ID: "c", Bundle: simulatedHost(t, masked)})
	if err == nil || !strings.Contains(err.Error(), "mount namespace of the host") {
		t.Error(err)
	}
	if want := []string{"create", "kill", "delete"}; !slices.Equal(f.calls, want) || s.get("c").state != unknown {
		t.Errorf("calls %v, want %v and a free id", f.calls, want)
	}
}

// As with the stock shim, Create succeeds and the container is stopped.
func TestAContainerWhoseProcessHasEndedIsNotStarted(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	process := exec.Command("/bin/true")
	check(t, process.Run())
	f := &fakeTasks{pid: process.Process.Pid}
	s, _ := serviceAround(f)
	if _, err := s.Create(t.Context(), &taskapi.CreateTaskRequest{ID: "c", Bundle: simulatedHost(t, masked)}); err != nil {
		t.Fatal(err)
	}
	_, err := s.Start(t.Context(), &taskapi.StartRequest{ID: "c"})
	if !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) || !slices.Equal(f.calls, []string{"create"}) {
		t.Errorf("start: %v, calls %v", err, f.calls)
	}
	if _, err := s.Delete(t.Context(), &taskapi.DeleteRequest{ID: "c"}); err != nil || s.get("c").state != unknown {
		t.Errorf("delete: %v, the id is in use", err)
	}
}

func TestT46ACheckpointBringsNoGPU(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	f := &fakeTasks{}
	s, _ := serviceAround(f)
	r := &taskapi.CreateTaskRequest{ID: "c", Bundle: simulatedHost(t, masked), Checkpoint: "/checkpoint"}
	_, err := s.Create(t.Context(), r)
	if !errdefs.IsPermissionDenied(errgrpc.ToNative(err)) || len(f.calls) > 0 || s.get("c").state != unknown {
		t.Errorf("error %v, calls %v, the id is free: %v", err, f.calls, s.get("c").state == unknown)
	}
	// Neither is one that has nodes of the driver without asking.
	r = &taskapi.CreateTaskRequest{ID: "m", Checkpoint: "/checkpoint", Bundle: plainBundle(t, `{"linux": {"namespaces": [{"type": "mount"}],
		"devices": [{"path": "/dev/nvidiactl", "type": "c", "major": 195, "minor": 255}]}, "mounts": [{"destination": "/proc", "type": "proc"}]}`)}
	if _, err := s.Create(t.Context(), r); !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) || len(f.calls) > 0 {
		t.Errorf("error %v, calls %v", err, f.calls)
	}
	// A container that asks for nothing is restored.
	r = &taskapi.CreateTaskRequest{ID: "d", Bundle: plainBundle(t, "{}"), Checkpoint: "/checkpoint"}
	if _, err := s.Create(t.Context(), r); err != nil {
		t.Error(err)
	}
}

func TestASecondContainerOfTheSameIDDoesNotDisturbTheFirst(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	f := &fakeTasks{}
	dir := simulatedHost(t, masked)
	s, _ := serviceAround(f)
	s.put("c", gpuContainer{state: ready})
	_, err := s.Create(t.Context(), &taskapi.CreateTaskRequest{ID: "c", Bundle: dir})
	if !errdefs.IsAlreadyExists(errgrpc.ToNative(err)) || len(f.calls) > 0 {
		t.Errorf("error %v, calls %v", err, f.calls)
	}
	if _, err := s.Start(t.Context(), &taskapi.StartRequest{ID: "c"}); err != nil {
		t.Errorf("the first container: %v", err)
	}
}

// The embedded service publishes its events in another goroutine, maybe after Create has returned.
func TestTheCreateEventHasTheMountsOfTheRootFileSystem(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	f := &fakeTasks{}
	dir := simulatedHost(t, admin)
	s, p := serviceAround(f)
	image := filepath.Join(t.TempDir(), "image")
	check(t, os.Mkdir(image, 0o755))
	mounts := []*types.Mount{{Type: "bind", Source: image, Options: []string{"rbind", "rw"}}}
	r := &taskapi.CreateTaskRequest{ID: "c", Bundle: dir, Rootfs: mounts}
	f.onCreate = func(r *taskapi.CreateTaskRequest) {
		if r.Rootfs != nil {
			t.Error("the embedded service would mount the root file system again")
		}
	}
	if _, err := s.Create(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	check(t, s.events.Publish(t.Context(), "/tasks/create", &eventsapi.TaskCreate{ContainerID: "c"}))
	if e := p.published[0].(*eventsapi.TaskCreate); len(e.Rootfs) != 1 || e.Rootfs[0].Source != image {
		t.Errorf("the event has the mounts %v", e.Rootfs)
	}
	if _, err := s.Delete(t.Context(), &taskapi.DeleteRequest{ID: "c"}); err != nil {
		t.Fatal(err)
	}

	// Without a container there is no event.
	f.createErr = errors.New("runc create failed")
	r.Rootfs, r.Bundle = mounts, gpuBundle(t, admin)
	if _, err := s.Create(t.Context(), r); err == nil {
		t.Fatal("created")
	}
	s.events.rootfs.Range(func(id, _ any) bool { t.Errorf("mounts of %v are kept", id); return true })
	if s.get("c").state != unknown {
		t.Error("the id of the failed container is in use")
	}
}

// The embedded service writes exit.json into the bundle after it has reported the exit, and before
// it publishes the event. containerd removes the bundle when Delete has returned.
func TestDeleteWaitsForTheExitEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeTasks{deletePid: 1}
		s, _ := serviceAround(f)
		create := func() {
			t.Helper()
			_, err := s.createMounted(t.Context(), &taskapi.CreateTaskRequest{ID: "c"}, false)
			check(t, err)
		}
		remove := func() time.Duration {
			t.Helper()
			start := time.Now()
			_, err := s.Delete(t.Context(), &taskapi.DeleteRequest{ID: "c"})
			check(t, err)
			return time.Since(start)
		}
		exit := func(id string) {
			check(t, s.events.Publish(t.Context(), "/tasks/exit", &eventsapi.TaskExit{ContainerID: "c", ID: id}))
		}

		create()
		var publishing sync.WaitGroup
		publishing.Go(func() {
			time.Sleep(exitLimit / 4)
			exit("exec")
			time.Sleep(exitLimit / 4)
			exit("c")
		})
		if took := remove(); took != exitLimit/2 {
			t.Errorf("the event came after %v, Delete returned after %v", exitLimit/2, took)
		}
		publishing.Wait()
		create()
		exit("c")
		if took := remove(); took != 0 {
			t.Errorf("Delete took %v although the event had been published", took)
		}
		create()
		if took := remove(); took != exitLimit {
			t.Errorf("without an event, Delete returned after %v", took)
		}
		if f.deletePid = 0; remove() != 0 {
			t.Error("Delete waited for a process that has not run")
		}

		exit("c")
		f.createErr = errors.New("runc create failed")
		if _, err := s.createMounted(t.Context(), &taskapi.CreateTaskRequest{ID: "c"}, false); err == nil {
			t.Fatal("created")
		}
		s.events.exits.Range(func(id, _ any) bool { t.Errorf("%v is kept", id); return true })
	})
}

// An error would be final: the embedded service no longer knows the container.
func TestADeleteUnmountsARootFileSystemThatIsInUse(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	dir := simulatedHost(t, admin)
	s, _ := serviceAround(&fakeTasks{})
	mounts := []*types.Mount{{Type: "tmpfs", Source: "tmpfs"}}
	_, err := s.Create(t.Context(), &taskapi.CreateTaskRequest{ID: "c", Bundle: dir, Rootfs: mounts})
	check(t, err)
	inUse, err := os.Create(filepath.Join(dir, "rootfs/file"))
	check(t, err)
	defer inUse.Close()
	if _, err := s.Delete(t.Context(), &taskapi.DeleteRequest{ID: "c"}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(inUse.Name()); err == nil || s.get("c").state != unknown {
		t.Error("it is still mounted, or the id is in use")
	}
}

// plainBundle returns the bundle of a container without a GPU request.
func plainBundle(t *testing.T, config string) string {
	t.Helper()
	dir := t.TempDir()
	check(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600))
	check(t, os.MkdirAll(filepath.Join(dir, "rootfs"), 0o755))
	return dir
}

func TestCreateOpensTheConfigurationOnce(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	for name, dir := range map[string]string{"with a GPU": simulatedHost(t, admin), "without a GPU": plainBundle(t, "{}")} {
		fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
		check(t, err)
		defer unix.Close(fd)
		if _, err := unix.InotifyAddWatch(fd, filepath.Join(dir, "config.json"), unix.IN_OPEN|unix.IN_CLOSE); err != nil {
			t.Fatal(err)
		}
		s, _ := serviceAround(&fakeTasks{})
		if _, err := s.Create(t.Context(), &taskapi.CreateTaskRequest{ID: "c", Bundle: dir}); err != nil {
			t.Fatal(err)
		}
		events, opens := make([]byte, 4096), 0
		n, _ := unix.Read(fd, events)
		for ; n >= unix.SizeofInotifyEvent; n -= unix.SizeofInotifyEvent {
			if binary.NativeEndian.Uint32(events[n-12:])&unix.IN_OPEN != 0 {
				opens++
			}
		}
		if opens != 1 {
			t.Errorf("%s: config.json was opened %d times", name, opens)
		}
	}
}

// containerd sends Shutdown once, after the Delete of a pod's sandbox, maybe while a container of the
// pod is created.
func TestShutdownDuringACreate(t *testing.T) {
	for _, tc := range []struct {
		shutdown      string
		err           error
		during, after []string
	}{
		{"sandbox", errors.New("runc create failed"), []string{"create"}, []string{"create", "shutdown"}},
		{"sandbox", nil, []string{"create"}, []string{"create", "shutdown"}},
		{"created", nil, []string{"create", "kill", "delete"}, []string{"create", "kill", "delete", "shutdown"}},
	} {
		dir := plainBundle(t, "{}")
		synctest.Test(t, func(t *testing.T) {
			f := &fakeTasks{createErr: tc.err}
			s, _ := serviceAround(f)
			f.onCreate = func(*taskapi.CreateTaskRequest) {
				if _, err := s.Shutdown(t.Context(), &taskapi.ShutdownRequest{ID: tc.shutdown}); err != nil {
					t.Error(err)
				}
			}
			if _, err := s.Create(t.Context(), &taskapi.CreateTaskRequest{ID: "created", Bundle: dir}); (err == nil) != (tc.err == nil && tc.shutdown != "created") {
				t.Fatal(err)
			}
			// containerd gets the response before the shim ends.
			if synctest.Wait(); !slices.Equal(f.called(), tc.during) {
				t.Errorf("Shutdown of %q: calls %v, want %v", tc.shutdown, f.called(), tc.during)
			}
			time.Sleep(2 * shutdownDelay)
			if synctest.Wait(); !slices.Equal(f.called(), tc.after) {
				t.Errorf("Shutdown of %q: calls %v after Create, want %v", tc.shutdown, f.called(), tc.after)
			}
		})
	}
}

// containerd deletes a container whose creation it no longer waits for, or ends its shim, and does
// so once: what is created afterwards would stay.
func TestACreationThatIsGivenUpLeavesNothing(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	gpu := simulatedHost(t, admin)
	notFound := errgrpc.ToGRPCf(errdefs.ErrNotFound, "container not created")
	for name, giveUp := range map[string]func(*Service, context.CancelFunc) error{
		"the connection is closed": func(_ *Service, cancel context.CancelFunc) error { cancel(); return nil },
		"Delete": func(s *Service, _ context.CancelFunc) error {
			s.TTRPCTaskService.(*fakeTasks).deleteErr = notFound
			_, err := s.Delete(t.Context(), &taskapi.DeleteRequest{ID: "c"})
			s.TTRPCTaskService.(*fakeTasks).deleteErr = nil
			if !errdefs.IsNotFound(errgrpc.ToNative(err)) {
				return fmt.Errorf("delete: %w", err)
			}
			return nil
		},
		"Shutdown": func(s *Service, _ context.CancelFunc) error {
			_, err := s.Shutdown(t.Context(), &taskapi.ShutdownRequest{ID: "c"})
			return err
		},
	} {
		for _, bundle := range []string{gpu, plainBundle(t, "{}")} {
			ctx, cancel := context.WithCancel(t.Context())
			f := &fakeTasks{}
			s, _ := serviceAround(f)
			f.onCreate = func(*taskapi.CreateTaskRequest) {
				check(t, giveUp(s, cancel))
				f.calls = nil
			}
			_, err := s.Create(ctx, &taskapi.CreateTaskRequest{ID: "c", Bundle: bundle})
			if want := []string{"kill", "delete"}; err == nil || !slices.Equal(f.calls, want) || s.get("c").state != unknown {
				t.Errorf("%s: %v, calls %v, want %v and a free id", name, err, f.calls, want)
			}
			cancel()
		}
	}
}

func TestTheCgroupOfACreationThatIsGivenUpIsRemoved(t *testing.T) {
	was := cgroupRoot
	defer func() { cgroupRoot = was }()
	cgroupRoot = t.TempDir()
	cpu, memory := filepath.Join(cgroupRoot, "cpu/pod/c"), filepath.Join(cgroupRoot, "memory/pod/c")
	check(t, os.MkdirAll(cpu, 0o755))
	check(t, os.MkdirAll(filepath.Join(memory, "child"), 0o755))
	f := &fakeTasks{createErr: errors.New("runc was killed")}
	s, _ := serviceAround(f)
	ctx, cancel := context.WithCancel(t.Context())
	f.onCreate = func(*taskapi.CreateTaskRequest) { cancel() }
	_, err := s.Create(ctx, &taskapi.CreateTaskRequest{ID: "c", Bundle: plainBundle(t, `{"linux": {"cgroupsPath": "/pod/c"}}`)})
	if _, left := os.Stat(cpu); err == nil || left == nil {
		t.Errorf("%v; the cgroup is still there", err)
	}
	if _, err := os.Stat(memory); err != nil {
		t.Errorf("a cgroup that is used: %v", err)
	}
}

func TestADeferredShutdownWaitsForTheLastCreateAndTheLastDelete(t *testing.T) {
	dir := plainBundle(t, "{}")
	synctest.Test(t, func(t *testing.T) {
		f := &fakeTasks{}
		s, _ := serviceAround(f)
		create := func() {
			t.Helper()
			_, err := s.Create(t.Context(), &taskapi.CreateTaskRequest{ID: "c", Bundle: dir})
			check(t, err)
		}
		f.onCreate = func(*taskapi.CreateTaskRequest) {
			_, err := s.Shutdown(t.Context(), &taskapi.ShutdownRequest{ID: "sandbox"})
			check(t, err)
		}
		create()
		f.onCreate = func(*taskapi.CreateTaskRequest) { time.Sleep(2 * shutdownDelay) }
		create()
		if want := []string{"create", "create"}; !slices.Equal(f.called(), want) {
			t.Errorf("during the second Create: calls %v, want %v", f.called(), want)
		}
		time.Sleep(2 * shutdownDelay)
		synctest.Wait()
		if want := []string{"create", "create", "shutdown"}; !slices.Equal(f.called(), want) {
			t.Errorf("after the second Create: calls %v, want %v", f.called(), want)
		}
		// The embedded service ignored it if a container was left.
		_, err := s.Delete(t.Context(), &taskapi.DeleteRequest{ID: "c"})
		check(t, err)
		time.Sleep(2 * shutdownDelay)
		synctest.Wait()
		if want := []string{"create", "create", "shutdown", "delete", "shutdown"}; !slices.Equal(f.called(), want) {
			t.Errorf("after Delete: calls %v, want %v", f.called(), want)
		}
	})
}

// Docker's daemon.json and nerdctl send a type and at most a path. The cgroup path shows whether
// systemd manages the cgroup.
func TestTheCgroupDriverFollowsTheCgroupPath(t *testing.T) {
	none := &anypb.Any{TypeUrl: "runtimeoptions.v1.Options", Value: marshal(t, &runtimeoptions.Options{TypeUrl: "io.containerd.nvidia.v2.Options"})}
	set := &anypb.Any{TypeUrl: "containerd.runc.v1.Options", Value: marshal(t, &runcoptions.Options{Root: "/r", SystemdCgroup: true})}
	for _, tc := range []struct {
		config  string
		message *anypb.Any
		want    *runcoptions.Options
	}{
		{`{"linux":{"cgroupsPath":"system.slice:docker:abc"}}`, nil, &runcoptions.Options{SystemdCgroup: true}},
		{`{"linux":{"cgroupsPath":"user.slice:nerdctl:abc"}}`, none, &runcoptions.Options{SystemdCgroup: true}},
		{`{"linux":{"cgroupsPath":"/docker/abc"}}`, none, &runcoptions.Options{}},
		{`{"linux":{"cgroupsPath":":cri-containerd:abc"}}`, nil, &runcoptions.Options{SystemdCgroup: true}},
		{`{"linux":{"cgroupsPath":"a:b:c"}}`, nil, &runcoptions.Options{}},
		{`{"linux":{"cgroupsPath":"a.slice:b"}}`, nil, &runcoptions.Options{}},
		{`{"linux":{"cgroupsPath":"a.slice:b:c:d"}}`, nil, &runcoptions.Options{}},
		{`{"linux":{"cgroupsPath":"/docker/abc"}}`, set, &runcoptions.Options{Root: "/r"}},
		{`{"linux":{"cgroupsPath":"system.slice:docker:abc"}}`, set, &runcoptions.Options{Root: "/r", SystemdCgroup: true}},
		{`{"annotations":{"cgroupsPath":"/x"},"linux":{"cgroupsPath":"a.slice:b:c"}}`, nil, &runcoptions.Options{SystemdCgroup: true}},
		{`{"annotations":{"cgroupsPath":"a.slice:b:c"},"linux":{}}`, nil, &runcoptions.Options{}},
		{`{"linux":{}}`, set, &runcoptions.Options{Root: "/r", SystemdCgroup: true}},
		{`{"linux":7}`, set, &runcoptions.Options{Root: "/r", SystemdCgroup: true}},
	} {
		var got runcoptions.Options
		s, _ := serviceAround(&fakeTasks{onCreate: func(r *taskapi.CreateTaskRequest) {
			if err := r.Options.UnmarshalTo(&got); err != nil {
				t.Error(err)
			}
		}})
		r := &taskapi.CreateTaskRequest{ID: "c", Bundle: plainBundle(t, tc.config), Options: tc.message}
		if _, err := s.Create(t.Context(), r); err != nil || !proto.Equal(&got, tc.want) {
			t.Errorf("%s with %v: %v, %v", tc.config, tc.message, &got, err)
		}
	}
}

// In a process of its own: the watcher of the embedded service goes on after its end.
func TestANewServiceHasItsLimits(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	ctx, sd := shutdown.WithShutdown(context.Background())
	ctx = withStartLimit(ctx, "", func(int) {})
	_, err := NewService(ctx, &publisher{}, sd)
	check(t, err)
	if startLimit(ctx).Stop() {
		t.Error("a shim that has started ends by the limit of its start")
	}
	if limit := debug.SetMemoryLimit(-1); limit > 64<<20 {
		t.Errorf("the limit is %d bytes", limit)
	}
}
