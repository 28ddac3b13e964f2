package gpuinject

import (
	"bytes"
	"errors"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/policy"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
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
	// AskCDI asks the probe what CDI specifications say of other vendors' devices. It is
	// called at most once, and only where a container asks for such devices and may
	// have them.
	AskCDI func(bundle.CDIRequest) (*bundle.CDIEdits, error)
	// Explain enters every decision in the plan, for nvidia-shimctl.
	Explain bool

	ahead  *Ahead
	bundle *bundle.Bundle
	// taken is set where CDI put the devices into the specification, which are request
	// and grant; granted are identifiers that elsewhere are grants by being named.
	taken   bool
	granted []string
	// otherwise is the request without a pod's annotations, which only select; without
	// Driver where there is none.
	otherwise *request.Request
	// otherwiseErr is why that cannot be read.
	otherwiseErr error
	// meanings are the identifiers of the request, kept for explanations only.
	meanings []meaning
	known    *device.Facts
	asked    bool // known is an answer to this job, not an earlier one
	inv      *device.Inventory
	confirm  bool // inv is of before the request
	// read are files of the driver's procfs that were read to confirm it.
	read  map[string][]byte
	grant policy.Grant
	set   device.Set   // what the container gets
	gpus  []device.GPU // what it sees: whole ones and those of its MIG devices
	nodes []device.Node
	state *view.State
	stamp string
	// manifest is set by loadManifest; looked says that it is of this moment.
	manifest *manifest
	looked   bool
	early    *earlyManifest
	files    driver.Files
	// all are the files of every capability.
	all     driver.Files
	sockets []specs.Mount
	// foreign is what CDI specifications say of other vendors' devices.
	foreign *bundle.CDIEdits
	// image is open from inspect on, for as long as the caller has it open.
	image *image.Root
	// targets are places in it as they are before anything is written.
	targets *image.Targets
}

// Examine reads the bundle dir and returns nil where the container does not ask
// for the driver: unset, empty or void variables, and the sandbox (pause)
// container of a pod, whose variables say nothing about what it is for. Such a
// container never meets the configuration, the driver or their errors.
//
// raw is config.json as it was read, for what else the caller wants of it; nil
// where it is not an ordinary file of root's.
func Examine(dir string, load func() (*config.Config, error)) (job *Job, raw []byte, err error) {
	return (*Ahead)(nil).Examine(dir, load)
}

// Examine is Examine without decoding anew what a saw.
func (a *Ahead) Examine(dir string, load func() (*config.Config, error)) (job *Job, raw []byte, err error) {
	raw, mode, err := bundle.Read(dir)
	if err != nil {
		// Not a file that we would edit. Where it does not ask for a GPU either,
		// that is between containerd and runc.
		if name := filepath.Join(dir, bundle.ConfigName); !asksSomewhere(name) {
			return nil, nil, nil
		}
		return nil, nil, fail(Precondition, "%w", err)
	}
	if !a.asks(raw) {
		return nil, raw, nil
	}
	b, err := a.parse(dir, raw, mode)
	if err != nil {
		return nil, raw, fail(Invalid, "%w", err)
	}
	if job, err = examine(b, load); job != nil {
		job.ahead = a
	}
	return job, raw, ordinary(err)
}

