package gpuinject

import (
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

// inPod makes the container one of a pod whose specification carries the nodes of the
// allocated GPUs.
func inPod(allocated ...int) func(*specs.Spec) { return inPodOf(simulated, allocated...) }

func inPodOf(d *sim.Driver, allocated ...int) func(*specs.Spec) {
	return func(s *specs.Spec) {
		s.Annotations["io.kubernetes.cri.container-type"] = "container"
		s.Annotations["io.kubernetes.cri.sandbox-namespace"] = "default"
		for _, i := range allocated {
			s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{
				Path: "/dev/of-the-plugin", Type: "c", Major: int64(d.Majors.GPU), Minor: int64(d.GPUs[i].Minor),
			})
		}
	}
}

func admin(s *specs.Spec) {
	s.Process.Capabilities.Bounding = append(s.Process.Capabilities.Bounding, "CAP_SYS_ADMIN")
}

func privileged(s *specs.Spec) {
	admin(s)
	s.Linux.MaskedPaths = nil
}

// withHook adds an OCI hook of the stage that docker --gpus uses.
func withHook(program string) func(*specs.Spec) {
	return func(s *specs.Spec) {
		s.Hooks = &specs.Hooks{Prestart: []specs.Hook{{Path: program}}} //nolint:staticcheck // docker --gpus uses it.
	}
}

func showHooks(p Plan) string {
	if len(p.RemovedHooks) > 0 {
		return showGPUs(p) + ", the hook is removed"
	}
	return showGPUs(p) + ", the hook stays"
}

// showTwice shows whether a node is in the specification under two entries.
func showTwice(p Plan) string {
	seen := map[string]bool{}
	for _, d := range p.edits.Devices {
		if seen[d.Path] {
			return showGPUs(p) + ", and twice " + d.Path
		}
		seen[d.Path] = true
	}
	return showGPUs(p) + ", no node twice"
}

// showProc shows what of the host's GPUs is in the container's procfs.
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

