package shim

import (
	"cmp"
	"context"
	"errors"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/procmask"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/fault"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/shim/options"
)

// gcPercent lets the heap of a shim with GPU containers grow to 8 MB before Go collects garbage.
// containerd's shim library sets 40 (setRuntime), which is 1.6 MB: a collection would delay each
// container. The library returns unused memory to the system every 30 seconds.
const gcPercent = 200

// Create gives the container its GPUs and has the embedded service create it. A container without a
// GPU request is created from its bundle as containerd wrote it, except that NVIDIA's hooks are
// removed; if the bundle has the driver's device nodes, the container gets the mask.
func (s *Service) Create(ctx context.Context, r *taskapi.CreateTaskRequest) (*taskapi.CreateTaskResponse, error) {
	ctx, end := s.beginCreate(ctx, r.ID)
	defer end()
	opts, err := options.Translate(r.Options)
	if err != nil {
		return nil, toGRPC(err)
	}
	c, err := examine(r.Bundle, opts)
	c.ID = r.ID
	if err != nil {
		addOutcome(c, state.Event{}, err)
		return nil, toGRPC(err)
	}
	cgroup := cgroupsPath(c)
	if err := setOptions(ctx, r, opts, cgroup); err != nil {
		return nil, toGRPC(err)
	}
	var resp *taskapi.CreateTaskResponse
	if c.Plain {
		resp, err = s.TTRPCTaskService.Create(ctx, r)
	} else {
		resp, err = s.createAsking(ctx, r, c)
	}
	if ctx.Err() == nil {
		return resp, err
	}
	// containerd waits no longer, and has deleted what there was of the container at that time.
	if err != nil {
		removeCgroup(ctx, cgroup) // guard: shim: no cgroup of a runc that was killed
		return nil, err
	}
	if s.destroy(ctx, r.ID) { // guard: shim: no container that no client waits for
		s.forget(ctx, r.ID)
	}
	return nil, toGRPC(ctx.Err())
}

// createAsking creates a container that asks for GPUs or has the driver's nodes, and adds the
// outcome to the events of the host.
func (s *Service) createAsking(ctx context.Context, r *taskapi.CreateTaskRequest, c gpuinject.Container) (*taskapi.CreateTaskResponse, error) {
	debug.SetGCPercent(gcPercent)
	c.Namespace, _ = namespaces.Namespace(ctx)
	var outcome state.Event
	start := time.Now()
	resp, err := s.createWithGPU(ctx, r, c, &outcome)
	outcome.Seconds = time.Since(start).Seconds()
	addOutcome(c, outcome, err)
	return resp, toGRPC(err)
}

// examine reads the bundle and the configuration of this handler.
func examine(dir string, opts options.Options) (c gpuinject.Container, err error) {
	defer recovered(&err)
	return gpuinject.Examine(dir, func() (*config.Config, error) {
		cfg, err := config.Find("")
		if err == nil && len(opts.Overrides) > 0 {
			err = cfg.Override(opts.Overrides)
		}
		return cfg, err
	})
}

// setOptions sets runc's options in the request, with the cgroup driver that the form of the
// container's cgroup path calls for.
func setOptions(ctx context.Context, r *taskapi.CreateTaskRequest, opts options.Options, cgroupsPath string) error {
	if systemd := systemdUnit(cgroupsPath); cgroupsPath != "" && systemd != opts.Runc.SystemdCgroup {
		if opts.SystemdCgroupSet {
			log.G(ctx).WithField("id", r.ID).Warnf("nvidia: SystemdCgroup is %v in the runtime's options, but the cgroup path has the other form: following the path", opts.Runc.SystemdCgroup)
		}
		opts.Runc.SystemdCgroup = systemd
	}
	var err error
	r.Options, err = anypb.New(opts.Runc)
	return err
}

