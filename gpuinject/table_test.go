package gpuinject

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

// table is the form of most tests: a container's request and its outcome. Its containers go through
// Examine and Resolve, which change nothing.
type table struct {
	// host is the simulated host of all tests if it is nil.
	host *testHost
	// env is part of every row.
	env []string
	// show returns the part of a plan that the table is about: showGPUs if it is nil.
	show func(Plan) string
	rows []row
}

type row struct {
	name   string
	env    []string
	spec   func(*specs.Spec)
	config func(*config.Config)
	host   *testHost         // instead of the table's
	image  func(root string) // makes the image, which is empty otherwise
	// want is the outcome as shown, or "refused: " and a part of the message, or several parts
	// separated by " ... ".
	want string
	kind verdict.Kind // of the refusal; any but Internal if it is 0
}

func (tb table) run(t *testing.T) {
	t.Helper()
	if tb.host == nil {
		tb.host = simulatedHost(t)
	}
	for _, r := range tb.rows {
		t.Run(r.name, func(t *testing.T) {
			r.host = cmp.Or(r.host, tb.host)
			got := tb.outcome(t, r)
			if !matches(got, r.want) {
				t.Errorf("%s, want %s", got, r.want)
			}
		})
	}
}

// matches reports whether got is the wanted outcome.
func matches(got, want string) bool {
	parts, refused := strings.CutPrefix(want, "refused: ")
	if !refused {
		return got == want
	}
	message, ok := strings.CutPrefix(got, "refused: ")
	for part := range strings.SplitSeq(parts, " ... ") {
		ok = ok && strings.Contains(message, part)
	}
	return ok
}

func (tb table) outcome(t *testing.T, r row) string {
	t.Helper()
	cfg, err := config.Load(r.host.ConfigPath)
	check(t, err)
	cfg.Host = r.host.cfg.Host
	if r.config != nil {
		r.config(cfg)
	}
	spec := newSpec(slices.Concat(tb.env, r.env)...)
	if r.spec != nil {
		r.spec(spec)
	}
	c, err := ExamineSpec(spec, loading(cfg))
	var plan Plan
	if err == nil && c.Asks {
		root := t.TempDir()
		if r.image != nil {
			r.image(root)
		}
		plan, err = resolveIn(t, c, root, r.host.ask)
	}
	var refused *verdict.Error
	switch {
	case errors.As(err, &refused):
		if strings.ContainsAny(err.Error(), "\n\r") {
			t.Errorf("error %q is more than one line", err)
		}
		if refused.Kind == verdict.KindInternal || r.kind != 0 && refused.Kind != r.kind {
			t.Errorf("error %q is of kind %d, want %d", err, refused.Kind, r.kind)
		}
		return "refused: " + err.Error()
	case err != nil:
		t.Fatal(err)
	case !c.Asks:
		return "left alone"
	case !plan.GPU:
		return "starts without a GPU"
	case tb.show != nil:
		return tb.show(plan)
	}
	return showGPUs(plan)
}

// devices returns the environment of a row with NVIDIA_VISIBLE_DEVICES.
func devices(value string) []string { return []string{"NVIDIA_VISIBLE_DEVICES=" + value} }

// caps returns the environment of a row with NVIDIA_DRIVER_CAPABILITIES.
func caps(value string) []string { return []string{"NVIDIA_DRIVER_CAPABILITIES=" + value} }

// all combines several changes to a specification.
func all(changes ...func(*specs.Spec)) func(*specs.Spec) {
	return func(s *specs.Spec) {
		for _, change := range changes {
			change(s)
		}
	}
}

// listing adds device-list mounts.
func listing(ids ...string) func(*specs.Spec) {
	return func(s *specs.Spec) {
		for _, id := range ids {
			mounting("/dev/null", request.DeviceListDir+"/"+id)(s)
		}
	}
}

func mounting(source, at string) func(*specs.Spec) {
	return func(s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Source: source, Destination: at, Type: "bind"})
	}
}

