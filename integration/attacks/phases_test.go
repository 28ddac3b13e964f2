package attacks

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"google.golang.org/grpc"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/api"
)

// phase is a part of a container's life in which system calls of one process fail.
type phase struct {
	// sample is how many faults `make test` tries.
	sample int
	// prepare makes a container and takes it to the beginning of the phase.
	prepare func(t *testing.T, h *host, client *api.Client) (id string)
	// trace starts strace; run runs the phase under it.
	trace func(t *testing.T, h *host, flags ...string) (stop func() string)
	run   func(t *testing.T, h *host, client *api.Client, id string) error
	// check, which runs without faults, fails the test if the phase left the container in an
	// intermediate state.
	check func(t *testing.T, h *host, client *api.Client, id string, failed error)
}

var phases = map[string]phase{
	// From creation to deletion, in the shim.
	"life": {55, created(inPod), attached, lived, nil},
	// The deletion of a container that has ended, in the shim.
	"delete": {5, ended, attached, deleted, deletedAgain},
	// Pause and Resume of a container that gives its GPUs back: in the shim and in its probe.
	"suspend": {6, counting, attached, suspended, counted},
	"probe":   {3, counting, program("probe"), suspended, counted},
	// The program that containerd executes to start a shim, or to join that of a pod.
	"start": {4, created(), program("start"), lived, nil},
	"join":  {2, created(inPod), program("start"), lived, nil},
	// The program that containerd executes after a shim was killed.
	"cleanup": {3, running, program("delete"), cleanedUp, restarted},
}

