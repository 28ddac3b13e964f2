package gpuinject

import (
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// Annotations grant outside Kubernetes. In a pod they select among the allocated GPUs.
func TestAnnotations(t *testing.T) {
	gpu3, gpu1 := []string{"cdi.k8s.io/x=nvidia.com/gpu=3"}, []string{"cdi.k8s.io/x=nvidia.com/gpu=1"}
	other := []string{"cdi.k8s.io/x=nvidia.com/gpu=0,nvidia.com/gdrcopy=all,nvidia.com/imex-channel=1"}
	noEnv := func(c *config.Config) { c.Policy.AcceptEnvWhenUnprivileged = false }
	noMounts := func(c *config.Config) { c.Policy.AcceptVolumeMounts = false }
	contractSection{show: showAsked, cases: []contractCase{
		{name: "environment not accepted", annotations: gpu3, config: noEnv, here: "GPU 3"},
		{name: "one of those allocated", annotations: gpu3, spec: inPod(1, 3), here: "GPU 3"},
		{name: "all of those allocated", annotations: []string{"cdi.k8s.io/x=nvidia.com/gpu=all"}, spec: inPod(1, 2), here: "GPUs 1, 2"},
		{name: "another one than those allocated", annotations: gpu3, spec: inPod(1), here: "starts without a GPU"},
		{name: "another one, and all by the environment", annotations: gpu3, env: devices("all"), spec: inPod(1), here: "GPU 1"},
		{name: "another one, and a mistake in the environment", annotations: gpu3, env: devices("nvidia.com/toaster=0"), spec: inPod(1), here: "refused: nvidia.com/toaster=0"},
		{name: "an allocated one, and all by the environment", annotations: gpu1, env: devices("all"), spec: inPod(1, 2), here: "GPU 1"},
		{name: "an allocated one, and a mistake in the environment", annotations: gpu1, env: devices("nvidia.com/toaster=0"), spec: inPod(1, 2), here: "GPU 1"},
		{name: "an allocated one, and mounts that are not accepted", annotations: gpu1, env: devices("/var/run/nvidia-container-devices"), config: noMounts, spec: inPod(1, 2), here: "GPU 1"},
		{name: "nothing allocated", annotations: gpu3, spec: inPod(), here: "starts without a GPU"},
		{name: "a GPU that no host has", annotations: []string{"cdi.k8s.io/x=nvidia.com/gpu=77"}, spec: inPod(1), here: "starts without a GPU"},
		{name: "a mistake in a pod", annotations: []string{"cdi.k8s.io/x=k8s.gpu.nvidia.com/claim=abc"}, spec: inPod(), here: "left alone"},
		{name: "a mistake elsewhere", annotations: []string{"cdi.k8s.io/x=nvidia.com/toaster=0"}, here: "refused: annotation \"cdi.k8s.io/x\": \"nvidia.com/toaster=0\""},
		{name: "a host without a driver", annotations: gpu1, spec: inPod(), config: func(c *config.Config) { c.Host.ProcRoot = t.TempDir() }, here: "starts without a GPU"},
		{name: "other devices", annotations: other, config: noEnv, here: "GPU 0, `channel1`, `gdrdrv`"},
		{name: "other devices in a pod", annotations: other, config: noEnv, spec: inPod(0), here: "GPU 0"},
	}}.run(t)
}

// In Kubernetes the environment selects and never grants.
func TestPods(t *testing.T) {
	uuid := func(i int) string { return simulated.GPUs[i].UUID }
	of := func(namespace string) func(*specs.Spec) {
		return func(s *specs.Spec) { inPod()(s); s.Annotations["io.kubernetes.cri.sandbox-namespace"] = namespace }
	}
	mode := func(mode string) func(*config.Config) { return func(c *config.Config) { c.Policy.Kubernetes = mode } }
	// A pod must not find out which GPUs there are by asking for them.
	const denied = "refused: is not this container's: in the container's specification: "
	contractSection{
		show: func(p Plan) string {
			if p.Audit != "" {
				return showGPUs(p) + "; " + p.Audit
			}
			return showGPUs(p)
		},
		cases: []contractCase{
			{name: "all, nothing allocated", env: devices("all"), spec: inPod(), here: "starts without a GPU"},
			{name: "none, nothing allocated", env: devices("none"), spec: inPod(), here: "starts without a GPU"},
			{name: "one, nothing allocated", env: devices("0"), spec: inPod(), here: "refused: is not this container's: no GPU was allocated"},
			{name: "all, one allocated", env: devices("all"), spec: inPod(2), here: "GPU 2"},
			{name: "the allocated one by UUID", env: devices(uuid(2)), spec: inPod(2), here: "GPU 2"},
			{name: "the allocated one by index", env: devices("2"), spec: inPod(2), here: "GPU 2"},
			{name: "one of two allocated", env: devices("3"), spec: inPod(1, 3), here: "GPU 3"},
			{name: "another one by UUID", env: devices(uuid(0)), spec: inPod(2), here: "refused: GPU \"" + uuid(0) + "\" is not this container's: in the container's specification: " + uuid(2)},
			{name: "an unknown one by UUID", env: devices("GPU-00000000"), spec: inPod(2), here: "refused: GPU \"GPU-00000000\" is not this container's: in the container's specification: " + uuid(2)},
			{name: "another one by index", env: devices("0"), spec: inPod(2), here: denied + uuid(2)},
			{name: "the allocated one and another", env: devices("2,0"), spec: inPod(2), here: denied + uuid(2)},
			{name: "one that no host has", env: devices("99"), spec: inPod(2), here: denied + uuid(2)},
			{name: "a trusted namespace", env: devices("all"), spec: of("gpu-operator"), here: "every GPU"},
			{name: "a namespace that looks alike", env: devices("all"), spec: of("gpu-operator "), here: "starts without a GPU"},
			{name: "no namespace", env: devices("all"), spec: of(""), here: "starts without a GPU"},
			{name: "privileged", env: devices("1"), spec: func(s *specs.Spec) { inPod()(s); privileged(s) }, here: "GPU 1"},
			{name: "trust-env", env: devices("1"), spec: inPod(), config: mode(config.TrustEnv), here: "GPU 1"},
			{name: "audit, the allocated one", env: devices("2"), spec: inPod(2), config: mode(config.Audit), here: "GPU 2"},
			{name: "audit, another one", env: devices("1"), spec: inPod(2), config: mode(config.Audit),
				here: "GPU 1; kubernetes = \"enforce\" would have refused this: in the container's specification: " + uuid(2)},
		},
	}.run(t)
}