// examine returns leftAlone where the container is none of the shim's business.
func examine(b *bundle.Bundle, load func() (*config.Config, error)) (*Job, error) {
	if b.Spec.Process == nil {
		return nil, leftAlone("the container has no process")
	}
	env := b.Spec.Process.Env
	taken := editedByCDI(&b.Spec)
	list, listErr := request.DeviceList(b.Spec.Mounts)
	who := policy.Identify(&b.Spec)
	named, namedErr := annotated(&b.Spec, who)
	// A pod is no task of a swarm, whatever its variables are called.
	swarm := !who.Kubernetes && request.HasSwarm(env)
	asks := request.Wants(env) || !list.Empty() || listErr != nil || !named.Empty() || namedErr != nil || taken || swarm
	switch {
	case !asks:
		return nil, leftAlone(request.WhyNot(env))
	case who.Sandbox:
		return nil, leftAlone("the sandbox container of a pod is never given a GPU")
	}
	cfg, err := load()
	if err != nil {
		return nil, fail(Precondition, "%w", err)
	}
	if swarm {
		env = request.WithSwarm(env, cfg.Policy.SwarmResources)
	}
	bounds := request.Bounds{
		Default: cfg.Container.DefaultCapabilities, Supported: cfg.Container.SupportedCapabilities,
		NoChannels: cfg.Policy.IgnoreIMEXChannels,
	}
	job := &Job{Config: cfg, Container: who, bundle: b, taken: taken}
	accepted := cfg.Policy.AcceptVolumeMounts
	if accepted && listErr == nil {
		job.granted = list.IDs()
	}
	read := func(named request.List) (req request.Request, err error) {
		switch {
		case taken:
			return request.FromNodes(env, bounds)
		case !named.Empty():
			req, err = request.FromAnnotations(named, env, bounds)
		case accepted && listErr != nil:
			err = listErr
		case accepted && !list.Empty():
			req, err = request.WithDeviceList(list, env, bounds)
		case !accepted && request.NamesDirectory(env):
			return req, fail(Denied, "%s=%s means the mounts there, and policy.accept-volume-mounts is false: set it to true, or have the device plugin use another strategy", request.EnvVisibleDevices, request.DeviceListDir)
		default:
			req, err = request.FromEnv(env, bounds)
		}
		if err == nil && req.Driver && accepted {
			err = req.AddChannelMounts(b.Spec.Mounts, bounds)
		}
		return req, err
	}
	if err = namedErr; err == nil {
		job.Request, err = read(named)
	}
	if err == nil && !named.Empty() && !taken {
		if who.Kubernetes {
			// What a pod's author writes must not stand in the way of what was allocated.
			// Nor must a mistake elsewhere, as long as nobody needs to look there.
			req, err := read(request.List{})
			job.otherwise, job.otherwiseErr = &req, asRefusal(err)
		} else {
			job.granted = append(job.granted, named.IDs()...)
		}
	}
	switch {
	case err != nil:
		return nil, asRefusal(err)
	case !job.Request.Driver:
		return nil, leftAlone(job.Request.Reason)
	}
	job.plan()
	return job, nil
}

// asRefusal is an error of a request that cannot be read.
func asRefusal(err error) error {
	var refused *Error
	if err == nil || errors.As(err, &refused) {
		return err
	}
	return fail(Invalid, "%w", err)
}

// plan begins the plan with the request.
func (j *Job) plan() {
	r := j.Request
	j.Plan.GPU, j.Plan.Reason, j.Plan.Asked, j.Plan.Capabilities = true, r.Reason, r.Devices, r.Capabilities
}

// annotated returns what CDI annotations name. A container that CDI has edited, which
// says "void", has its devices. In a pod, containerd applies the annotations that are
// the kubelet's, so that what other vendors' kinds and mistakes mean there is its
// affair; a pod author can write annotations too, and they grant nothing.
func annotated(spec *bundle.Spec, who policy.Container) (request.List, error) {
	if len(spec.Annotations) == 0 || request.Void(spec.Process.Env) {
		return request.List{}, nil
	}
	l, err := request.Annotated(spec.Annotations, who.Name)
	if who.Kubernetes && (err != nil || l.OnlyForeign()) {
		return request.List{}, nil
	}
	return l, err
}

// mightAsk is a test of a few microseconds that most containers fail: no variable
// of the contract is anywhere in the configuration.
func mightAsk(raw []byte) bool {
	has := func(word []byte) bool { return bytes.Contains(raw, word) }
	// One look for what three of the words begin with: every word costs microseconds.
	return slices.ContainsFunc(askWords, has) || has(hyphenWord) && slices.ContainsFunc(hyphenWords, has)
}

// askWords and hyphenWords, which begin with hyphenWord, are in the configuration of
// every container that asks: of the contract's variables, CDI annotations and swarm's
// variables; of the device list and CDI's hooks.
var (
	askWords = [][]byte{
		[]byte(request.EnvVisibleDevices), []byte("CUDA_VERSION"), []byte("cdi.k8s.io"), []byte(request.SwarmPrefix),
	}
	hyphenWord  = []byte("nvidia-c")
	hyphenWords = [][]byte{[]byte(path.Base(request.DeviceListDir)), []byte(cdiHook), []byte(ctkHook)}
)

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