// newFaultHost starts a host whose programs are traced if their file of flags exists.
func newFaultHost(t *testing.T) *host {
	t.Helper()
	dir := t.TempDir()
	copied, tracer := filepath.Join(dir, "copy"), filepath.Join(dir, "containerd-shim-nvidia-v2")
	shim, err := os.ReadFile(filepath.Join(testenv.ShimDir(), "containerd-shim-nvidia-v2"))
	if err == nil {
		err = os.Mkdir(copied, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(copied, "containerd-shim-nvidia-v2"), shim, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	// The shim that `start` executes is not traced. The shim executes the probe beside it.
	const script = `for verb; do
	[ ! -e %[1]s/$verb.flags ] || exec strace -f %[2]s -o %[1]s/strace $(cat %[1]s/$verb.flags) %[3]s "$@"
done
exec %[3]s "$@"
`
	simhost.Script(t, tracer, fmt.Sprintf(script, dir, "-b execve", filepath.Join(copied, "containerd-shim-nvidia-v2")))
	simhost.Script(t, filepath.Join(copied, "nvidia-shimctl"), fmt.Sprintf(script, dir, "", filepath.Join(testenv.ShimDir(), "nvidia-shimctl")))
	h := newHost(t, simhost.Options{Env: testenv.Options{ShimDir: dir, Config: patient}})
	if err := os.Mkdir(h.marks(), 0o755); err != nil {
		t.Fatal(err)
	}
	count, tar := filepath.Join(h.Dir, "count"), filepath.Join(h.Dir, "count.tar")
	testenv.CompileCount(t, count)
	image, err := images.FromHostPrograms(countImage, []string{"sh", "sleep"}, images.FromHost("usr/bin/count", 0o755, count))
	if err == nil {
		err = image.Write(tar)
	}
	if err != nil {
		t.Fatal(err)
	}
	h.Import(t, tar)
	return h
}

// patient has containerd wait for shims and for their `delete` on a machine that does much else. By
// default it takes them for dead after seconds.
var patient = fmt.Sprintf(`[timeouts]
  "io.containerd.timeout.shim.load" = %[1]q
  "io.containerd.timeout.shim.cleanup" = %[1]q
  "io.containerd.timeout.shim.shutdown" = %[1]q
  "io.containerd.timeout.task.state" = %[1]q
`, hang)

const countImage = "test/count:latest"

// attached traces the pod's shim.
func attached(t *testing.T, h *host, flags ...string) (stop func() string) {
	t.Helper()
	return h.trace(t, flags...)
}

// program traces the programs of this verb, with all their threads.
func program(verb string) func(t *testing.T, h *host, flags ...string) (stop func() string) {
	return func(t *testing.T, h *host, flags ...string) (stop func() string) {
		t.Helper()
		dir := h.Options.ShimDir
		name, out := filepath.Join(dir, verb+".flags"), filepath.Join(dir, "strace")
		simhost.WriteFile(t, name, strings.Join(flags, " "))
		return func() string {
			data, err := os.ReadFile(out)
			if err = errors.Join(err, os.Remove(name), os.Remove(out)); err != nil {
				t.Error(err)
			}
			return string(data)
		}
	}
}

func created(annotations ...string) func(*testing.T, *host, *api.Client) string {
	return func(t *testing.T, h *host, _ *api.Client) string {
		t.Helper()
		return h.create(t, annotations...)
	}
}

func lived(t *testing.T, _ *host, client *api.Client, id string) error {
	t.Helper()
	return live(t, client, id)
}

// started starts the task of a container.
func started(t *testing.T, client *api.Client, id string) {
	t.Helper()
	_, err := client.Create(t.Context(), id)
	if err == nil {
		err = client.Start(t.Context(), id)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func ended(t *testing.T, h *host, client *api.Client) (id string) {
	t.Helper()
	id = h.create(t, inPod)
	started(t, client, id)
	if _, err := client.Tasks.Wait(client.Context(t.Context()), &tasks.WaitRequest{ContainerID: id}); err != nil {
		t.Fatal(err)
	}
	return id
}

func deleted(t *testing.T, _ *host, client *api.Client, id string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(client.Context(t.Context()), hang)
	defer cancel()
	_, err := client.Tasks.Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: id})
	if ctx.Err() != nil {
		t.Errorf("it hangs: %v", err)
	}
	return err
}

// deletedAgain deletes a container whose deletion failed. If the deletion succeeded, nothing may be
// left.
func deletedAgain(t *testing.T, h *host, client *api.Client, id string, failed error) {
	t.Helper()
	if failed != nil {
		if err := deleted(t, h, client, id); err != nil && h.alive() && !strings.Contains(err.Error(), "not found") {
			t.Errorf("a container cannot be deleted after\n%v\nbut\n%v", failed, err)
		}
		return
	}
	if _, err := os.Stat(h.BundleDir(id)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the bundle of a deleted container: %v", err)
	}
}

// counting starts a container of the pod with two programs that count in 2 MiB of GPU memory each.
func counting(t *testing.T, h *host, client *api.Client) (id string) {
	t.Helper()
	id = h.NewID()
	h.Create(t, testenv.RunOptions{
		ID: id, Image: countImage, Annotations: []string{inPod, "io.containerd.nvidia.on-pause=suspend-gpu"}, Env: []string{one},
		Args:   []string{"/bin/sh", "-c", "count 2 >/marks/." + id + ".1 & exec count 2 >/marks/." + id},
		Mounts: []string{"type=bind,src=" + h.marks() + ",dst=/marks,options=rbind:rw"},
	})
	started(t, client, id)
	h.counts(t, id)
	return id
}

// counts waits until both programs have passed twice more.
func (h *host) counts(t *testing.T, id string) {
	t.Helper()
	testenv.AwaitCount(t, filepath.Join(h.marks(), "."+id), filepath.Join(h.marks(), "."+id+".1"))
}

// gpuMemory returns the state of a task, and how much GPU memory its processes have.
func (h *host) gpuMemory(t *testing.T, client *api.Client, id string) (status task.Status, bytes int64, err error) {
	t.Helper()
	ctx := client.Context(t.Context())
	get, err := client.Tasks.Get(ctx, &tasks.GetRequest{ContainerID: id})
	if err != nil {
		return 0, 0, err
	}
	list, err := client.Tasks.ListPids(ctx, &tasks.ListPidsRequest{ContainerID: id})
	if err != nil {
		return 0, 0, err
	}
	for _, p := range list.Processes {
		bytes += simhost.GPUMemory(t, int(p.Pid))
	}
	return get.Process.Status, bytes, nil
}

// suspended pauses a container and resumes it. While it is paused it must not have the GPU.
func suspended(t *testing.T, h *host, client *api.Client, id string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(client.Context(t.Context()), hang)
	defer cancel()
	_, err := client.Tasks.Pause(ctx, &tasks.PauseTaskRequest{ContainerID: id})
	if err == nil {
		status, bytes, asked := h.gpuMemory(t, client, id)
		if asked != nil {
			return asked // the fault was here
		}
		if status != task.Status_PAUSED || bytes != 0 {
			t.Errorf("Pause succeeded: the task is %v and has %d bytes of GPU memory", status, bytes)
		}
		_, err = client.Tasks.Resume(ctx, &tasks.ResumeTaskRequest{ContainerID: id})
	}
	if ctx.Err() != nil {
		t.Errorf("it hangs: %v", err)
	}
	return err
}

// counted checks a container after Pause or Resume: it runs, or is paused without the GPU, or the
// error said that undoing failed. Pause and Resume must work again, and the container must continue
// counting.
func counted(t *testing.T, h *host, client *api.Client, id string, failed error) {
	t.Helper()
	defer func() { _ = os.Remove(filepath.Join(h.marks(), "."+id+".1")) }()
	if !h.alive() {
		return
	}
	status, bytes, err := h.gpuMemory(t, client, id)
	if err != nil {
		t.Fatalf("after %v: %v", failed, err)
	}
	half := failed != nil && strings.Contains(failed.Error(), "undoing it failed too")
	if !half && (status != task.Status_RUNNING || bytes != 4<<20) && (status != task.Status_PAUSED || bytes != 0 || failed == nil) {
		t.Errorf("the task is %v and has %d bytes of GPU memory after %v", status, bytes, failed)
	}
	if !half && status == task.Status_RUNNING {
		h.counts(t, id)
	}
	ctx := client.Context(t.Context())
	if status == task.Status_RUNNING {
		if _, err := client.Tasks.Pause(ctx, &tasks.PauseTaskRequest{ContainerID: id}); err != nil {
			t.Errorf("Pause after %v: %v", failed, err)
		}
	}
	if _, err := client.Tasks.Resume(ctx, &tasks.ResumeTaskRequest{ContainerID: id}); err != nil {
		t.Fatalf("Resume after %v: %v", failed, err)
	}
	h.counts(t, id)
}

// alive reports whether the pod's shim still runs.
func (h *host) alive() bool { return slices.Contains(h.ShimPIDs(h.pod), h.shim) }

// running starts a container with a shim of its own.
func running(t *testing.T, h *host, client *api.Client) (id string) {
	t.Helper()
	id = h.Create(t, testenv.RunOptions{Env: []string{one}, Args: []string{"/bin/sleep", "1000000"}})
	started(t, client, id)
	return id
}

const cleanupFailed = "failed to clean up after shim disconnected"

// cleanedUp kills the shim of a container and waits until containerd has executed its `delete`.
func cleanedUp(t *testing.T, h *host, _ *api.Client, id string) error {
	t.Helper()
	failed := strings.Count(h.Log(), cleanupFailed)
	for _, pid := range h.ShimPIDs(id) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	left := false
	testenv.Await(t, "containerd cleans up", func() bool {
		_, err := os.Stat(h.BundleDir(id))
		left = strings.Count(h.Log(), cleanupFailed) > failed
		return left || errors.Is(err, fs.ErrNotExist)
	})
	if left {
		return errors.New(cleanupFailed)
	}
	return nil
}

// restarted makes containerd clean up what `delete` has left: as with the stock shim, it does so
// only when it starts.
func restarted(t *testing.T, h *host, client *api.Client, _ string, failed error) {
	t.Helper()
	if failed == nil {
		return
	}
	h.Restart(t)
	// The oracle counts the connection of this client.
	if _, err := client.Tasks.List(client.Context(t.Context()), &tasks.ListTasksRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
}
