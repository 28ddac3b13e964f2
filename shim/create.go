package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/fault"
)

// Create gives the container its GPUs and hands over to the embedded service. A
// container that asks for none passes with its bundle as containerd wrote it.
func (s *Service) Create(ctx context.Context, r *taskapi.CreateTaskRequest) (*taskapi.CreateTaskResponse, error) {
	opts, err := Translate(r.Options)
	if err != nil {
		return nil, toGRPC(err)
	}
	job, raw, err := examine(r.Bundle, opts, s.load, s.ahead.take())
	if err != nil {
		return nil, toGRPC(err)
	}
	if err := setOptions(ctx, r, opts, raw); err != nil {
		return nil, toGRPC(err)
	}
	if job == nil {
		return s.TTRPCTaskService.Create(ctx, r)
	}
	s.tidy.hold()
	defer s.tidy.after(codeDelay, collectorDelay)
	namespace, _ := namespaces.Namespace(ctx)
	job.Of(r.ID, namespace)
	switch err := guard(job.Resolve); {
	case errors.Is(err, gpuinject.ErrNotGranted):
		logNotGranted(ctx, r.ID, job)
		return s.TTRPCTaskService.Create(ctx, r)
	case err != nil:
		return nil, toGRPC(err)
	}
	resp, err := s.createWithGPU(ctx, r, job)
	return resp, toGRPC(err)
}

// examine reads the bundle with the configuration of this handler, helped by what was
// seen of it.
func examine(dir string, opts Options, load func() (*config.Config, error), ahead *gpuinject.Ahead) (job *gpuinject.Job, raw []byte, err error) {
	err = guard(func() error {
		job, raw, err = ahead.Examine(dir, func() (*config.Config, error) {
			cfg, err := load()
			if err == nil && len(opts.Overrides) > 0 {
				err = cfg.Override(opts.Overrides)
			}
			return cfg, err
		})
		if job != nil {
			job.AskKubelet, job.AskNVML, job.AskCDI = askKubelet, askNVML, askCDI
		}
		return err
	})
	return job, raw, err
}

// setOptions hands runc's options on, with the cgroup driver that the form of the
// container's cgroup path calls for.
func setOptions(ctx context.Context, r *taskapi.CreateTaskRequest, opts Options, raw []byte) error {
	if systemd, known := systemdForm(raw); known && systemd != opts.Runc.SystemdCgroup {
		if opts.SystemdCgroupSet {
			log.G(ctx).WithField("id", r.ID).Warnf("nvidia: SystemdCgroup is %v in the runtime's options, but the cgroup path has the other form: following the path", opts.Runc.SystemdCgroup)
		}
		opts.Runc.SystemdCgroup, opts.sent = systemd, nil
	}
	message, err := opts.message()
	r.Options = message
	return err
}

// guard turns a panic over hostile input into an error: this process manages every
// container of a pod (N-06).
func guard(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			log.L.Errorf("nvidia: panic: %v\n%s", p, debug.Stack())
			err = fmt.Errorf("nvidia: internal error: %v: %w", p, errdefs.ErrInternal)
		}
	}()
	return fn()
}

// createWithGPU mounts the root file system where the embedded service would have,
// has the changes made, creates the container and attaches the mask. Whatever
// fails, nothing is left.
func (s *Service) createWithGPU(ctx context.Context, r *taskapi.CreateTaskRequest, job *gpuinject.Job) (_ *taskapi.CreateTaskResponse, err error) {
	start := time.Now()
	c := &gpuContainer{}
	if !s.add(r.ID, c) {
		// Undoing this one would take the other's root file system away.
		return nil, fmt.Errorf("container %s: %w", r.ID, errdefs.ErrAlreadyExists)
	}
	gone := true
	defer func() {
		// A container that could not be destroyed stays known, so that Start refuses it.
		if err != nil && gone {
			_ = unmountRootfs(ctx, c)
			s.put(r.ID, nil)
		}
	}()
	root, err := mountRootfs(r, c)
	if err != nil {
		return nil, err
	}
	var inj *gpuinject.Injection
	if err := guard(func() (err error) {
		inj, err = job.Inject(root)
		return err
	}); err != nil {
		return nil, err
	}
	injected := time.Since(start)

	if c.rootfs != "" {
		// Mounted already; the service would mount it a second time.
		s.events.rootfs.Store(r.ID, r.Rootfs)
		r.Rootfs = nil
	}
	inj.Begin()
	if r.Checkpoint != "" {
		// Nothing will be there that could be destroyed: runc restore runs in Start.
		err = guard(inj.Wait)
	}
	var resp *taskapi.CreateTaskResponse
	if err == nil {
		resp, err = s.createInner(ctx, r)
	}
	if err != nil {
		// No event was sent. One of a container that was created goes out by itself,
		// maybe after this function has returned.
		s.events.rootfs.Delete(r.ID)
		inj.Close()
		return nil, err
	}
	if r.Checkpoint != "" {
		// There is no process yet: runc restore runs in Start.
		s.mu.Lock()
		c.restore = inj
		s.mu.Unlock()
		logGranted(ctx, r.ID, job, injected)
		return resp, nil
	}
	defer inj.Close()
	if err := guard(func() error { return inj.Attach(int(resp.Pid)) }); err != nil {
		gone = s.destroy(ctx, r.ID)
		return nil, err
	}
	s.mu.Lock()
	c.ready = true
	s.mu.Unlock()
	logGranted(ctx, r.ID, job, injected)
	return resp, nil
}

