package gpuinject

import (
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// devices is the variable, as a case's environment.
func devices(value string) []string { return []string{"NVIDIA_VISIBLE_DEVICES=" + value} }

// caps is the variable of capabilities, as a case's environment.
func caps(value string) []string { return []string{"NVIDIA_DRIVER_CAPABILITIES=" + value} }

func deviceContract() []contractSection {
	gpus := simulated.GPUs
	const (
		unknown = "refused: unknown GPU"
		fails   = "fails"
	)
	mount := func(source, at string) func(*specs.Spec) {
		return func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Source: source, Destination: at, Type: "bind"})
		}
	}
	return []contractSection{{
		title: "NVIDIA_VISIBLE_DEVICES",
		cases: []contractCase{
			{name: "unset", here: "left alone", jit: same, legacy: same},
			{name: "unset in an image older than CUDA 9", env: []string{"CUDA_VERSION=8.0.61"}, here: "every GPU", jit: same, legacy: same},
			{name: "unset in a newer image", env: []string{"CUDA_VERSION=12.9.1", "NVIDIA_REQUIRE_CUDA=cuda>=12.9"}, here: "left alone", jit: same, legacy: same},
			{name: "empty", env: devices(""), here: "left alone", jit: same, legacy: same},
			{name: "empty in an image older than CUDA 9", env: []string{"CUDA_VERSION=8.0.61", "NVIDIA_VISIBLE_DEVICES="}, here: "left alone", jit: same, legacy: same},
			{name: "void", env: devices("void"), here: "left alone", jit: same, legacy: same},
			{name: "void in a list", env: devices("0,void"), here: "left alone", jit: same, legacy: same},
			{name: "void after all", env: devices("all,void"), here: "left alone", jit: same, legacy: same},
			{name: "void after none", env: devices("none,void"), here: "left alone", jit: same, legacy: same},
			{name: "all", env: devices("all"), here: "every GPU", jit: "every GPU, or its MIG devices", legacy: "every GPU and every MIG device"},
			{name: "all in a list", env: devices("0,all"), here: "every GPU", jit: "as `all`", legacy: "as `all`"},
			{name: "none", env: devices("none"), here: "the driver without a GPU", jit: same, legacy: same},
			{name: "none in a list", env: devices("0,none"), here: "the driver without a GPU", jit: same, legacy: same},
			{name: "none before all", env: devices("none,all"), here: "the driver without a GPU", jit: same, legacy: same},
			{name: "a word in capitals", env: devices("ALL"), here: unknown, jit: fails, legacy: "every GPU"},
			{name: "an index", env: devices("1"), here: "GPU 1", jit: "same, in NVML's order", legacy: "same, in NVML's order"},
			{name: "an index with a leading zero", env: devices("01"), here: "GPU 1"},
			{name: "several indices", env: devices("0,2"), here: "GPUs 0, 2", jit: same, legacy: same},
			{name: "blanks and empty items", env: devices(" 0 ,, 2,"), here: "GPUs 0, 2", jit: same, legacy: same},
			{name: "a UUID", env: devices(gpus[1].UUID), here: "GPU 1", jit: same, legacy: same},
			{name: "a UUID in capitals", env: devices(strings.ToUpper(gpus[1].UUID)), here: "GPU 1", jit: "as NVML looks it up", legacy: same},
			{name: "the beginning of a UUID", env: devices(gpus[2].UUID[:12]), here: "GPU 2", jit: fails, legacy: fails},
			{name: "a PCI bus id", env: devices(gpus[2].BusID), here: "GPU 2", jit: fails, legacy: same},
			{name: "a PCI bus id with a short domain", env: devices("0:" + gpus[2].BusID[5:]), here: "GPU 2", jit: fails, legacy: same},
			{name: "a PCI bus id with a domain of 8 digits", env: devices("0000" + gpus[2].BusID), here: "GPU 2", jit: fails, legacy: same},
			{name: "a GPU twice", env: devices("0,0"), here: "GPU 0", jit: "no GPU: an empty item is read as `none`", legacy: "hands `,0` to its program"},
			{name: "a GPU in two spellings", env: devices("0," + gpus[0].UUID), here: "GPU 0", jit: "the GPU's edits twice", legacy: same},
			{name: "a GPU that the host does not have", env: devices("9"), here: unknown, jit: fails, legacy: fails},
			{name: "one known and one unknown", env: devices("0,9"), here: unknown, jit: fails, legacy: fails},
			{name: "the variable twice", env: []string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=1"}, here: "GPU 1", jit: same, legacy: same},
			{name: "an entry without =", env: []string{"NVIDIA_VISIBLE_DEVICES=1", "BROKEN"}, here: "GPU 1", jit: fails, legacy: fails},
			{name: "the variable in small letters", env: []string{"nvidia_visible_devices=all"}, here: "left alone", jit: same, legacy: same},
		},
	}, {
		title: "Device-list mounts",
		cases: []contractCase{
			{name: "a GPU's", mounts: []string{gpus[1].UUID}, here: "GPU 1", jit: same, legacy: same},
			{name: "several", mounts: []string{"0", "2"}, here: "GPUs 0, 2", jit: same, legacy: same},
			{name: "before the environment", env: devices("all"), mounts: []string{"1"}, here: "GPU 1", jit: same, legacy: same},
			{name: "with the value of the device plugin", env: devices(request.DeviceListDir), mounts: []string{"1"}, here: "GPU 1", jit: same, legacy: same},
			{name: "all of them", mounts: []string{"all"}, here: "every GPU", jit: same, legacy: same},
			{name: "an unknown one", mounts: []string{"9"}, here: unknown, jit: fails, legacy: fails},
			{name: "two in one name", mounts: []string{"0,1"}, here: "GPUs 0, 1", legacy: same},
			{name: "none", mounts: []string{"none"}, here: "the driver without a GPU", jit: same, legacy: same},
			{name: "none, environment not accepted", mounts: []string{"none"}, with: "`policy.accept-env-when-unprivileged = false`",
				config: func(c *config.Config) { c.Policy.AcceptEnvWhenUnprivileged = false }, here: "the driver without a GPU", jit: same, legacy: same},
			{name: "below cdi and no CDI name", mounts: []string{"cdi/foo"}, here: `refused: "foo" is not a CDI name`, jit: "ignored with a warning", legacy: "ignored with a warning"},
			{name: "not accepted", env: devices("0"), mounts: []string{"1"}, with: "`policy.accept-volume-mounts = false`",
				config: func(c *config.Config) { c.Policy.AcceptVolumeMounts = false }, here: "GPU 0", jit: same, legacy: same},
			{name: "of another source", with: "`/dev/zero` there", spec: mount("/dev/zero", request.DeviceListDir+"/0"), here: "left alone", jit: same, legacy: same},
			{name: "at a place that looks alike", with: "`" + request.DeviceListDir + "X/all`", spec: mount("/dev/null", request.DeviceListDir+"X/all"),
				here: "left alone", jit: "a device `X/all`", legacy: "a device `X/all`"},
		},
	}, {
		title: "NVIDIA_DRIVER_CAPABILITIES", env: devices("0"), show: showCapabilities,
		cases: []contractCase{
			{name: "unset", here: "compute, utility", jit: "ignored: every library of the driver's version", legacy: same},
			{name: "unset in an image older than CUDA 9", env: []string{"CUDA_VERSION=8.0.61"}, here: "all seven", jit: "ignored", legacy: same},
			{name: "unset in such an image, with a mount", env: []string{"CUDA_VERSION=8.0.61"}, mounts: []string{"0"}, here: "all seven", jit: "ignored", legacy: same},
			{name: "unset in such an image, with an annotation", env: []string{"CUDA_VERSION=8.0.61"}, annotations: []string{"cdi.k8s.io/x=nvidia.com/gpu=0"}, here: "all seven", jit: "ignored", legacy: "annotations ignored"},
			{name: "empty", env: caps(""), here: "compute, utility", jit: "ignored", legacy: same},
			{name: "blank", env: caps(" "), here: "compute, utility", jit: "ignored", legacy: "none"},
			{name: "only a comma", env: caps(","), here: "compute, utility", jit: "ignored", legacy: "none"},
			{name: "all", env: caps("all"), here: "all seven", jit: "ignored", legacy: same},
			{name: "all beside an unknown one", env: caps("all,magic"), here: "all seven", jit: "ignored", legacy: same},
			{name: "one", env: caps("utility"), here: "utility", jit: "ignored", legacy: same},
			{name: "blanks, empty items and order", env: caps(" video ,,compute"), here: "compute, video", jit: "ignored", legacy: same},
			{name: "32-bit libraries", env: caps("compute,compat32"), here: "compat32, compute", jit: "ignored: no 32-bit library", legacy: same},
			{name: "an unknown one", env: caps("compute,magic"), here: `refused: capability "magic" is not supported here`, jit: "ignored", legacy: fails},
			{name: "one that the operator does not support", env: caps("video"), with: "`container.supported-capabilities = [\"compute\"]`",
				config: func(c *config.Config) { c.Container.SupportedCapabilities = []string{"compute"} }, here: `refused: capability "video" is not supported here`, jit: "ignored", legacy: fails},
			{name: "all where the operator supports some", env: caps("all"), with: "`container.supported-capabilities = [\"compute\"]`",
				config: func(c *config.Config) { c.Container.SupportedCapabilities = []string{"compute"} }, here: "compute", jit: "ignored", legacy: same},
		},
	}, {
		title: "Nodes by capability", env: devices("0"), show: showNodes,
		cases: []contractCase{
			{name: "utility", env: caps("utility"), here: "no further node", jit: "`/dev/nvidia-modeset`, `/dev/nvidia-uvm`, `/dev/nvidia-uvm-tools` and the GPU's DRM nodes, whatever is asked for", legacy: same},
			{name: "compute", env: caps("compute"), here: "`/dev/nvidia-uvm`, `/dev/nvidia-uvm-tools`", jit: "as above", legacy: same},
			{name: "video", env: caps("video"), here: "`/dev/nvidia-uvm`, `/dev/nvidia-uvm-tools`", jit: "as above", legacy: same},
			{name: "graphics", env: caps("graphics"), here: "`/dev/nvidia-modeset`, `/dev/dri/card1`, `/dev/dri/renderD128`", jit: "as above", legacy: "DRM nodes"},
			{name: "display", env: caps("display"), here: "`/dev/nvidia-modeset`, `/dev/dri/card1`, `/dev/dri/renderD128`", jit: "as above", legacy: same},
		},
	}}
}
