package testtree

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Version is the driver's version of a Host.
const Version = "580.159.04"

// Host is a host with NVIDIA's driver, as far as files show it: procfs, nodes, and libraries and
// programs that do nothing.
type Host struct {
	Root
	Config, State string // the shim's configuration, and its state directory, which is not there yet
}

// NewHost makes a host with GPUs whose minor numbers are their indices.
func NewHost(t testing.TB, gpus int) Host {
	t.Helper()
	r := NewRoot(t)
	h := Host{r, filepath.Join(r.Dir, "config.toml"), filepath.Join(r.Dir, "state")}
	h.Write("proc/devices", "Character devices:\n195 nvidia\n195 nvidiactl\n238 nvidia-uvm\n241 nvidia-caps\n\nBlock devices:\n")
	h.LoadModule(Version)
	for i := range gpus {
		h.Write("proc/driver/nvidia/gpus/"+BusID(i)+"/information",
			fmt.Sprintf("Model: NVIDIA H200\nGPU UUID: GPU-%08x-1111-2222-3333-444444444444\nDevice Minor: %d\n", i, i))
		h.Node(fmt.Sprintf("nvidia%d", i), 195, uint32(i), 0o660)
	}
	h.Node("nvidiactl", 195, 255, 0o666)
	h.Node("nvidia-uvm", 238, 0, 0o666)
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	for _, name := range []string{"libcuda.so", "libnvidia-ml.so"} {
		h.Write("usr/lib64/"+name+"."+Version, Library(elf.ELFCLASS64, machine, name+".1"))
	}
	h.Write("usr/bin/nvidia-smi", "")
	h.Write("config.toml", fmt.Sprintf("[host]\ndriver-root = %q\ndev-root = %[1]q\nproc-root = %q\nsys-root = %q\nstate-dir = %q\n",
		h.Dir, h.Dir+"/proc", h.Dir+"/sys", h.State))
	return h
}

// BusID is the bus address of a Host's GPU.
func BusID(gpu int) string { return fmt.Sprintf("0000:%02x:00.0", gpu+1) }

// LoadModule replaces the loaded kernel module, as a restart of the host does.
func (h Host) LoadModule(version string) {
	h.Helper()
	file := h.Write("sys/module/nvidia/new", version+"\n")
	h.Check(os.Rename(file, filepath.Join(filepath.Dir(file), "version"))) // another inode, as each load has
	h.Write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  "+version+"  Release Build\n")
}