// add enters a container, unless there is one of the id.
func (s *Service) add(id string, c *gpuContainer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.containers[id] != nil {
		return false
	}
	s.containers[id] = c
	return true
}

func (s *Service) createInner(ctx context.Context, r *taskapi.CreateTaskRequest) (*taskapi.CreateTaskResponse, error) {
	if err := fault.Point("create"); err != nil {
		return nil, err
	}
	return s.TTRPCTaskService.Create(ctx, r)
}

// mountRootfs mounts the container's root file system at the place where the
// embedded service would mount it a moment later, and returns where it is. Mounting
// it once, here, costs nothing; looking at a second, temporary mount of the same
// writable snapshot would cost a sync of its file system at unmount.
func mountRootfs(r *taskapi.CreateTaskRequest, c *gpuContainer) (string, error) {
	if len(r.Rootfs) == 0 {
		return gpuinject.RootPath(r.Bundle)
	}
	root := filepath.Join(r.Bundle, "rootfs")
	if err := os.Mkdir(root, 0o711); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	mounts := mount.FromProto(r.Rootfs)
	if err := mount.All(mounts, root); err != nil {
		_ = mount.UnmountMounts(mounts, root, 0)
		return "", fmt.Errorf("failed to mount rootfs component: %w", err)
	}
	c.rootfs = root
	return root, nil
}

// unmountRootfs takes away what mountRootfs made.
func unmountRootfs(ctx context.Context, c *gpuContainer) error {
	if c.rootfs == "" {
		return nil
	}
	if err := mount.UnmountRecursive(c.rootfs, 0); err != nil {
		log.G(ctx).WithError(err).Warn("failed to cleanup rootfs mount")
		return fmt.Errorf("failed rootfs umount: %w", err)
	}
	return nil
}

// destroy ends and removes a created container that must not start (invariant I8),
// and tells whether it is gone.
func (s *Service) destroy(ctx context.Context, id string) bool {
	// Also when the request that failed was cancelled.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if _, err := s.TTRPCTaskService.Kill(ctx, &taskapi.KillRequest{ID: id, Signal: uint32(unix.SIGKILL), All: true}); err != nil {
		log.G(ctx).WithError(err).WithField("id", id).Warn("nvidia: kill a container that may not start")
	}
	_, _ = s.TTRPCTaskService.Wait(ctx, &taskapi.WaitRequest{ID: id})
	if _, err := s.TTRPCTaskService.Delete(ctx, &taskapi.DeleteRequest{ID: id}); err != nil {
		log.G(ctx).WithError(err).WithField("id", id).Error("nvidia: delete a container that may not start")
		return false
	}
	return true
}

// logGranted writes the one line of a GPU container.
func logGranted(ctx context.Context, id string, job *gpuinject.Job, injected time.Duration) {
	if job.Plan.Audit != "" && logs(job.Config, "warn") {
		log.G(ctx).WithField("id", id).Warn("nvidia: " + job.Plan.Audit)
	}
	for _, s := range job.Plan.Ignored {
		if logs(job.Config, "warn") {
			log.G(ctx).WithField("id", id).Warnf("nvidia: ignored: %s", s)
		}
	}
	if !logs(job.Config, "info") {
		return
	}
	var gpus []string
	for _, g := range job.Plan.GPUs {
		gpus = append(gpus, g.UUID)
	}
	for _, m := range job.Plan.MIG {
		gpus = append(gpus, m.Name)
	}
	log.G(ctx).WithFields(log.Fields{
		"id": id, "gpus": strings.Join(gpus, ","), "capabilities": strings.Join(job.Plan.Capabilities, ","),
		"driver": job.Plan.DriverVersion, "reason": job.Plan.Reason, "grant": job.Plan.Grant, "took": injected.String(),
	}).Info("nvidia: GPUs injected")
	if logs(job.Config, "debug") {
		for _, n := range job.Plan.Notes {
			log.G(ctx).WithField("id", id).Info("nvidia: " + n)
		}
	}
}

func logNotGranted(ctx context.Context, id string, job *gpuinject.Job) {
	if logs(job.Config, "warn") {
		log.G(ctx).WithFields(log.Fields{"id": id, "reason": job.Plan.Reason, "grant": job.Plan.Grant}).
			Warn("nvidia: the container asks for GPUs and starts without")
	}
}

// logs tells whether the configured level includes lines of the given level.
func logs(cfg *config.Config, level string) bool {
	order := map[string]int{"error": 0, "warn": 1, "info": 2, "debug": 3}
	return order[level] <= order[cfg.Log.Level]
}
