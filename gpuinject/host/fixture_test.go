package host_test

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/elffile"
)

const version = "580.159.04"

// machine and triple are this machine's.
var (
	machine = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	triple  = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
)

// fixture is a host in a directory that holds all of its file systems.
type fixture struct {
	t   testing.TB
	dir string
	cfg config.Host
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("driver files must be owned by root and nodes are made: run these tests as root")
	}
	dir := t.TempDir()
	f := &fixture{t, dir, config.Host{DriverRoot: dir, DevRoot: dir, ProcRoot: dir + "/proc", SysRoot: dir + "/sys"}}
	f.write("proc/devices", "Character devices:\n  1 mem\n 10 misc\n195 nvidia\n238 nvidia-uvm\n241 nvidia-caps\n\nBlock devices:\n")
	f.write("proc/misc", "126 udmabuf\n125 dxg\n236 device-mapper\n")
	return f
}

func (f *fixture) check(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// write makes a file and returns its path.
func (f *fixture) write(name, text string) string {
	f.t.Helper()
	file := filepath.Join(f.dir, name)
	f.check(os.MkdirAll(filepath.Dir(file), 0o755))
	f.check(os.WriteFile(file, []byte(text), 0o644))
	return file
}

func (f *fixture) link(name, target string) {
	f.t.Helper()
	f.check(os.MkdirAll(filepath.Dir(filepath.Join(f.dir, name)), 0o755))
	f.check(os.Symlink(target, filepath.Join(f.dir, name)))
}

// node makes a device node below dev, in place of what is there.
func (f *fixture) node(name string, major, minor uint32) {
	f.t.Helper()
	file := filepath.Join(f.dir, "dev", name)
	f.check(os.MkdirAll(filepath.Dir(file), 0o755))
	f.check(os.RemoveAll(file))
	f.check(unix.Mknod(file, unix.S_IFCHR|0o660, int(unix.Mkdev(major, minor))))
}

// module loads NVIDIA's kernel module.
func (f *fixture) module() {
	f.t.Helper()
	f.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  "+version+"  Release Build\n")
}

// gpu adds a GPU that procfs shows, with its node.
func (f *fixture) gpu(minor int, model, uuid string) {
	f.t.Helper()
	f.write(fmt.Sprintf("proc/driver/nvidia/gpus/0000:%02x:00.0/information", minor+1),
		fmt.Sprintf("Model: %s\nGPU UUID: %s\nDevice Minor: %d\n", model, uuid, minor))
	f.node(fmt.Sprintf("nvidia%d", minor), 195, uint32(minor))
}

func uuid(n int) string { return fmt.Sprintf("GPU-%08x-1111-2222-3333-444444444444", n) }

func (f *fixture) discover() host.Host {
	f.t.Helper()
	h, err := host.Discover(f.cfg)
	f.check(err)
	return h
}

// files searches when what was just written may be trusted.
func (f *fixture) files(allLists bool) driver.Files {
	f.t.Helper()
	time.Sleep(40 * time.Millisecond)
	files, changed, err := f.discover().DriverFiles(driver.Files{}, allLists)
	f.check(err)
	if !changed {
		f.t.Error("a first search has not changed")
	}
	return files
}

// changed reports whether another search than files has to be made.
func (f *fixture) changed(files driver.Files) bool {
	f.t.Helper()
	_, changed, err := f.discover().DriverFiles(files, false)
	f.check(err)
	return changed
}

// elf64 is the smallest library that a loader would map.
func elf64(soname string) string {
	return string(elffile.Library(elf.ELFCLASS64, machine, soname))
}

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
	f.t.Helper()
	i := slices.IndexFunc(files.Libraries, func(l driver.Library) bool { return l.Name == name })
	if i < 0 {
		f.t.Fatalf("no %s in %v; refused %v", name, libraries(files), files.Refused)
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

// says fails unless err has all of the words and one line.
func says(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one with %q", words)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q does not say %q in one line", err, w)
		}
	}
}
