package gpuinject

import (
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// showAsked is showGPUs with the nodes of other classes.
func showAsked(p Plan) string {
	s := showGPUs(p)
	if nodes := otherNodes(p); nodes != "" {
		s += ", `" + strings.ReplaceAll(nodes, " ", "`, `") + "`"
	}
	return s
}

// showTaken is what became of a specification that CDI edited.
func showTaken(p Plan) string {
	s := showGPUs(p)
	if len(p.RemovedHooks) > 0 {
		s += ", NVIDIA's hooks are removed"
	}
	return s
}

// askContract are the ways to ask besides plain names in the variable.
func askContract(t *testing.T) []contractSection {
	swarm := func(names ...string) func(*config.Config) {
		return func(c *config.Config) { c.Policy.SwarmResources = names }
	}
	cdi := func(change func(*specs.Spec), names ...string) func(*specs.Spec) {
		return func(s *specs.Spec) {
			applyCDI(t, s, realCDI(t), names...)
			if change != nil {
				change(s)
			}
		}
	}
	noHooks := func(s *specs.Spec) { s.Hooks = nil }
	const annotated = "GPU 1, by CDI file"
	const byFile = "by CDI file"
	directory := "NVIDIA_VISIBLE_DEVICES=" + request.DeviceListDir
	return []contractSection{{
		title: "CDI names", show: showAsked,
		cases: []contractCase{
			{name: "an index", env: devices("nvidia.com/gpu=1"), here: "GPU 1", jit: byFile, legacy: "fails"},
			{name: "a UUID", env: devices("nvidia.com/gpu=" + simulated.GPUs[1].UUID), here: "GPU 1", jit: byFile, legacy: "fails"},
			{name: "all", env: devices("nvidia.com/gpu=all"), here: "every GPU", jit: byFile, legacy: "fails"},
			{name: "none", env: devices("nvidia.com/gpu=none"), here: "the driver without a GPU"},
			{name: "the kind of NVIDIA's runtime", env: devices("runtime.nvidia.com/gpu=1"), here: "GPU 1", jit: "GPU 1", legacy: "fails"},
			{name: "the kind of the device plugin", env: devices("k8s.device-plugin.nvidia.com/gpu=1"), here: "GPU 1", jit: byFile, legacy: "fails"},
			{name: "the kind of management containers", env: devices("management.nvidia.com/gpu=all"), here: "every GPU, `channel0`, `channel1`, `channel2`", jit: "every driver node, by CDI file", legacy: "fails"},
			{name: "CDI names beside plain ones", env: devices("0,nvidia.com/gpu=1"), here: "GPUs 0, 1", jit: "fails", legacy: "fails"},
			{name: "GPUDirect Storage", env: devices("0,nvidia.com/gds=all"), here: "GPU 0, `nvidia-fs0`, `nvidia-fs1`", jit: byFile, legacy: "fails"},
			{name: "an IMEX channel", env: devices("0,nvidia.com/imex-channel=2"), here: "GPU 0, `channel2`", jit: byFile, legacy: "fails"},
			{name: "an unknown class", env: devices("nvidia.com/toaster=0"), here: "refused: is of an unknown CDI kind", jit: "fails", legacy: "fails"},
			{name: "another vendor's device", env: devices("nvidia.com/gpu=1,example.com/nic=eth0"), here: "refused: name it to containerd", jit: "the device", legacy: "fails"},
			{name: "another vendor's device alone", env: devices("example.com/nic=eth0"), here: "refused: name it to containerd", jit: "the device", legacy: "fails"},
			{name: "another vendor's device in a pod", env: devices("0,example.com/nic=eth0"), with: "a pod with GPU 0", spec: inPod(0), here: "refused: name it to containerd", jit: "the device", legacy: "fails"},
			{name: "by a mount", mounts: []string{"cdi/nvidia.com/gpu/1"}, here: "GPU 1", jit: byFile, legacy: ""},
		},
	}, {
		title: "The directory of the device list",
		cases: []contractCase{
			{name: "without a mount", env: []string{directory}, here: "refused: the container has none", jit: "fails", legacy: "fails"},
			{name: "where mounts are not accepted", env: []string{directory}, mounts: []string{"1"}, with: "`policy.accept-volume-mounts = false`",
				config: func(c *config.Config) { c.Policy.AcceptVolumeMounts = false }, here: "refused: policy.accept-volume-mounts is false", jit: "fails", legacy: "fails"},
		},
	}, {
		title: "Swarm's resources",
		cases: []contractCase{
			{name: "one that is not configured", env: []string{"DOCKER_RESOURCE_GPU=1"}, here: "left alone", jit: same, legacy: same},
			{name: "one", env: []string{"NVIDIA_VISIBLE_DEVICES=all", "DOCKER_RESOURCE_GPU=1"}, with: "`policy.swarm-resources = [\"DOCKER_RESOURCE_GPU\"]`", config: swarm("DOCKER_RESOURCE_GPU"), here: "GPU 1", jit: "same, by `swarm-resource`", legacy: "same, by `swarm-resource`"},
			{name: "two of them", env: []string{"DOCKER_RESOURCE_B=1", "DOCKER_RESOURCE_A=0"}, with: "`policy.swarm-resources = [\"DOCKER_RESOURCE_A\", \"DOCKER_RESOURCE_B\"]`", config: swarm("DOCKER_RESOURCE_A", "DOCKER_RESOURCE_B"), here: "GPUs 0, 1", jit: "same, by `swarm-resource`", legacy: "same, by `swarm-resource`"},
			{name: "an empty one", env: []string{"NVIDIA_VISIBLE_DEVICES=all", "DOCKER_RESOURCE_GPU="}, with: "`policy.swarm-resources = [\"DOCKER_RESOURCE_GPU\"]`", config: swarm("DOCKER_RESOURCE_GPU"), here: "left alone", jit: same, legacy: same},
			{name: "void in the second of two", env: []string{"DOCKER_RESOURCE_A=all", "DOCKER_RESOURCE_B=void"}, with: "`policy.swarm-resources = [\"DOCKER_RESOURCE_A\", \"DOCKER_RESOURCE_B\"]`", config: swarm("DOCKER_RESOURCE_A", "DOCKER_RESOURCE_B"), here: "left alone", jit: same, legacy: same},
		},
	}, {
		title: "Annotations", show: showAsked,
		cases: []contractCase{
			{name: "a CDI name", annotations: []string{"cdi.k8s.io/x=nvidia.com/gpu=1"}, here: "GPU 1", jit: annotated, legacy: "ignored"},
			{name: "before the environment", env: devices("0"), annotations: []string{"cdi.k8s.io/x=nvidia.com/gpu=1"}, here: "GPU 1", jit: annotated, legacy: "ignored"},
			{name: "of NVIDIA's NRI plugin", annotations: []string{"nvidia.cdi.k8s.io=nvidia.com/gpu=0"}, here: "GPU 0", jit: "same, by that plugin", legacy: "same, by that plugin"},
			{name: "of that plugin, for the container and for the pod", annotations: []string{"nvidia.cdi.k8s.io=nvidia.com/gpu=0", "nvidia.cdi.k8s.io/container.ctr=nvidia.com/gpu=1"}, with: "the container `ctr`",
				spec: func(s *specs.Spec) { s.Annotations["io.kubernetes.cri.container-name"] = "ctr" }, here: "GPU 1", jit: "same, by that plugin", legacy: "same, by that plugin"},
			{name: "no CDI name", annotations: []string{"cdi.k8s.io/x=1"}, here: `refused: "1" is not a CDI name`, jit: "ignored", legacy: "ignored"},
			{name: "in a pod that was given another", annotations: []string{"cdi.k8s.io/x=nvidia.com/gpu=1"}, with: "a pod with GPU 0", spec: inPod(0), here: "starts without a GPU", jit: "GPU 1", legacy: "ignored"},
			{name: "in a pod, another vendor's", annotations: []string{"cdi.k8s.io/x=example.com/nic=eth0"}, with: "a pod", spec: inPod(), here: "left alone", jit: "the device, by CDI file", legacy: "ignored"},
			{name: "beside void", env: devices("void"), annotations: []string{"cdi.k8s.io/x=nvidia.com/gpu=1"}, here: "left alone", jit: annotated, legacy: "ignored"},
		},
	}, {
		title: "Specifications that CDI edited", show: showTaken,
		cases: []contractCase{
			{name: "for a GPU", with: "`ctr run --device nvidia.com/gpu=1`", spec: cdi(nil, "nvidia.com/gpu=1"), here: "GPU 1, NVIDIA's hooks are removed", jit: "its hooks run", legacy: "its hooks run"},
			{name: "for a GPU, of an image that wants all", env: devices("all"), with: "`--device nvidia.com/gpu=1`", spec: cdi(nil, "nvidia.com/gpu=1"), here: "GPU 1, NVIDIA's hooks are removed", jit: "its hooks run", legacy: "its hooks run"},
			{name: "for a GPU in a pod", with: "`CDIDevices` of CRI; a pod", spec: cdi(inPod(), "nvidia.com/gpu=1"), here: "GPU 1, NVIDIA's hooks are removed", jit: "its hooks run", legacy: "its hooks run"},
			{name: "without hooks", with: "a specification without hooks", spec: cdi(noHooks, "nvidia.com/gpu=1"), here: "left alone", jit: "left alone", legacy: "left alone"},
		},
	}}
}
