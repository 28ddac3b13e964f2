package shim

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	eventsapi "github.com/containerd/containerd/api/events"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/simtest"
)

// fakeTasks is an embedded service whose containers are this very process, so that
// no mask can be attached to them: it would be the host's.
type fakeTasks struct {
	taskapi.TTRPCTaskService
	calls     []string
	createErr error
	deleteErr error
	created   func(*taskapi.CreateTaskRequest)
}

func (f *fakeTasks) Create(_ context.Context, r *taskapi.CreateTaskRequest) (*taskapi.CreateTaskResponse, error) {
	f.calls = append(f.calls, "create")
	if f.createErr != nil {
		return nil, f.createErr
	}
	if f.created != nil {
		f.created(r)
	}
	return &taskapi.CreateTaskResponse{Pid: uint32(os.Getpid())}, nil
}

func (f *fakeTasks) Start(context.Context, *taskapi.StartRequest) (*taskapi.StartResponse, error) {
	f.calls = append(f.calls, "start")
	return &taskapi.StartResponse{Pid: uint32(os.Getpid())}, nil
}

func (f *fakeTasks) Kill(context.Context, *taskapi.KillRequest) (*emptypb.Empty, error) {
	f.calls = append(f.calls, "kill")
	return &emptypb.Empty{}, nil
}

func (f *fakeTasks) Wait(context.Context, *taskapi.WaitRequest) (*taskapi.WaitResponse, error) {
	return &taskapi.WaitResponse{}, nil
}

func (f *fakeTasks) Delete(context.Context, *taskapi.DeleteRequest) (*taskapi.DeleteResponse, error) {
	f.calls = append(f.calls, "delete")
	return &taskapi.DeleteResponse{}, f.deleteErr
}

// publisher keeps what is published.
type publisher struct{ published []events.Event }

func (p *publisher) Publish(_ context.Context, _ string, e events.Event) error {
	p.published = append(p.published, e)
	return nil
}

func (p *publisher) Close() error { return nil }

// inOwnMounts runs the calling test in a process with a mount namespace of its own,
// so that nothing that it mounts is ever the host's, and says whether this is that
// process.
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

// gateService is a service around f on a host with a simulated driver, and the
// bundle of a container that asks for a GPU.
func gateService(t *testing.T, f *fakeTasks) (*Service, *publisher, string) {
	t.Helper()
	d := simtest.New(t, sim.Options{GPUs: 1})
	t.Cleanup(func() {
		state, err := view.OpenState(d.StateDir)
		if err == nil {
			err = state.Remove()
		}
		if err != nil {
			t.Error(err)
		}
	})
	p := &publisher{}
	return &Service{
		TTRPCTaskService: f, load: func() (*config.Config, error) { return config.Load(d.ConfigPath) },
		events: &createEvents{Publisher: p}, containers: map[string]*gpuContainer{},
	}, p, gateBundle(t)
}

