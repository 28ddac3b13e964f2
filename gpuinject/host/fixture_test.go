package host_test

import (
	"debug/elf"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

const version = "580.159.04"

// machine and triple are this machine's.
var (
	machine = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	triple  = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
)

// fixture is a host in a directory that holds all of its file systems.
type fixture struct {
	testtree.Root
	cfg config.Host
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	root := testtree.NewRoot(t)
	dir := root.Dir
	f := &fixture{root, config.Host{DriverRoot: dir, DevRoot: dir, ProcRoot: dir + "/proc", SysRoot: dir + "/sys"}}
	f.Write("proc/devices", "Character devices:\n  1 mem\n 10 misc\n195 nvidia\n238 nvidia-uvm\n241 nvidia-caps\n\nBlock devices:\n")
	f.Write("proc/misc", "126 udmabuf\n125 dxg\n236 device-mapper\n")
	return f
}

// module loads NVIDIA's kernel module.
func (f *fixture) module() {
	f.Helper()
	f.Write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  "+version+"  Release Build\n")
}

// gpu adds a GPU that procfs shows, with its node.
func (f *fixture) gpu(minor int, model, uuid string) {
	f.Helper()
	f.Write(fmt.Sprintf("proc/driver/nvidia/gpus/0000:%02x:00.0/information", minor+1),
		fmt.Sprintf("Model: %s\nGPU UUID: %s\nDevice Minor: %d\n", model, uuid, minor))
	f.Node(fmt.Sprintf("nvidia%d", minor), 195, uint32(minor), 0o660)
}

func uuid(n int) string { return fmt.Sprintf("GPU-%08x-1111-2222-3333-444444444444", n) }

func (f *fixture) discover() host.Host {
	f.Helper()
	h, err := host.Discover(f.cfg)
	f.Check(err)
	return h
}

// files searches after a pause, because Fresh does not trust the timestamps of files that were just
// written.
func (f *fixture) files() driver.Files {
	f.Helper()
	time.Sleep(40 * time.Millisecond)
	files, err := f.discover().DriverFiles()
	f.Check(err)
	return files
}

// changed reports whether another search than files has to be made.
func (f *fixture) changed(files driver.Files) bool {
	f.Helper()
	h := f.discover()
	return !files.Fresh(h.Config, h.DriverVersion)
}

func elf64(soname string) string { return testtree.Library(elf.ELFCLASS64, machine, soname) }

// libraries are the names of libraries, sorted.
func libraries(files driver.Files) []string {
	var names []string
	for _, l := range files.Libraries {
		names = append(names, l.Name)
	}
	slices.Sort(names)
	return names
}

func (f *fixture) library(files driver.Files, name string) driver.Library {
	f.Helper()
	i := slices.IndexFunc(files.Libraries, func(l driver.Library) bool { return l.Name == name })
	if i < 0 {
		f.Fatalf("no %s in %v; refused %v", name, libraries(files), files.Refused)
	}
	return files.Libraries[i]
}

// shown is nodes as "/dev/nvmap 10:80".
func shown(nodes []device.Node) []string {
	var list []string
	for _, n := range nodes {
		list = append(list, fmt.Sprintf("%s %d:%d", n.Path, n.Major, n.Minor))
	}
	return list
}
