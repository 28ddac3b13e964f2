package gpuinject

import (
	"encoding/json"
	"os"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/procmask"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/fault"
)

// Begin begins what need not be done before the container is created: what was seen of
// its GPUs ahead is looked at again, its record is written, and its mask made. `runc create`, which takes ten times as long, goes on
// meanwhile. Until Wait or Close has returned, nothing of the job may change.
func (i *Injection) Begin() {
	if i.done != nil {
		return
	}
	i.done = make(chan struct{})
	go func() {
		defer close(i.done)
		// Nobody recovers on this goroutine: a panic goes where the result is awaited.
		defer func() { i.panicked = recover() }()
		i.mask, i.err = i.job.finish()
	}()
}

// Wait returns when what Begin began is done. Where it failed the container must not be
// started.
func (i *Injection) Wait() error {
	i.Begin()
	<-i.done
	if i.panicked != nil {
		panic(i.panicked)
	}
	return i.err
}

// Attach puts the mask into the mount namespace of the created, not yet started
// container whose init process is pid, after Wait. Where it fails the container must not
// be started (invariant I8). A container without a mask needs nothing else.
func (i *Injection) Attach(pid int) error {
	if err := i.Wait(); err != nil || i.mask == nil {
		return err
	}
	if err := fault.Point("mask"); err != nil {
		return fail(Internal, "%w", err)
	}
	if err := i.mask.Attach(pid, i.job.Config.Host.ProcMaskTarget); err != nil {
		return fail(Internal, "%w", err)
	}
	return nil
}

// Close gives up what the injection holds; an attached mask stays.
func (i *Injection) Close() {
	if i.done == nil {
		return
	}
	if <-i.done; i.mask != nil {
		i.mask.Close()
		i.mask = nil
	}
}

// finish makes sure of the GPUs, writes the record and makes the mask, nil where the
// container gets none.
func (j *Job) finish() (*procmask.Mask, error) {
	if j.confirm {
		read, err := j.inv.Confirm(j.gpus, j.set.Capabilities())
		if err != nil {
			return nil, fail(Precondition, "%w", err)
		}
		j.read = read
	}
	if err := fault.Point("record"); err != nil {
		return nil, fail(Internal, "%w", err)
	}
	if err := j.record(); err != nil {
		return nil, err
	}
	if !j.Plan.Proc.Masked {
		return nil, nil
	}
	if err := fault.Point("mask-build"); err != nil {
		return nil, fail(Internal, "%w", err)
	}
	return j.buildMask()
}

// record writes what was done and why beside the configuration.
func (j *Job) record() error {
	data, err := json.MarshalIndent(j.Plan, "", "  ")
	if err != nil {
		return fail(Internal, "%w", err)
	}
	if err := bundle.WriteFile(j.bundle.Dir, RecordName, append(data, '\n'), os.FileMode(0o600)); err != nil {
		return fail(Internal, "%w", err)
	}
	return nil
}
