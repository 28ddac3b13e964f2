package shim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/process"
	runctask "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/runc"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/go-runc"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// maxRounds limits the attempts of Pause. It tries again if processes have started to use a GPU in
// the meantime or if runc could not freeze the container.
const maxRounds = 5

// Pause freezes the container. If the container suspends its GPUs, the GPU memory of its processes
// is moved to the host first, and they release the GPUs. After an error the container runs as
// before.
func (s *Service) Pause(ctx context.Context, r *taskapi.PauseRequest) (*emptypb.Empty, error) {
	c, does, unlock, err := s.lock(r.ID, callPause)
	defer unlock()
	if err != nil {
		return nil, toGRPC(err)
	}
	if does == pass || !c.suspendsGPU {
		return s.TTRPCTaskService.Pause(ctx, r)
	}
	if s.status(ctx, r.ID) != task.Status_RUNNING {
		return s.TTRPCTaskService.Pause(ctx, r) // which refuses it
	}
	resp, err := s.suspend(ctx, r, c)
	if err == nil {
		s.keepSuspended(r.ID, c)
		return resp, nil
	}
	ctx = context.WithoutCancel(ctx) // the request that failed may have been cancelled
	undone := s.wake(ctx, r.ID, c, false)
	if undone != nil {
		s.keepSuspended(r.ID, c)
	}
	return nil, s.failed(ctx, r.ID, err, undone)
}

// Resume continues a paused container. If its processes cannot get their GPU memory back, it stays
// paused, so that a later call may succeed.
func (s *Service) Resume(ctx context.Context, r *taskapi.ResumeRequest) (*emptypb.Empty, error) {
	c, does, unlock, err := s.lock(r.ID, callResume)
	defer unlock()
	if err != nil {
		return nil, toGRPC(err)
	}
	if does == pass {
		return s.TTRPCTaskService.Resume(ctx, r)
	}
	ctx = context.WithoutCancel(ctx) // stopping halfway would leave processes frozen
	forgotten := c
	forgotten.placement = nil // even if this call fails
	s.update(r.ID, forgotten)
	if s.status(ctx, r.ID) != task.Status_PAUSED {
		return s.TTRPCTaskService.Resume(ctx, r) // which refuses it
	}
	if err = c.checkMemory(r.ID); err != nil {
		return nil, toGRPC(err)
	}
	if err = s.wake(ctx, r.ID, c, false); err == nil {
		return &emptypb.Empty{}, nil
	}
	if s.status(ctx, r.ID) == task.Status_PAUSED { // it failed before it thawed
		return nil, toGRPC(err)
	}
	_, undone := s.suspend(ctx, &taskapi.PauseRequest{ID: r.ID}, c)
	return nil, s.failed(ctx, r.ID, err, undone)
}

// lock returns the container and what this service does with a call that may move its GPU memory.
// Until unlock is called, no other call moves GPU memory. Only containers with GPUs wait for that.
func (s *Service) lock(id string, what call) (c gpuContainer, does rule, unlock func(), err error) {
	unlock = func() {}
	if s.get(id).state != unknown {
		s.pausing.Lock()
		unlock = s.pausing.Unlock
	}
	c = s.get(id)
	does, err = c.permit(what, id)
	return c, does, unlock, err
}

// keepSuspended makes the next Resume move GPU memory back. It records in the bundle, for display,
// how much is on the host.
func (s *Service) keepSuspended(id string, c gpuContainer) {
	c.state = suspended
	if !s.update(id, c) {
		return // the bundle is another container's
	}
	sum := uint64(0)
	for _, memory := range c.held {
		for _, bytes := range memory {
			sum += bytes
		}
	}
	_ = os.WriteFile(filepath.Join(c.bundle, gpuinject.SuspendedName), fmt.Append(nil, sum), 0o600)
}

// failed returns the error of a call, with the error of undoing it, if any. If undoing failed, a
// container that has not ended is left frozen.
func (s *Service) failed(ctx context.Context, id string, err, undone error) error {
	if undone != nil && s.status(ctx, id) != task.Status_STOPPED {
		err = &classified{fmt.Errorf("%w; undoing it failed too, so pause the container again or delete it: %w", err, undone), errdefs.ErrFailedPrecondition}
	}
	return toGRPC(err)
}

// suspend moves GPU memory to the host and freezes the container. If a process has started to use a
// GPU in between, it would keep that GPU, so suspend repeats both steps. It also repeats them if
// the container cannot be frozen: on cgroup v1 runc gives up after 0.2 s, in which a busy host may
// run none of the container's processes.
func (s *Service) suspend(ctx context.Context, r *taskapi.PauseRequest, c gpuContainer) (resp *emptypb.Empty, err error) {
	var notFrozen error
	for range maxRounds {
		before, err := s.usersOfGPU(ctx, r.ID)
		if err == nil {
			err = s.move(ctx, r.ID, true, c, nil)
		}
		if err == nil && !s.isCurrent(r.ID, c) {
			err = notFound(r.ID) // it was deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		if resp, notFrozen = s.freeze(ctx, r, c); notFrozen != nil {
			if ctx.Err() != nil {
				return nil, notFrozen // the client no longer waits
			}
			continue
		}
		after, err := s.usersOfGPU(ctx, r.ID)
		if err == nil && !slices.ContainsFunc(after, func(p procfs.ID) bool { return !slices.Contains(before, p) }) {
			return resp, nil
		}
		if _, thawed := s.thaw(context.WithoutCancel(ctx), &taskapi.ResumeRequest{ID: r.ID}, c); err != nil || thawed != nil {
			return nil, cmp.Or(err, thawed)
		}
	}
	if notFrozen != nil {
		return nil, notFrozen
	}
	return nil, &classified{errors.New("nvidia: processes of the container keep starting to use the GPU"), errdefs.ErrUnavailable}
}