// createWithGPU decides what the container gets, makes the changes in the root file system and the
// bundle, creates the container and attaches the mask. After an error, nothing is left behind.
func (s *Service) createWithGPU(ctx context.Context, r *taskapi.CreateTaskRequest, c gpuinject.Container, outcome *state.Event) (_ *taskapi.CreateTaskResponse, err error) {
	start := time.Now()
	kept, err := s.reserve(r.ID)
	if err != nil { // guard: shim: one container for an id
		// Cleaning up would remove the other container's root file system.
		return nil, err
	}
	// guard: shim: no checkpoints of pods
	kept.checkpoints = c.Config.Policy.AllowCheckpoints && !c.Input.Container.Kubernetes
	kept.suspendsGPU, kept.bundle, kept.held = c.SuspendsGPU, r.Bundle, probe.Memory{}
	destroyed := true
	defer func() {
		if err != nil && destroyed { // otherwise it stays registered, so that Start refuses it
			s.giveUp(ctx, r.ID, kept)
		}
	}()
	if kept.rootfs, err = mountRootfs(r); err != nil {
		return nil, err
	}
	s.update(r.ID, kept)
	rootPath := cmp.Or(kept.rootfs, c.Bundle.RootPath()) // containerd's client may have mounted it
	plan, mask, err := inject(c, rootPath, r)
	if err != nil {
		return nil, err
	}
	kept.hasGPU, kept.gpus, kept.addresses, kept.memory = plan.GPU, exchangeable(plan), plan.Proc.GPUs, newGPUMemory(c, plan)
	created := ready
	if r.Checkpoint != "" && plan.GPU {
		kept.restoration = restoration{mask: mask, view: plan.Changes.View.Root, viewDir: plan.Changes.View.Dir}
		created, mask = restoring, nil
	}
	defer mask.Close()
	took := time.Since(start)
	outcome.GPU, outcome.OwnSeconds = plan.GPU, took.Seconds()
	resp, err := s.createMounted(ctx, r, kept.rootfs != "")
	if err != nil {
		return nil, err
	}
	if mask != nil {
		err = attachMask(mask, int(resp.Pid), rootPath)
	}
	if errors.Is(err, procmask.ErrEnded) {
		// As with the stock shim, the state is "stopped" and the exit event is sent. Start refuses the
		// container, which stays in the state creating.
		log.G(ctx).WithError(err).WithField("id", r.ID).Warn("nvidia: the container has ended before it was started")
		return resp, nil
	}
	if err == nil && created == ready {
		err = kept.limitMemory(ctx, r.ID, int(resp.Pid))
		s.update(r.ID, kept) // with the cgroup, for Delete
	}
	if err != nil {
		destroyed = s.destroy(ctx, r.ID) // guard: shim: no container without mask
		return nil, err
	}
	kept.state = created
	s.update(r.ID, kept)
	logCreated(ctx, c, plan, took)
	return resp, nil
}

// giveUp cleans up after a container that was not created.
func (s *Service) giveUp(ctx context.Context, id string, c gpuContainer) {
	c.restoration.mask.Close()
	unmountRootfs(ctx, c.rootfs)
	s.remove(id)
}

// createMounted has the embedded service create the container. If mounted is true, Create has
// mounted the root file system, and the embedded service must not mount it again.
func (s *Service) createMounted(ctx context.Context, r *taskapi.CreateTaskRequest, mounted bool) (resp *taskapi.CreateTaskResponse, err error) {
	if mounted {
		s.events.rootfs.Store(r.ID, r.Rootfs)
		r.Rootfs = nil
	}
	s.events.exits.Store(r.ID, make(chan struct{}))
	if err = fault.Point("create"); err == nil {
		resp, err = s.TTRPCTaskService.Create(ctx, r)
	}
	if err != nil {
		// No event was sent. The event of a created container may be sent after this function has
		// returned.
		s.events.rootfs.Delete(r.ID)
		s.events.exits.Delete(r.ID)
	}
	return resp, err
}

