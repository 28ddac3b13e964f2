package gpuinject

import (
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/grant"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/place"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
)

// Container is a container whose specification has been read.
type Container struct {
	// ID and Namespace identify the container in containerd. The caller sets them for the record.
	ID, Namespace string
	// Raw is config.json as it was read, or nil if bundle.Read rejected the file.
	Raw []byte
	// Asks reports whether the container asks for the driver; Reason says why or why not.
	Asks   bool
	Reason string
	// Plain is true if the container does not ask for the driver, and its specification has none of
	// NVIDIA's hooks and, unless it is privileged, no nodes of the driver. The shim creates it
	// unchanged and does not examine the driver; the fields below need not be set.
	Plain bool
	// Bundle holds the parsed config.json, Config the shim's configuration.
	Bundle *bundle.Bundle
	Config *config.Config
	// Input holds everything in the specification that can ask for the driver. Request is what the
	// container asks for under Config, if Asks is true.
	Input   request.Input
	Request request.Request
	// SuspendsGPU reports whether the container gives its GPUs back while it is paused.
	SuspendsGPU bool
	// IdleAfter is the time without GPU work after which the container is suspended, 0 if never.
	IdleAfter time.Duration
}

func (c Container) toGrant() grant.Container {
	return grant.Container{Config: c.Config, Input: c.Input, Request: c.Request, Devices: c.Bundle.Spec.Linux.Devices}
}

func (c Container) toPlace() place.Container {
	return place.Container{Bundle: c.Bundle, Input: c.Input, Host: c.Config.Host, Settings: c.Config.Container}
}

// Examine reads the bundle in dir, once. It calls load, which loads the configuration, only for a
// container that asks for the driver, or whose specification has NVIDIA's hooks or, unless it is
// privileged, nodes of the driver. A container does not ask if its variables are unset, empty or
// "void", or if it is the sandbox (pause) container of a pod, whose variables say nothing about its
// purpose.
func Examine(dir string, load func() (*config.Config, error)) (Container, error) {
	raw, mode, err := bundle.Read(dir)
	if err != nil {
		// The shim would not edit this file. If the file does not ask for a GPU either, the shim
		// leaves it to runc.
		if !mightAskUnchecked(filepath.Join(dir, bundle.ConfigName)) { // guard: config.json: another's is no request
			return Container{Plain: true, Reason: err.Error()}, nil
		}
		return Container{}, verdict.Precondition("%w", err)
	}
	if !request.MightAsk(raw) {
		return Container{Raw: raw, Plain: true, Reason: request.EnvVisibleDevices + " is not set"}, nil
	}
	b, err := bundle.Parse(dir, raw, mode)
	if err != nil {
		return Container{Raw: raw}, verdict.Invalid("%w", err)
	}
	return examine(b, load)
}

// ExamineSpec is like Examine, for a specification that is not in a bundle.
func ExamineSpec(spec any, load func() (*config.Config, error)) (Container, error) {
	raw, err := json.Marshal(spec)
	if err != nil {
		return Container{}, err
	}
	b, err := bundle.Parse("", raw, 0o600)
	if err != nil {
		return Container{}, verdict.Invalid("%w", err)
	}
	return examine(b, load)
}

func examine(b *bundle.Bundle, load func() (*config.Config, error)) (Container, error) {
	c := Container{Raw: b.Raw(), Bundle: b, Input: request.Read(&b.Spec)}
	asks, why := c.Input.Asks()
	// guard: mask: without a request
	hasDriver := c.Input.NVIDIAHooks || c.Input.Container.DriverNodes && !c.Input.Container.Privileged
	c.Reason, c.Plain = why, !asks && !hasDriver
	if c.Plain {
		return c, nil
	}
	if err := b.Spec.CheckCounts(); err != nil { // guard: parsers: mounts, devices, rules, hooks
		return c, verdict.Invalid("%w", err)
	}
	var err error
	if c.Config, err = load(); err != nil {
		return c, verdict.Precondition("%w", err)
	}
	if !asks {
		return c, nil
	}
	if c.Request, err = c.Input.Request(c.Config); err != nil {
		return c, grant.RefuseRequest(err)
	}
	onPause := cmp.Or(b.Spec.Annotations[annotationOnPause], c.Config.Container.OnPause)
	if onPause != config.SuspendGPU && onPause != config.Freeze {
		return c, verdict.Invalid("annotation %s: %.256q is not %s or %s", annotationOnPause, onPause, config.SuspendGPU, config.Freeze)
	}
	c.Asks, c.Reason = c.Request.Driver, c.Request.Reason
	c.Plain = !c.Asks && !hasDriver
	c.SuspendsGPU = c.Asks && onPause == config.SuspendGPU
	if c.Asks {
		c.IdleAfter, err = idleAfter(b.Spec.Annotations[annotationIdle], c.Config.Policy.SuspendIdleAfter, onPause)
	}
	return c, err
}

// mightAskUnchecked applies request.MightAsk to a file of any size that bundle.Read rejected.
// Anything but a regular file counts as asking: the embedded service would open it, and would block
// on a FIFO without a writer (T52).
func mightAskUnchecked(name string) bool {
	info, err := os.Stat(name)
	if err != nil || !info.Mode().IsRegular() {
		return err == nil
	}
	f, err := os.Open(name)
	if err != nil {
		return false
	}
	defer f.Close()
	const overlap = 64 // more than the longest word
	part := make([]byte, 0, 1<<20)
	for {
		n, err := f.Read(part[len(part):cap(part)])
		part = part[:len(part)+n]
		if err != nil || request.MightAsk(part) {
			return err == nil
		}
		part = append(part[:0], part[max(0, len(part)-overlap):]...)
	}
}
