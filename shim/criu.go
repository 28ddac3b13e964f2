package shim

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/api/types/task"
	runctask "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/runc"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/go-runc"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/procmask"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/advisories"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/criu"
)

// restoredMask is the directory in the bundle that the mask is mounted on while CRIU restores the
// container.
const restoredMask = "nvidia-proc-driver"

// Checkpoint makes runc and CRIU write the container's processes to files. CRIU cannot save GPU
// memory, so it is moved to the host first, whatever the value of container.on-pause. Unless the
// checkpoint ends the container, it continues afterwards. A container that was paused stays paused;
// Resume moves its memory back.
func (s *Service) Checkpoint(ctx context.Context, r *taskapi.CheckpointTaskRequest) (resp *emptypb.Empty, err error) {
	c, does, unlock, err := s.lock(r.ID, callCheckpoint)
	defer unlock()
	if err != nil {
		return nil, toGRPC(err)
	}
	if does == pass || !c.hasGPU {
		return s.TTRPCTaskService.Checkpoint(ctx, r)
	}
	status := s.status(ctx, r.ID)
	paused := status == task.Status_PAUSED
	if !paused && status != task.Status_RUNNING {
		return s.TTRPCTaskService.Checkpoint(ctx, r) // which refuses it
	}
	if err := c.checkCheckpoint(r.ID); err != nil {
		return nil, toGRPC(err)
	}
	onHost := paused && c.state == suspended
	if paused && !onHost { // a frozen process cannot move its memory
		_, err = s.thaw(ctx, &taskapi.ResumeRequest{ID: r.ID}, c)
	}
	if err == nil && !onHost {
		_, err = s.suspend(ctx, &taskapi.PauseRequest{ID: r.ID}, c)
		onHost = err == nil
	}
	if err == nil {
		resp, err = s.dump(ctx, r, c)
	}
	var opts runcoptions.CheckpointOptions
	if err == nil && r.Options.UnmarshalTo(&opts) == nil && opts.Exit {
		return resp, nil
	}
	if paused && onHost {
		s.keepSuspended(r.ID, c)
		return resp, toGRPC(err)
	}
	ctx = context.WithoutCancel(ctx) // the request that failed may have been cancelled
	undone := s.wake(ctx, r.ID, c, paused)
	if undone == nil || s.status(ctx, r.ID) == task.Status_STOPPED {
		return resp, toGRPC(err)
	}
	if err == nil {
		err = errors.New("nvidia: the checkpoint was written")
	}
	s.keepSuspended(r.ID, c)
	_, again := s.suspend(ctx, &taskapi.PauseRequest{ID: r.ID}, c)
	return nil, s.failed(ctx, r.ID, fmt.Errorf("%w; the container stays paused: %w", err, undone), again)
}

// checkCheckpoint returns an error unless the container may be written to a checkpoint and the
// programs that write it are safe.
func (c gpuContainer) checkCheckpoint(id string) error {
	if !c.checkpoints { // guard: shim: checkpoints allowed
		return verdict.Denied("container %s has GPUs: it is written to a checkpoint only outside Kubernetes and if policy.allow-checkpoints is true in the shim's configuration", id)
	}
	opts, err := runctask.ReadOptions(c.bundle)
	if err != nil {
		return err
	}
	return checkPrograms(opts.GetBinaryName())
}

// checkCheckpointPrograms returns an error unless the programs that restore a container with these
// runtime options are safe.
func checkCheckpointPrograms(message *anypb.Any) error {
	var opts runcoptions.Options
	if err := message.UnmarshalTo(&opts); err != nil {
		return err
	}
	return checkPrograms(opts.BinaryName)
}

// checkPrograms returns an error unless this runtime, "" for runc, and the CRIU that it will execute
// have the fixes without which an image chooses what CRIU mounts (package advisories).
func checkPrograms(runtime string) error {
	versions, err := versionsOf(cmp.Or(runtime, "runc"), "criu")
	if err == nil {
		err = advisories.CheckRuntime(versions[0]) // guard: shim: fixed runc for checkpoints
	}
	if err == nil {
		err = advisories.CheckCRIU(versions[1]) // guard: shim: fixed CRIU for checkpoints
	}
	if err != nil {
		err = verdict.Precondition("a container with GPUs is neither written to a checkpoint nor restored: %w", err)
	}
	return err
}

