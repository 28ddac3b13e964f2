package gpuinject

import (
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// Annotations grant outside Kubernetes. In a pod they select among the allocated GPUs.
func TestAnnotations(t *testing.T) {
	cdi := func(name string) func(*specs.Spec) { return annotated("cdi.k8s.io/x", name) }
	gpu1, gpu3 := cdi("nvidia.com/gpu=1"), cdi("nvidia.com/gpu=3")
	other := cdi("nvidia.com/gpu=0,nvidia.com/gdrcopy=all,nvidia.com/imex-channel=1")
	table{show: showAsked, rows: []row{
		{name: "environment not accepted", spec: gpu3, config: noEnv, want: "GPU 3"},
		{name: "one of those allocated", spec: all(gpu3, inPod(1, 3)), want: "GPU 3"},
		{name: "all of those allocated", spec: all(cdi("nvidia.com/gpu=all"), inPod(1, 2)), want: "GPUs 1, 2"},
		{name: "another one than those allocated", spec: all(gpu3, inPod(1)), want: "starts without a GPU"},
		{name: "another one, and all by the environment", env: devices("all"), spec: all(gpu3, inPod(1)), want: "GPU 1"},
		{name: "another one, and a mistake in the environment", env: devices("nvidia.com/toaster=0"), spec: all(gpu3, inPod(1)), want: "refused: nvidia.com/toaster=0"},
		{name: "an allocated one, and all by the environment", env: devices("all"), spec: all(gpu1, inPod(1, 2)), want: "GPU 1"},
		{name: "an allocated one, and a mistake in the environment", env: devices("nvidia.com/toaster=0"), spec: all(gpu1, inPod(1, 2)), want: "GPU 1"},
		{name: "an allocated one, and mounts that are not accepted", env: devices("/var/run/nvidia-container-devices"), config: noMounts, spec: all(gpu1, inPod(1, 2)), want: "GPU 1"},
		{name: "nothing allocated", spec: all(gpu3, inPod()), want: "starts without a GPU"},
		{name: "a GPU that no host has", spec: all(cdi("nvidia.com/gpu=77"), inPod(1)), want: "starts without a GPU"},
		{name: "a mistake in a pod", spec: all(cdi("k8s.gpu.nvidia.com/claim=abc"), inPod()), want: "left alone"},
		{name: "a mistake elsewhere", spec: cdi("nvidia.com/toaster=0"), want: "refused: annotation \"cdi.k8s.io/x\": \"nvidia.com/toaster=0\""},
		{name: "a host without a driver", spec: all(gpu1, inPod()), config: func(c *config.Config) { c.Host.ProcRoot = t.TempDir() }, want: "starts without a GPU"},
		{name: "other devices", spec: other, config: noEnv, want: "GPU 0, `channel1`, `gdrdrv`"},
		{name: "other devices in a pod", config: noEnv, spec: all(other, inPod(0)), want: "GPU 0"},
	}}.run(t)
}

// In Kubernetes the environment selects and never grants.
func TestPods(t *testing.T) {
	uuid := func(i int) string { return simulated.GPUs[i].UUID }
	of := func(namespace string) func(*specs.Spec) { return all(inPod(), inNamespace(namespace)) }
	// A pod must not find out which GPUs there are by asking for them.
	const denied = "refused: is not this container's: in the container's specification: "
	table{
		show: withAudit(showGPUs),
		rows: []row{
			{name: "all, nothing allocated", env: devices("all"), spec: inPod(), want: "starts without a GPU"},
			{name: "none, nothing allocated", env: devices("none"), spec: inPod(), want: "starts without a GPU"},
			{name: "one, nothing allocated", env: devices("0"), spec: inPod(), want: "refused: is not this container's: no GPU was allocated"},
			{name: "all, one allocated", env: devices("all"), spec: inPod(2), want: "GPU 2"},
			{name: "the allocated one by UUID", env: devices(uuid(2)), spec: inPod(2), want: "GPU 2"},
			{name: "the allocated one by index", env: devices("2"), spec: inPod(2), want: "GPU 2"},
			{name: "one of two allocated", env: devices("3"), spec: inPod(1, 3), want: "GPU 3"},
			{name: "another one by UUID", env: devices(uuid(0)), spec: inPod(2), want: "refused: GPU \"" + uuid(0) + "\" is not this container's: in the container's specification: " + uuid(2)},
			{name: "an unknown one by UUID", env: devices("GPU-00000000"), spec: inPod(2), want: "refused: GPU \"GPU-00000000\" is not this container's: in the container's specification: " + uuid(2)},
			{name: "another one by index", env: devices("0"), spec: inPod(2), want: denied + uuid(2)},
			{name: "the allocated one and another", env: devices("2,0"), spec: inPod(2), want: denied + uuid(2)},
			{name: "one that no host has", env: devices("99"), spec: inPod(2), want: denied + uuid(2)},
			{name: "a trusted namespace", env: devices("all"), spec: of("gpu-operator"), want: "every GPU"},
			{name: "a namespace that looks alike", env: devices("all"), spec: of("gpu-operator "), want: "starts without a GPU"},
			{name: "no namespace", env: devices("all"), spec: of(""), want: "starts without a GPU"},
			{name: "privileged", env: devices("1"), spec: all(inPod(), privileged), want: "GPU 1"},
			{name: "trust-env", env: devices("1"), spec: inPod(), config: kubernetes(config.TrustEnv), want: "GPU 1"},
			{name: "audit, the allocated one", env: devices("2"), spec: inPod(2), config: kubernetes(config.Audit), want: "GPU 2"},
			{name: "audit, another one", env: devices("1"), spec: inPod(2), config: kubernetes(config.Audit),
				want: "GPU 1; kubernetes = \"enforce\" would have refused this: in the container's specification: " + uuid(2)},
		},
	}.run(t)
}