// freeze is the embedded service's Pause.
//
// freeze and thaw may fail although runc did its work, for example if runc is killed when the
// request times out. The embedded service then keeps the old state of the container, and runc
// refuses every further call. So runc is called to undo its work; it refuses if there is nothing to
// undo.
func (s *Service) freeze(ctx context.Context, r *taskapi.PauseRequest, c gpuContainer) (*emptypb.Empty, error) {
	resp, err := s.TTRPCTaskService.Pause(ctx, r)
	if err != nil && s.status(ctx, r.ID) == task.Status_RUNNING {
		if runc, noRunc := c.runc(ctx); noRunc == nil {
			_ = runc.Resume(context.WithoutCancel(ctx), r.ID)
		}
	}
	return resp, err
}

// thaw is the embedded service's Resume.
func (s *Service) thaw(ctx context.Context, r *taskapi.ResumeRequest, c gpuContainer) (*emptypb.Empty, error) {
	resp, err := s.TTRPCTaskService.Resume(ctx, r)
	if err != nil && s.status(ctx, r.ID) == task.Status_PAUSED {
		if runc, noRunc := c.runc(ctx); noRunc == nil {
			_ = runc.Pause(context.WithoutCancel(ctx), r.ID)
		}
	}
	return resp, err
}

// runc returns the container's runc as the embedded service executes it, but without the log from
// which that service reads the last error.
func (c gpuContainer) runc(ctx context.Context) (*runc.Runc, error) {
	opts, err := runctask.ReadOptions(c.bundle)
	if err != nil {
		return nil, err
	}
	namespace, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return nil, err
	}
	r := process.NewRunc(opts.GetRoot(), c.bundle, namespace, opts.GetBinaryName(), opts.GetSystemdCgroup())
	r.Log = ""
	return r, nil
}

// move asks the probe to move the GPU memory of all processes of the container to the host or back.
// It adds what is moved to the host to c.held. To move it back, that much memory must be free on
// the GPU. If thaw is not nil, the container is frozen: move calls it when the probe is prepared.
func (s *Service) move(ctx context.Context, id string, suspend bool, c gpuContainer, thaw func() error) error {
	if !s.isCurrent(id, c) {
		return notFound(id) // it was deleted meanwhile
	}
	list, err := s.processes(ctx, id)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		if thaw != nil {
			return thaw()
		}
		return nil
	}
	q, what := probe.Questions{Resume: list, Needs: c.held, Placement: c.placement}, "resume"
	if suspend {
		q, what = probe.Questions{Suspend: list}, "suspend"
	}
	q.GPUs, q.Timeout = c.addresses, moveLimit
	var notThawed error
	if thaw != nil {
		q.Ready = func() error {
			notThawed = thaw()
			return notThawed
		}
	}
	start := time.Now()
	a := ask(q)
	maps.Copy(c.held, a.Memory)
	if notThawed != nil {
		return notThawed
	}
	if a.MoveError == "" && a.Moved == nil {
		a.MoveError = "nvidia-shimctl is of another version than the shim"
	}
	if a.MoveError != "" {
		return verdict.Precondition("cannot %s the GPUs of container %s: %s", what, id, a.MoveError)
	}
	log.G(ctx).WithFields(log.Fields{"id": id, "processes": *a.Moved, "took": time.Since(start).String()}).Infof("nvidia: %s GPUs", what)
	return nil
}

// notFound is the error for a container that was deleted, even if another one has its id.
func notFound(id string) error { return fmt.Errorf("container %s: %w", id, errdefs.ErrNotFound) }

// moveLimit is the time limit for moving GPU memory: at most this host's memory can be moved, at 1
// GiB a second or faster. Tests use a shorter time.
var moveLimit = func() time.Duration {
	var info unix.Sysinfo_t
	_ = unix.Sysinfo(&info)
	return 30*time.Second + time.Duration(info.Totalram*uint64(info.Unit)>>30)*time.Second
}()

// wake undoes suspend, even a failed one, and freezes the container again if it was paused. The
// driver restores a process in one of the process' own threads, so it thaws a frozen container, but
// not before everything else is prepared.
func (s *Service) wake(ctx context.Context, id string, c gpuContainer, paused bool) (err error) {
	var thaw func() error
	if s.status(ctx, id) == task.Status_PAUSED {
		thaw = func() error {
			_, err := s.thaw(ctx, &taskapi.ResumeRequest{ID: id}, c)
			return err
		}
	}
	if err = s.move(ctx, id, false, c, thaw); err == nil { // guard: shim: thawed when prepared
		clear(c.held)
		c.state, c.placement = ready, nil
		if s.update(id, c) {
			_ = os.Remove(filepath.Join(c.bundle, gpuinject.SuspendedName))
		}
	}
	if err == nil && paused {
		_, err = s.freeze(ctx, &taskapi.PauseRequest{ID: id}, c)
	}
	return err
}
