package device

import (
	"fmt"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

const openVersion = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (builder@host)  Mon Jan  5 2026\nGCC version:  gcc version 13.3.0 (Ubuntu 13.3.0)\n"

// charDevices has two majors of ib_uverbs, as with more than 32 adapters.
const charDevices = `Character devices:
  1 mem
 10 misc
195 nvidia
195 nvidiactl
226 drm
231 infiniband_verbs
232 infiniband_verbs
234 gdrdrv
235 nvidia-fs0
236 nvidia-fs1
238 nvidia-uvm
239 nvidia-nvswitch
241 nvidia-caps
242 nvidia-caps-imex-channels

Block devices:
  7 loop
238 nvidia-uvm-block
`

// fakeHost is a fixture root.
type fakeHost struct {
	testtree.Root
	cfg config.Host
}

// newHost makes a host with a loaded driver and no GPU.
func newHost(t testing.TB) *fakeHost {
	t.Helper()
	root := testtree.NewRoot(t)
	h := &fakeHost{root, config.Host{ProcRoot: root.Dir + "/proc", DevRoot: root.Dir, SysRoot: root.Dir + "/sys"}}
	h.Write("proc/driver/nvidia/version", openVersion)
	h.Write("proc/devices", charDevices)
	return h
}

// gpu adds a GPU as driver 580 prints it.
func (h *fakeHost) gpu(busID string, minor int, uuid, excluded string) {
	h.Helper()
	h.Write("proc/driver/nvidia/gpus/"+busID+"/information", fmt.Sprintf(
		"Model: \t\t NVIDIA H200\nIRQ:   \t\t 41\nGPU UUID: \t %s\nVideo BIOS: \t 96.00.bc.00.02\nBus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\nBus Location: \t %s\nDevice Minor: \t %d\nGPU Firmware: \t 580.159.04\nGPU Excluded:\t %s\n",
		uuid, busID, minor, excluded))
}

func (h *fakeHost) discover() Inventory {
	h.Helper()
	inv, err := Discover(h.cfg)
	h.Check(err)
	return inv
}

// uuid makes a UUID that starts with the given eight digits.
func uuid(start string) string { return "GPU-" + start + "-1111-2222-3333-444444444444" }

// fourGPUs has an index order that differs from the minor order, a domain that sorts last as a
// number, and one excluded GPU in the middle.
func fourGPUs(t testing.TB) *fakeHost {
	h := newHost(t)
	h.gpu("0000:c1:00.0", 0, uuid("fef8089b"), "No")
	h.gpu("0000:65:00.0", 2, uuid("fef8aaaa"), "No")
	h.gpu("0000:81:00.0", 1, uuid("dddddddd"), "Yes")
	h.gpu("10000:01:00.0", 3, uuid("0badcafe"), "No")
	return h
}
