package device

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

const openVersion = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (builder@host)  Mon Jan  5 2026\nGCC version:  gcc version 13.3.0 (Ubuntu 13.3.0)\n"

const charDevices = `Character devices:
  1 mem
195 nvidia
195 nvidiactl
226 drm
238 nvidia-uvm
241 nvidia-caps

Block devices:
  7 loop
238 nvidia-uvm-block
`

// fakeHost is a fixture root.
type fakeHost struct {
	t   testing.TB
	cfg config.Host
}

// newHost makes a host with a loaded driver and no GPU.
func newHost(t testing.TB) *fakeHost {
	t.Helper()
	dir := t.TempDir()
	h := &fakeHost{t, config.Host{ProcRoot: dir + "/proc", DevRoot: dir, SysRoot: dir + "/sys"}}
	h.write(h.cfg.ProcRoot+"/driver/nvidia/version", openVersion)
	h.write(h.cfg.ProcRoot+"/devices", charDevices)
	return h
}

func (h *fakeHost) write(path, text string) {
	h.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

// gpu adds a GPU as driver 580 prints it.
func (h *fakeHost) gpu(busID string, minor int, uuid, excluded string) {
	h.t.Helper()
	h.write(h.cfg.ProcRoot+"/driver/nvidia/gpus/"+busID+"/information", fmt.Sprintf(
		"Model: \t\t NVIDIA H200\nIRQ:   \t\t 41\nGPU UUID: \t %s\nVideo BIOS: \t 96.00.bc.00.02\nBus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\nBus Location: \t %s\nDevice Minor: \t %d\nGPU Firmware: \t 580.159.04\nGPU Excluded:\t %s\n",
		uuid, busID, minor, excluded))
}

// node makes a character device below dev.
func (h *fakeHost) node(name string, major, minor uint32, mode uint32) {
	h.t.Helper()
	path := filepath.Join(h.cfg.DevRoot, "dev", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := unix.Mknod(path, unix.S_IFCHR|mode, int(unix.Mkdev(major, minor))); err != nil {
		h.t.Fatalf("mknod %s: %v (these tests make device nodes: run them as root with CAP_MKNOD)", path, err)
	}
	if err := os.Chmod(path, os.FileMode(mode)); err != nil {
		h.t.Fatal(err)
	}
}

func (h *fakeHost) discover() Inventory {
	h.t.Helper()
	inv, err := Discover(h.cfg)
	if err != nil {
		h.t.Fatal(err)
	}
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
