package gpuinject

import (
	"bytes"
	"os"
	"path"
	"path/filepath"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/rootfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
)

// Job is a container that asks for the driver, on its way through the steps.
type Job struct {
	// Config is the configuration in force.
	Config *config.Config
	// Request is what the container asks for.
	Request request.Request
	// Container is who asks.
	Container policy.Container
	// Plan is what it gets so far.
	Plan Plan
	// AskKubelet asks the kubelet behind a socket what it allocated to a pod. It is
	// called at most once, and only where nothing else says what was allocated.
	AskKubelet func(socket, namespace, pod string) (policy.Allocation, error)
	// AskNVML asks the probe for what only NVML knows. It is called only where a request
	// needs it and no earlier answer is good, and again where MIG changed meanwhile.
	AskNVML func() (device.Facts, error)
	// Explain enters every decision in the plan, for nvidia-shimctl.
	Explain bool

	bundle *bundle.Bundle
	// meanings are the identifiers of the request, kept for explanations only.
	meanings []meaning
	known    *device.Facts
	asked    bool // known is an answer to this job, not an earlier one
	inv      *device.Inventory
	grant    policy.Grant
	set      device.Set   // what the container gets
	gpus     []device.GPU // what it sees: whole ones and those of its MIG devices
	nodes    []device.Node
	state    *view.State
	stamp    string
	// manifest is set by loadManifest; looked says that it is of this moment.
	manifest *manifest
	looked   bool
	files    driver.Files
	// image is open from inspect on, for as long as the caller has it open.
	image *rootfs.Root
}

// Examine reads the bundle dir and returns nil where the container does not ask
// for the driver: unset, empty or void variables, and the sandbox (pause)
// container of a pod, whose variables say nothing about what it is for. Such a
// container never meets the configuration, the driver or their errors.
//
// raw is config.json as it was read, for what else the caller wants of it; nil
// where it is not an ordinary file of root's.
func Examine(dir string, load func() (*config.Config, error)) (job *Job, raw []byte, err error) {
	raw, mode, err := bundle.Read(dir)
	if err != nil {
		// Not a file that we would edit. Where it does not ask for a GPU either,
		// that is between containerd and runc.
		if name := filepath.Join(dir, bundle.ConfigName); !asksSomewhere(name) {
			return nil, nil, nil
		}
		return nil, nil, fail(Precondition, "%w", err)
	}
	if !mightAsk(raw) {
		return nil, raw, nil
	}
	b, err := bundle.Parse(dir, raw, mode)
	if err != nil {
		return nil, raw, fail(Invalid, "%w", err)
	}
	job, err = examine(b, load)
	return job, raw, err
}

func examine(b *bundle.Bundle, load func() (*config.Config, error)) (*Job, error) {
	if b.Spec.Process == nil {
		return nil, nil
	}
	env := b.Spec.Process.Env
	list, listErr := request.DeviceList(b.Spec.Mounts)
	if !request.Wants(env) && len(list) == 0 && listErr == nil {
		return nil, nil
	}
	who := policy.Identify(&b.Spec)
	if who.Sandbox {
		return nil, nil
	}
	cfg, err := load()
	if err != nil {
		return nil, fail(Precondition, "%w", err)
	}
	bounds := request.Bounds{Default: cfg.Container.DefaultCapabilities, Supported: cfg.Container.SupportedCapabilities}
	var req request.Request
	switch mounted := cfg.Policy.AcceptVolumeMounts; {
	case mounted && listErr != nil:
		err = listErr
	case mounted && len(list) > 0:
		req, err = request.WithDeviceList(list, env, bounds)
	default:
		if req, err = request.FromEnv(env, bounds); err == nil && !req.Driver {
			return nil, nil
		}
	}
	if err == nil && cfg.Policy.AcceptVolumeMounts {
		err = req.AddChannelMounts(b.Spec.Mounts)
	}
	if err != nil {
		return nil, fail(Invalid, "%w", err)
	}
	return &Job{
		Config: cfg, Request: req, Container: who, bundle: b,
		Plan: Plan{GPU: true, Reason: req.Reason, Asked: req.Devices, Capabilities: req.Capabilities},
	}, nil
}

// mightAsk is a test of a few microseconds that most containers fail: no variable
// of the contract is anywhere in the configuration.
func mightAsk(raw []byte) bool {
	return bytes.Contains(raw, []byte(request.EnvVisibleDevices)) || bytes.Contains(raw, []byte("CUDA_VERSION")) ||
		bytes.Contains(raw, []byte(path.Base(request.DeviceListDir)))
}

func asksSomewhere(name string) bool {
	if info, err := os.Stat(name); err != nil || !info.Mode().IsRegular() {
		return false
	}
	raw, err := os.ReadFile(name)
	return err == nil && mightAsk(raw)
}

// RootPath returns the host path of the root file system of the bundle dir, as
// its configuration has it, for callers of containerd that mounted it themselves.
func RootPath(dir string) (string, error) {
	b, err := bundle.Load(dir)
	if err != nil {
		return "", err
	}
	root := "rootfs"
	if b.Spec.Root != nil && b.Spec.Root.Path != "" {
		root = b.Spec.Root.Path
	}
	if !filepath.IsAbs(root) {
		root = filepath.Join(dir, root)
	}
	return root, nil
}