// dump writes the checkpoint, with the record of what the container was given. The driver's files
// and the mask are left out: the host that restores the checkpoint provides its own.
func (s *Service) dump(ctx context.Context, r *taskapi.CheckpointTaskRequest, c gpuContainer) (resp *emptypb.Empty, err error) {
	state, err := s.State(ctx, &taskapi.StateRequest{ID: r.ID})
	if err != nil {
		return nil, err
	}
	record, err := os.ReadFile(filepath.Join(c.bundle, gpuinject.RecordName))
	if err != nil {
		return nil, err
	}
	if err = os.MkdirAll(r.Path, 0o700); err != nil {
		return nil, err
	}
	if err = os.WriteFile(filepath.Join(r.Path, gpuinject.RecordName), record, 0o600); err != nil {
		return nil, err
	}
	external := map[string]string{procmask.Dir: procmask.Dir}
	var plan gpuinject.Plan
	if err = json.Unmarshal(record, &plan); err != nil || len(plan.Mounts) == 0 {
		return nil, fmt.Errorf("nvidia: the record of container %s does not say where its driver is: %w", r.ID, cmp.Or(err, errors.New("it has no mount")))
	}
	files, err := mountsBelow(fmt.Sprint(state.Pid), plan.Mounts[0].Destination) // of the view
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		external[file] = file
	}
	if ctx, err = withExternal(ctx, c.bundle, external); err != nil {
		return nil, err
	}
	return s.TTRPCTaskService.Checkpoint(ctx, r)
}

// restore starts a container from its checkpoint. CRIU mounts the mask before the processes run;
// then their GPU memory is moved back. If that fails, the container is killed.
func (s *Service) restore(ctx context.Context, r *taskapi.StartRequest, c gpuContainer) (resp *taskapi.StartResponse, err error) {
	defer func() {
		c.restoration.mask.Close()
		c.state = ready
		if err != nil {
			c.state = notRestored
		}
		s.update(r.ID, c)
	}()
	ctx = context.WithoutCancel(ctx) // stopping halfway would leave processes frozen
	external := map[string]string{}
	files, err := mountsBelow("self", c.restoration.view)
	if err != nil {
		return nil, toGRPC(err)
	}
	for _, file := range files {
		external[c.restoration.viewDir+strings.TrimPrefix(file, c.restoration.view)] = file
	}
	if c.restoration.mask != nil { // guard: shim: mask before restored processes
		external[procmask.Dir] = filepath.Join(c.bundle, restoredMask)
		if err := c.restoration.mask.MountAt(external[procmask.Dir]); err != nil {
			return nil, toGRPC(err)
		}
		defer procmask.Unmount(filepath.Join(c.bundle, restoredMask))
	}
	withCRIU, err := withExternal(ctx, c.bundle, external)
	if err != nil {
		return nil, toGRPC(err)
	}
	resp, err = s.TTRPCTaskService.Start(withCRIU, r)
	if mask := c.restoration.mask; err == nil && mask != nil && s.status(ctx, r.ID) != task.Status_STOPPED {
		err = mask.CheckAttached(int(resp.Pid)) // guard: shim: mask after a restore
	}
	if err == nil {
		err = c.limitMemory(ctx, r.ID, int(resp.Pid))
	}
	if err == nil {
		err = s.move(ctx, r.ID, false, c, nil)
	}
	if err == nil {
		return resp, nil
	}
	// Start may have failed after CRIU succeeded.
	_, killed := s.TTRPCTaskService.Kill(ctx, &taskapi.KillRequest{ID: r.ID, Signal: uint32(unix.SIGKILL), All: true})
	if killed != nil && !errdefs.IsNotFound(errgrpc.ToNative(killed)) && s.status(ctx, r.ID) == task.Status_RUNNING {
		err = fmt.Errorf("%w; and it could not be killed: %w", err, killed)
	}
	return nil, toGRPC(err)
}

// maxExternal bounds the mounts that CRIU is told about. A view has a few hundred.
const maxExternal = 4096

func mountsBelow(process, dir string) (list []string, err error) {
	f, err := os.Open("/proc/" + process + "/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	_, err = mountinfo.GetMountsFromReader(f, func(m *mountinfo.Info) (skip, stop bool) {
		// A container that may mount chooses these names, which are written to a CRIU configuration
		// file.
		if strings.HasPrefix(m.Mountpoint, dir+"/") && criu.IsPlain(m.Mountpoint) { // guard: shim: names for CRIU
			list = append(list, m.Mountpoint)
		}
		return true, len(list) > maxExternal
	})
	if len(list) > maxExternal {
		err = fmt.Errorf("more than %d mounts below %s", maxExternal, dir)
	}
	return list, err
}

// withExternal tells CRIU, which runc executes, what to mount at these paths in the container. runc
// itself tells CRIU only about the mounts in config.json.
func withExternal(ctx context.Context, bundle string, external map[string]string) (context.Context, error) {
	var text bytes.Buffer
	for name, source := range external {
		if !criu.IsPlain(name) || !criu.IsPlain(source) { // guard: shim: names written for CRIU
			return nil, fmt.Errorf("nvidia: %q and %q cannot both be named to CRIU: one has a character that CRIU gives a meaning to", name, source)
		}
		fmt.Fprintf(&text, "external \"mnt[%s]:%s\"\n", name, source)
	}
	file := filepath.Join(bundle, "nvidia-criu.conf")
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		return nil, err
	}
	return runc.WithExtraEnv(ctx, "CRIU_CONFIG_FILE="+file), nil // added to the files in /etc/criu (criu(8))
}