// inject resolves what the container gets and carries it out, in the root file system at rootPath
// and in the bundle.
func inject(c gpuinject.Container, rootPath string, r *taskapi.CreateTaskRequest) (plan gpuinject.Plan, mask *procmask.Mask, err error) {
	defer recovered(&err)
	root, err := image.Open(rootPath)
	if err != nil {
		return plan, nil, err
	}
	defer root.Close()
	plan, err = gpuinject.Resolve(c, root, asking(c.Config))
	if err == nil && r.Checkpoint != "" {
		err = plan.CheckRestore(c, r.Checkpoint) // guard: shim: no GPU by a checkpoint
		// guard: shim: fixed programs for restores
		if err == nil && plan.GPU {
			err = checkCheckpointPrograms(r.Options)
		}
	}
	if err != nil {
		return plan, nil, err
	}
	return gpuinject.Apply(c, plan, root)
}

// attachMask attaches the mask in the mount namespace of the container's init process pid, whose
// root file system is at rootPath. If it fails, the container must not be started (invariant I8).
func attachMask(mask *procmask.Mask, pid int, rootPath string) (err error) {
	defer recovered(&err)
	if err = fault.Point("mask"); err == nil {
		err = mask.Attach(pid, rootPath)
	}
	if err != nil {
		err = verdict.Internal("%w", err)
	}
	return err
}

// destroyLimit bounds killing a container in destroy, and deleting it.
const destroyLimit = 10 * time.Second

// destroy kills and deletes a created container that must not start (invariant I8) or that no
// client waits for. It reports whether the container is gone.
func (s *Service) destroy(ctx context.Context, id string) bool {
	ctx = context.WithoutCancel(ctx) // the request that failed may have been cancelled
	limited, cancel := context.WithTimeout(ctx, destroyLimit)
	defer cancel()
	if _, err := s.TTRPCTaskService.Kill(limited, &taskapi.KillRequest{ID: id, Signal: uint32(unix.SIGKILL), All: true}); err != nil {
		log.G(ctx).WithError(err).WithField("id", id).Warn("nvidia: kill a container that may not start")
	}
	_, _ = s.TTRPCTaskService.Wait(limited, &taskapi.WaitRequest{ID: id})
	s.takeBackMemory(ctx, id) // which has its own limit
	limited, cancelDelete := context.WithTimeout(ctx, destroyLimit)
	defer cancelDelete()
	if _, err := s.deleteTask(limited, &taskapi.DeleteRequest{ID: id}); err != nil {
		log.G(ctx).WithError(err).WithField("id", id).Error("nvidia: delete a container that may not start")
		return false
	}
	return true
}

// logCreated logs the creation of a container that asks for GPUs, at the configured level.
func logCreated(ctx context.Context, c gpuinject.Container, p gpuinject.Plan, took time.Duration) {
	level := slices.Index([]string{"error", "warn", "info", "debug"}, c.Config.Log.Level)
	entry := log.G(ctx).WithField("id", c.ID)
	if level < 1 || !c.Asks {
		return
	}
	if !p.GPU {
		entry.WithFields(log.Fields{"reason": p.Reason, "grant": p.Grant}).Warn("nvidia: the container asks for GPUs and starts without them")
		return
	}
	if p.Audit != "" {
		entry.Warn("nvidia: " + p.Audit)
	}
	for _, s := range p.Warnings {
		entry.Warn("nvidia: " + s)
	}
	for _, s := range p.Ignored {
		entry.Warnf("nvidia: ignored: %s", s)
	}
	if level < 2 {
		return
	}
	entry.WithFields(log.Fields{
		"gpus": strings.Join(p.Names(), ","), "capabilities": strings.Join(p.Capabilities, ","),
		"driver": p.DriverVersion, "reason": p.Reason, "grant": p.Grant, "cache": p.Linker.Cache, "took": took.String(),
	}).Info("nvidia: GPUs injected")
	if level < 3 {
		return
	}
	for _, n := range p.Notes {
		entry.Info("nvidia: " + n)
	}
}
