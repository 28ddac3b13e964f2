package gpuinject

import (
	"cmp"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// Container is a container whose specification has been read.
type Container struct {
	// ID and Namespace are containerd's, for the record. The caller sets them.
	ID, Namespace string
	// Raw is config.json as it was read; nil if it is not a regular file of root's.
	Raw []byte
	// Asks is true if the container asks for the driver; Reason says why, or why not.
	Asks   bool
	Reason string
	// Plain is true if the container does not ask, and its specification has no hooks of NVIDIA's
	// and, unless it is privileged, no nodes of the driver. It is created as it is: the rest need not
	// be set, and it never meets the configuration, the driver or their errors.
	Plain bool
	// Bundle is the parsed configuration, Config the shim's configuration.
	Bundle *bundle.Bundle
	Config *config.Config
	// Input is everything by which the container can ask, Request what it asks for under Config, if
	// Asks is true.
	Input   request.Input
	Request request.Request
	// SuspendsGPU reports whether the container gives its GPUs back while it is paused.
	SuspendsGPU bool
}

// annotationOnPause is an annotation that replaces container.on-pause for one container.
const annotationOnPause = "io.containerd.nvidia.on-pause"

// Examine reads the bundle dir, once. load loads the configuration and is called only for a
// container that asks for the driver: not if the variables are unset, empty or "void", and not for
// the sandbox (pause) container of a pod, whose variables say nothing of its purpose.
func Examine(dir string, load func() (*config.Config, error)) (Container, error) {
	raw, mode, err := bundle.Read(dir)
	if err != nil {
		// The shim would not edit this file. If it does not ask for a GPU either, it is a matter
		// between containerd and runc.
		if !mightAskUnchecked(filepath.Join(dir, bundle.ConfigName)) {
			return Container{Plain: true, Reason: err.Error()}, nil
		}
		return Container{}, fail(Precondition, "%w", err)
	}
	if !request.MightAsk(raw) {
		return Container{Raw: raw, Plain: true, Reason: request.EnvVisibleDevices + " is not set"}, nil
	}
	b, err := bundle.Parse(dir, raw, mode)
	if err != nil {
		return Container{Raw: raw}, fail(Invalid, "%w", err)
	}
	return examine(b, load)
}

// ExamineSpec is Examine for a specification that is in no bundle.
func ExamineSpec(spec any, load func() (*config.Config, error)) (Container, error) {
	raw, err := json.Marshal(spec)
	if err != nil {
		return Container{}, err
	}
	b, err := bundle.Parse("", raw, 0o600)
	if err != nil {
		return Container{}, fail(Invalid, "%w", err)
	}
	return examine(b, load)
}

func examine(b *bundle.Bundle, load func() (*config.Config, error)) (Container, error) {
	c := Container{Raw: b.Raw(), Bundle: b, Input: request.Read(&b.Spec)}
	asks, why := c.Input.Asks()
	hasDriver := c.Input.NVIDIAHooks || c.Input.Container.DriverNodes && !c.Input.Container.Privileged
	c.Reason, c.Plain = why, !asks && !hasDriver
	if c.Plain {
		return c, nil
	}
	var err error
	if c.Config, err = load(); err != nil {
		return c, fail(Precondition, "%w", err)
	}
	if !asks {
		return c, nil
	}
	if c.Request, err = c.Input.Request(c.Config); err != nil {
		return c, refuseRequest(err)
	}
	onPause := cmp.Or(b.Spec.Annotations[annotationOnPause], c.Config.Container.OnPause)
	if onPause != config.SuspendGPU && onPause != config.Freeze {
		return c, fail(Invalid, "annotation %s: %.256q is not %s or %s", annotationOnPause, onPause, config.SuspendGPU, config.Freeze)
	}
	c.Asks, c.Reason = c.Request.Driver, c.Request.Reason
	c.Plain = !c.Asks && !hasDriver
	c.SuspendsGPU = c.Asks && onPause == config.SuspendGPU
	return c, nil
}

// refuseRequest returns the refusal of a request that cannot be read or followed.
func refuseRequest(err error) error {
	if errors.As(err, new(request.DeniedError)) {
		return fail(Denied, "%w", err)
	}
	return fail(Invalid, "%w", err)
}

// mightAskUnchecked is request.MightAsk of a file that is not root's alone. Anything but a regular
// file counts as asking: the embedded service would open it, and wait for the writer of a FIFO
// (T52).
func mightAskUnchecked(name string) bool {
	info, err := os.Stat(name)
	if err != nil || !info.Mode().IsRegular() {
		return err == nil
	}
	raw, err := os.ReadFile(name)
	return err == nil && request.MightAsk(raw)
}