func gateBundle(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	raw, err := json.Marshal(&specs.Spec{
		Root:    &specs.Root{Path: "rootfs"},
		Process: &specs.Process{Env: []string{"NVIDIA_VISIBLE_DEVICES=0"}},
		Mounts:  []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}},
		Linux:   &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.MountNamespace}}},
	})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o600)
	}
	if err == nil {
		err = os.Mkdir(filepath.Join(dir, "rootfs"), 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Invariant I8, also where nothing goes as it should.
func TestAContainerWithoutItsMaskIsNeverStartedEvenWhenItCannotBeDeleted(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	f := &fakeTasks{deleteErr: errors.New("runc is gone")}
	s, _, dir := gateService(t, f)
	_, err := s.Create(t.Context(), &taskapi.CreateTaskRequest{ID: "c", Bundle: dir})
	if err == nil || !strings.Contains(err.Error(), "mount namespace of the host") {
		t.Fatalf("create: %v", err)
	}
	_, err = s.Start(t.Context(), &taskapi.StartRequest{ID: "c"})
	if !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
		t.Errorf("start: %v", err)
	}
	if slices.Contains(f.calls, "start") {
		t.Errorf("the container was started: %v", f.calls)
	}
	// It can be deleted later, and is forgotten then.
	f.deleteErr = nil
	if _, err := s.Delete(t.Context(), &taskapi.DeleteRequest{ID: "c"}); err != nil || s.get("c") != nil {
		t.Errorf("delete: %v, still known: %v", err, s.get("c"))
	}
}

func TestAContainerWhoseMaskFailedIsKilledDeletedAndForgotten(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	f := &fakeTasks{}
	s, _, dir := gateService(t, f)
	if _, err := s.Create(t.Context(), &taskapi.CreateTaskRequest{ID: "c", Bundle: dir}); err == nil {
		t.Fatal("created without a mask")
	}
	if want := []string{"create", "kill", "delete"}; !slices.Equal(f.calls, want) || s.get("c") != nil {
		t.Errorf("calls %v, want %v; still known: %v", f.calls, want, s.get("c"))
	}
}

func TestASecondContainerOfTheSameIDDoesNotDisturbTheFirst(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	f := &fakeTasks{}
	s, _, dir := gateService(t, f)
	first := &gpuContainer{ready: true}
	s.put("c", first)
	_, err := s.Create(t.Context(), &taskapi.CreateTaskRequest{ID: "c", Bundle: dir})
	if !errdefs.IsAlreadyExists(errgrpc.ToNative(err)) || s.get("c") != first || len(f.calls) > 0 {
		t.Errorf("error %v, calls %v, known %v", err, f.calls, s.get("c"))
	}
}

// The embedded service sends its events on a goroutine of its own, so that they can
// be published after Create has returned.
func TestTheCreateEventHasItsMountsHoweverLateItIsPublished(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	f := &fakeTasks{}
	s, p, dir := gateService(t, f)
	image := filepath.Join(t.TempDir(), "image")
	if err := os.Mkdir(image, 0o755); err != nil {
		t.Fatal(err)
	}
	mounts := []*types.Mount{{Type: "bind", Source: image, Options: []string{"rbind", "rw"}}}
	// A restore has no process yet, and therefore no mask to fail.
	r := &taskapi.CreateTaskRequest{ID: "c", Bundle: dir, Rootfs: mounts, Checkpoint: "/checkpoint"}
	f.created = func(r *taskapi.CreateTaskRequest) {
		if r.Rootfs != nil {
			t.Error("the embedded service would mount the root file system again")
		}
	}
	if _, err := s.Create(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if err := s.events.Publish(t.Context(), "/tasks/create", &eventsapi.TaskCreate{ContainerID: "c"}); err != nil {
		t.Fatal(err)
	}
	if e := p.published[0].(*eventsapi.TaskCreate); len(e.Rootfs) != 1 || e.Rootfs[0].Source != image {
		t.Errorf("the event has the mounts %v", e.Rootfs)
	}
	if _, err := s.Delete(t.Context(), &taskapi.DeleteRequest{ID: "c"}); err != nil {
		t.Fatal(err)
	}

	// Without a container there is no event: nothing may stay behind.
	f.createErr = errors.New("runc create failed")
	r.Rootfs, r.Bundle = mounts, gateBundle(t)
	if _, err := s.Create(t.Context(), r); err == nil {
		t.Fatal("created")
	}
	s.events.rootfs.Range(func(id, _ any) bool { t.Errorf("mounts of %v are kept", id); return true })
	if s.get("c") != nil {
		t.Error("the container is known")
	}
}

func TestTheCgroupDriverFollowsTheContainersCgroupPathAndNothingElse(t *testing.T) {
	for config, want := range map[string]struct{ systemd, known bool }{
		`{"linux": {"cgroupsPath": "kubepods.slice:cri-containerd:abc"}}`: {true, true},
		`{"linux": {"cgroupsPath":":docker:abc"}}`:                        {true, true},
		`{"linux": {"cgroupsPath": "/kubepods/pod1/abc"}}`:                {false, true},
		`{"linux": {"cgroupsPath": "a:b:c"}}`:                             {false, true},
		// systemd escapes "-" in the name of a slice.
		`{"linux": {"cgroupsPath": "machine-foo\\x2dbar.slice:docker:abc"}}`: {true, true},
		`{"linux": {"cgroupsPath": "a\u003cb.slice:docker:abc"}}`:            {true, true},
		`{"linux": {}}`: {false, false},
		``:              {false, false},
		// A key of that name that is an annotation's: pod_annotations may let it in.
		`{"annotations": {"cgroupsPath": "x.slice:y:z"}, "linux": {"cgroupsPath": "/kubepods/abc"}}`:  {false, true},
		`{"annotations": {"cgroupsPath": "/x"}, "linux": {"cgroupsPath": "a.slice:b:c"}}`:             {true, true},
		`{"process": {"env": ["X=\"cgroupsPath\":\"/x\""]}, "linux": {"cgroupsPath": "a.slice:b:c"}}`: {true, true},
		`{"linux": {"cgroupsPath": "a.slice:b:c", "cgroupsPath": 7}}`:                                 {true, true},
	} {
		if systemd, known := systemdForm([]byte(config)); systemd != want.systemd || known != want.known {
			t.Errorf("%s: systemd %v, known %v", config, systemd, known)
		}
	}
}