func policyContract() []contractSection {
	const (
		off   = "`policy.accept-env-when-unprivileged = false`"
		fails = "fails"
	)
	noEnv := func(c *config.Config) { c.Policy.AcceptEnvWhenUnprivileged = false }
	trust := func(c *config.Config) { c.Policy.Kubernetes = config.TrustEnv }
	return []contractSection{{
		title: "Who may ask by environment",
		cases: []contractCase{
			{name: "any container outside Kubernetes", env: devices("0"), here: "GPU 0", jit: same, legacy: same},
			{name: "not the unprivileged, if the operator says so", env: devices("all"), with: off, config: noEnv, here: "starts without a GPU", jit: same, legacy: same},
			{name: "the unprivileged name a GPU all the same", env: devices("0"), with: off, config: noEnv, here: "refused: accept-env-when-unprivileged is off", jit: "starts without a GPU", legacy: "starts without a GPU"},
			{name: "the privileged still", env: devices("0"), with: "privileged; " + off, config: noEnv, spec: privileged, here: "GPU 0", jit: same, legacy: same},
			{name: "the capability SYS_ADMIN alone", env: devices("0"), with: "`CAP_SYS_ADMIN`; " + off, config: noEnv, spec: admin, here: "refused: accept-env-when-unprivileged is off", jit: "GPU 0", legacy: "GPU 0"},
			{name: "an image in a pod that was given nothing", env: devices("all"), with: "a pod", spec: inPod(), here: "starts without a GPU", jit: "every GPU", legacy: "every GPU"},
			{name: "an image in a pod that was given a GPU", env: devices("all"), with: "a pod with GPU 2", spec: inPod(2), here: "GPU 2", jit: "every GPU", legacy: "every GPU"},
			{name: "a pod names another's GPU", env: devices("0"), with: "a pod with GPU 2", spec: inPod(2), here: `refused: GPU "0" is not this container's`, jit: "GPU 0", legacy: "GPU 0"},
			{name: "a pod where the environment is trusted", env: devices("0"), with: "a pod; `policy.kubernetes = \"trust-env\"`", spec: inPod(), config: trust, here: "GPU 0", jit: same, legacy: same},
		},
	}, {
		title: "Hooks in the specification", env: devices("0"), show: showHooks,
		cases: []contractCase{
			{name: "the toolkit's, as Docker adds it", with: "`nvidia-container-runtime-hook`", spec: withHook("/usr/bin/nvidia-container-runtime-hook"), here: "GPU 0, the hook is removed", jit: same, legacy: "the hook injects"},
			{name: "the toolkit's under its older name", with: "`nvidia-container-toolkit`", spec: withHook("/usr/bin/nvidia-container-toolkit"), here: "GPU 0, the hook is removed", jit: same, legacy: same},
			{name: "where the operator wants none", with: "`nvidia-container-runtime-hook`; `policy.foreign-hooks = \"refuse\"`", spec: withHook("/usr/bin/nvidia-container-runtime-hook"),
				config: func(c *config.Config) { c.Policy.ForeignHooks = config.Refuse }, here: "refused: NVIDIA's OCI hook"},
			{name: "another vendor's", with: "`/opt/other/hook`", spec: withHook("/opt/other/hook"), here: "GPU 0, the hook stays", jit: same, legacy: same},
		},
	}, {
		title: "Nodes in the specification", show: showTwice,
		cases: []contractCase{
			{name: "of the device plugin", env: devices("all"), with: "a pod with GPU 2 and its node", spec: func(s *specs.Spec) {
				inPod(2)(s)
				s.Linux.Devices[len(s.Linux.Devices)-1].Path = fmt.Sprintf("/dev/nvidia%d", simulated.GPUs[2].Minor)
			}, here: "GPU 2, no node twice"},
			{name: "with another device's number", env: devices("0"), with: "`/dev/nvidiactl` as 1:3", spec: func(s *specs.Spec) {
				s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{Path: "/dev/nvidiactl", Type: "c", Major: 1, Minor: 3})
			}, here: "refused: is already in the container's configuration as c 1:3"},
		},
	}, {
		title: "/proc/driver/nvidia", env: devices("0"), show: showProc,
		cases: []contractCase{
			{name: "of an ordinary container", here: "masked, shows GPU 0", jit: "every GPU; only `params` is covered", legacy: same},
			{name: "of a privileged container", with: "privileged", spec: privileged, here: "not masked", jit: "every GPU; only `params` is covered", legacy: "masked as well"},
		},
	}, {
		title: "Option",
		cases: []contractCase{
			{name: "`accept-nvidia-visible-devices-as-volume-mounts`", mounts: []string{"1"}, with: "`policy.accept-volume-mounts = false`",
				config: func(c *config.Config) { c.Policy.AcceptVolumeMounts = false }, here: "left alone", jit: "same, by default", legacy: "same, by default"},
			{name: "`accept-nvidia-visible-devices-envvar-when-unprivileged`", env: devices("all"), with: off, config: noEnv, here: "starts without a GPU", jit: same, legacy: same},
			{name: "`disable-require`", env: append(devices("0"), "NVIDIA_REQUIRE_CUDA=cuda>=99"), with: "`policy.disable-require = true`",
				config: func(c *config.Config) { c.Policy.DisableRequire = true }, here: "GPU 0", jit: "never checked", legacy: same},
			{name: "`supported-driver-capabilities`", env: append(devices("0"), caps("video")...), with: "`container.supported-capabilities = [\"utility\"]`",
				config: func(c *config.Config) { c.Container.SupportedCapabilities = []string{"utility"} }, here: "refused: supported: utility", jit: "capabilities ignored", legacy: fails},
			{name: "`swarm-resource`", env: []string{"DOCKER_RESOURCE_GPU=1"}, with: "`policy.swarm-resources = [\"DOCKER_RESOURCE_GPU\"]`",
				config: func(c *config.Config) { c.Policy.SwarmResources = []string{"DOCKER_RESOURCE_GPU"} }, here: "GPU 1", jit: same, legacy: same},
			{name: "`nvidia-container-runtime-hook.skip-mode-detection`", env: devices("0"), with: "Docker's `--gpus`; `policy.foreign-hooks = \"replace\"`", spec: withHook("/usr/bin/nvidia-container-runtime-hook"),
				here: "GPU 0", jit: "lets the hook run"},
			{name: "`nvidia-container-cli.root`", env: devices("0"), with: "`host.driver-root = \"/nowhere\"`",
				config: func(c *config.Config) { c.Host.DriverRoot = "/nowhere" }, here: "refused: host.driver-root", jit: "that root's files", legacy: "that root's files"},
		},
	}}
}
