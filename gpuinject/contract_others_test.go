package gpuinject

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

// showSockets shows the daemons whose sockets come.
func showSockets(p Plan) string {
	if len(p.Sockets) == 0 {
		return "no socket"
	}
	return strings.Join(p.Sockets, ", ")
}

// showIgnored shows whether the plan warns of something that it does not follow.
func showIgnored(p Plan) string {
	if len(p.Ignored) == 0 {
		return showGPUs(p)
	}
	return showGPUs(p) + ", ignored with a warning"
}

func otherContract(t *testing.T) []contractSection {
	const channel = "/dev/nvidia-caps-imex-channels/channel"
	// Where daemonsOf has made its pipe.
	mps := func(c *config.Config) string { return filepath.Join(c.Host.StateDir+"-mps", "pipe") }
	d, cfg := newHost(t, sim.Options{GPUs: 1})
	without := &migHost{Driver: d, cfg: cfg}
	imex := func(value string) []string { return []string{"NVIDIA_IMEX_CHANNELS=" + value} }
	return []contractSection{{
		title: "Other devices", env: append(devices("0"), caps("utility")...), show: showNodes,
		cases: []contractCase{
			{name: "an IMEX channel", env: imex("0"), here: "`" + channel + "0`", jit: same, legacy: same},
			{name: "IMEX channels by name", env: imex("channel1,2"), here: "`" + channel + "1`, `" + channel + "2`", jit: same, legacy: same},
			{name: "all IMEX channels by the environment", env: imex("all"), here: "no further node", jit: same, legacy: same},
			{name: "an IMEX channel that the host does not have", env: imex("7"), here: "refused: channel7 is missing", jit: "fails", legacy: "left out"},
			{name: "an IMEX channel beyond the kernel module's", env: imex("2048"), here: `refused: "2048" is not an IMEX channel`, jit: "fails; up to 1048575 is accepted", legacy: "fails; up to 1048575 is accepted"},
			{name: "no IMEX channel", env: imex("none"), here: "no further node", jit: "every channel"},
			{name: "an IMEX channel and none", env: imex("0,none"), here: "no further node", jit: "every channel"},
			{name: "an IMEX channel by a mount", mounts: []string{"imex/1"}, here: "`" + channel + "1`", jit: same, legacy: same},
			{name: "IMEX channels by mounts and environment", env: imex("0"), mounts: []string{"imex/1"}, here: "`" + channel + "1`", jit: same, legacy: same},
			{name: "IMEX channels that the operator has ignored", env: imex("0"), mounts: []string{"imex/1"}, with: "`policy.ignore-imex-channels = true`",
				config: func(c *config.Config) { c.Policy.IgnoreIMEXChannels = true }, here: "no further node", jit: "same, by `features.ignore-imex-channel-requests`", legacy: "same, by that flag"},
			{name: "GPUDirect Storage", env: []string{"NVIDIA_GDS=enabled"}, here: "`/dev/nvidia-fs0`, `/dev/nvidia-fs1`", jit: same, legacy: same},
			{name: "GPUDirect Storage on a host without its driver", env: []string{"NVIDIA_GDS=enabled"}, with: "no `/dev/nvidia-fs*`", host: without, here: "no further node", jit: same, legacy: same},
			{name: "RDMA adapters", env: []string{"NVIDIA_MOFED=enabled"}, here: "`/dev/infiniband/uverbs0`, `/dev/infiniband/uverbs1`, `/dev/infiniband/rdma_cm`", jit: same, legacy: same},
			{name: "GDRCopy", env: []string{"NVIDIA_GDRCOPY=enabled"}, here: "`/dev/gdrdrv`", jit: same, legacy: same},
			{name: "NVSwitches", env: []string{"NVIDIA_NVSWITCH=enabled"}, here: "`/dev/nvidia-nvswitchctl`, `/dev/nvidia-nvswitch0`, `/dev/nvidia-nvswitch1`", jit: same, legacy: same},
			{name: "another word than enabled", env: []string{"NVIDIA_GDS=1", "NVIDIA_NVSWITCH=all"}, here: "no further node", jit: same, legacy: same},
			{name: "in a pod that was given none", env: []string{"NVIDIA_GDS=enabled"}, with: "a pod with GPU 0", spec: inPod(0), here: "no further node", jit: "the nodes", legacy: "the nodes"},
			{name: "in a pod, allowed by the operator", env: []string{"NVIDIA_GDRCOPY=enabled"}, with: "a pod with GPU 0; `policy.allow-from-environment = [\"gdrcopy\"]`", spec: inPod(0),
				config: func(c *config.Config) { c.Policy.AllowFromEnvironment = []string{"gdrcopy"} }, here: "`/dev/gdrdrv`", jit: "the node, always", legacy: "the node, always"},
		},
	}, {
		title: "Other devices without a GPU",
		cases: []contractCase{
			{name: "nothing else is asked for", env: []string{"NVIDIA_GDS=enabled", "NVIDIA_IMEX_CHANNELS=0"}, here: "left alone", jit: same, legacy: same},
			{name: "by a mount", mounts: []string{"imex/0"}, here: "left alone", jit: same, legacy: same},
			{name: "with the driver alone", env: append(devices("none"), "NVIDIA_GDS=enabled", "NVIDIA_GDRCOPY=enabled", "NVIDIA_MOFED=enabled", "NVIDIA_NVSWITCH=enabled", "NVIDIA_IMEX_CHANNELS=0"),
				here: "the driver without a GPU", jit: "all their nodes", legacy: "all their nodes"},
		},
	}, {
		title: "Sockets of daemons", env: devices("0"), show: showSockets,
		cases: []contractCase{
			{name: "of daemons that do not run", with: "`container.sockets = [\"persistenced\"]`", config: func(c *config.Config) { c.Container.Sockets = []string{config.Persistenced} }, here: "no socket", jit: same, legacy: same},
			{name: "by default", with: "they all run", config: func(c *config.Config) { daemonsOf(t, c) }, here: "no socket", jit: "persistenced, fabricmanager, mps", legacy: "persistenced, fabricmanager, mps"},
			{name: "by the operator", with: "they all run; `container.sockets = [\"persistenced\", \"fabricmanager\", \"mps\"]`", config: func(c *config.Config) {
				c.Host.MPSPipeDirectory = mps(c)
				c.Container.Sockets = []string{config.Persistenced, config.FabricManager, config.MPS}
			}, here: "persistenced, fabricmanager, mps"},
		},
	}, {
		title: "Limits of GPU memory", env: devices("0"), show: showIgnored,
		cases: []contractCase{
			{name: "a request", env: []string{"NVIDIA_GPU_MEMORY_REQUEST=1024"}, here: "GPU 0, ignored with a warning", jit: "a hook sets it", legacy: "ignored"},
			{name: "a limit", env: []string{"NVIDIA_GPU_MEMORY_LIMIT=1024"}, here: "GPU 0, ignored with a warning", jit: "a hook sets it", legacy: "ignored"},
			{name: "a limit, mistyped", env: []string{"NVIDIA_GPU_MEMORY_LIMITS=1024"}, here: "GPU 0, ignored with a warning", jit: "ignored", legacy: "ignored"},
		},
	}, {
		title: "Variables without a meaning", env: devices("0"),
		cases: []contractCase{
			{name: "descriptions in CUDA images", env: []string{"NVIDIA_PRODUCT_NAME=CUDA", "NVARCH=x86_64", "NV_CUDA_LIB_VERSION=12.9.1-1"}, here: "GPU 0", jit: same, legacy: same},
			{name: "the driver's root", env: []string{"NVIDIA_DRIVER_ROOT=/tmp"}, here: "GPU 0", jit: same, legacy: same},
			{name: "settings of the toolkit's programs", env: []string{"NVIDIA_CTK_DEBUG=true", "NVIDIA_CTK_DRIVER_ROOT=/tmp"}, here: "GPU 0", jit: same, legacy: same},
			{name: "what the toolkit sets in a container", env: []string{"NVIDIA_CTK_LIBCUDA_DIR=/usr/lib", "NVCT_EMPTY_DEVICE=1"}, here: "GPU 0", jit: "set by the toolkit", legacy: "set by the toolkit"},
			{name: "the pipe of MPS", env: []string{"CUDA_MPS_PIPE_DIRECTORY=/tmp"}, here: "GPU 0", legacy: "read from the host's side only"},
		},
	}}
}