func annotated(key, value string) func(*specs.Spec) {
	return func(s *specs.Spec) { s.Annotations[key] = value }
}

// inPod puts the container into a pod, with the nodes of the allocated GPUs in its specification.
func inPod(allocated ...int) func(*specs.Spec) { return inPodOf(simulated, allocated...) }

// inPodOf is like inPod, for another host.
func inPodOf(d *sim.Driver, gpus ...int) func(*specs.Spec) {
	return func(s *specs.Spec) {
		annotated("io.kubernetes.cri.container-type", "container")(s)
		annotated("io.kubernetes.cri.sandbox-namespace", "default")(s)
		for _, i := range gpus {
			withNode(d.Majors.GPU, d.GPUs[i].Minor)(s)
		}
	}
}

// withNode adds a node as a device plugin does.
func withNode(major uint32, minor int) func(*specs.Spec) {
	return func(s *specs.Spec) {
		s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{
			Path: fmt.Sprintf("/dev/plugin-%d-%d", major, minor), Type: "c", Major: int64(major), Minor: int64(minor),
		})
	}
}

func admin(s *specs.Spec) {
	s.Process.Capabilities.Bounding = append(s.Process.Capabilities.Bounding, "CAP_SYS_ADMIN")
}

func unmasked(s *specs.Spec) { s.Linux.MaskedPaths = nil }

var privileged = all(admin, unmasked)

// withHook adds an OCI hook of the stage that docker --gpus uses.
func withHook(program string) func(*specs.Spec) {
	return func(s *specs.Spec) {
		s.Hooks = &specs.Hooks{Prestart: []specs.Hook{{Path: program}}} //nolint:staticcheck // docker --gpus uses it.
	}
}

func noEnv(c *config.Config)    { c.Policy.AcceptEnvWhenUnprivileged = false }
func noMounts(c *config.Config) { c.Policy.AcceptVolumeMounts = false }

// kubernetes sets policy.kubernetes.
func kubernetes(mode string) func(*config.Config) {
	return func(c *config.Config) { c.Policy.Kubernetes = mode }
}

func showGPUs(p Plan) string {
	var list []string
	for _, g := range p.GPUs {
		list = append(list, strconv.Itoa(g.Index))
	}
	switch len(list) {
	case 0:
		return "the driver without a GPU"
	case len(simulated.GPUs):
		return "every GPU"
	case 1:
		return "GPU " + list[0]
	}
	return "GPUs " + strings.Join(list, ", ")
}

// showMIG shows whole GPUs, MIG devices by the ids of their GPU instance and compute instance, and
// rights.
func showMIG(p Plan) string {
	var list []string
	for _, g := range p.GPUs {
		list = append(list, fmt.Sprintf("GPU %d", g.Index))
	}
	for _, m := range p.MIG {
		list = append(list, fmt.Sprintf("%d/%d of GPU %d", m.GI, m.CI, m.GPU))
	}
	for _, r := range p.MIGRights {
		list = append(list, "the right `mig/"+r+"`")
	}
	return strings.Join(list, ", ")
}

// showProc shows which GPUs are in the container's procfs.
func showProc(p Plan) string {
	if !p.Proc.Masked {
		return "not masked"
	}
	var list []string
	for _, g := range simulated.GPUs {
		if slices.Contains(p.Proc.GPUs, g.BusID) {
			list = append(list, fmt.Sprintf("GPU %d", g.Index))
		}
	}
	return "masked, shows " + strings.Join(list, ", ")
}

// showAsked shows the GPUs and the nodes of other classes.
func showAsked(p Plan) string {
	s := showGPUs(p)
	if nodes := otherNodes(p); nodes != "" {
		s += ", `" + strings.ReplaceAll(nodes, " ", "`, `") + "`"
	}
	return s
}

// withAudit adds the text of the audit.
func withAudit(show func(Plan) string) func(Plan) string {
	return func(p Plan) string {
		if p.Audit == "" {
			return show(p)
		}
		return show(p) + "; " + p.Audit
	}
}
