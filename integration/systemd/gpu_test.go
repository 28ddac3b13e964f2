//go:build gpu

package systemd

import (
	"debug/elf"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/gpu"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// realDevices gives a machine the host's device nodes and what the driver has in procfs.
const realDevices = `cp -a /dev/nvidia* dev
for name in devices driver; do
	mount --rbind /proc/$name proc/$name
done
`

// startReal boots a machine with copies of this host's driver files. Its containerd finds by name
// only a shim that is installed.
func startReal(t *testing.T) *machine {
	t.Helper()
	if _, err := os.Stat("/proc/driver/nvidia/version"); err != nil {
		t.Fatalf("this test needs a host with NVIDIA GPUs and a loaded driver: %v", err)
	}
	m := newMachine(t)
	m.Driver = &sim.Driver{}
	copyDriver(t, filepath.Join(m.dir, "upper"))
	dropIn := filepath.Join(m.dir, "upper/etc/systemd/system/containerd.service.d")
	testtree.Check(t, os.MkdirAll(dropIn, 0o755))
	testtree.Check(t, os.WriteFile(filepath.Join(dropIn, "path.conf"), []byte("[Service]\nEnvironment=PATH="+inBin+"/tools:"+systemPath+"\n"), 0o644))

	programs := os.Getenv("NVIDIA_SHIM_GPU_PROGRAMS")
	if programs == "" {
		programs = t.TempDir()
		testtree.Check(t, gpu.Compile(programs))
	}
	m.image = "test/gpu:latest"
	image, err := gpu.ProgramsImage(m.image, programs)
	testtree.Check(t, err)
	tar := filepath.Join(t.TempDir(), "image.tar")
	testtree.Check(t, image.Write(tar))
	m.start(t, "", realDevices, tar)
	m.run(t, "ldconfig")
	return m
}

// copyDriver copies the 64-bit libraries and the programs of the host's driver, wherever they are, to
// Debian's places below root. ldconfig makes the links.
func copyDriver(t *testing.T, root string) {
	t.Helper()
	out, err := exec.Command(filepath.Join(testenv.ShimDir(), version.Ctl), "--json", "info").Output()
	if err != nil {
		t.Fatalf("nvidia-shimctl info on the host: %v: %s", err, out)
	}
	var info struct{ Files map[string][]string }
	testtree.Check(t, json.Unmarshal(out, &info))
	copied := 0
	for _, name := range slices.Concat(slices.Collect(maps.Values(info.Files))...) {
		to := filepath.Join(root, "usr/bin", filepath.Base(name))
		file, err := elf.Open(name)
		if err != nil {
			continue // a text or firmware
		}
		if strings.Contains(filepath.Base(name), ".so") {
			to = filepath.Join(root, simhost.Multiarch, filepath.Base(name))
		}
		if file.Close(); file.Class == elf.ELFCLASS64 {
			testtree.Check(t, os.MkdirAll(filepath.Dir(to), 0o755))
			if out, err := exec.Command("cp", "--preserve=mode", name, to).CombinedOutput(); err != nil {
				t.Fatalf("copy %s: %v: %s", name, err, out)
			}
			copied++
		}
	}
	t.Logf("copied %d of the driver's files", copied)
}

func TestOnRealGPUsTheNodeImageInstallsAndRemoves(t *testing.T) {
	n := newNode(t, startReal(t))
	first := testenv.HostGPUs(t)[0].Line
	before := n.state(t)
	simhost.Want(t, n.once(t, 0, true), "found containerd (", "write "+installedShim)
	n.api.Want(t, "true", n.version, 1)
	t.Logf("nvidia-shimctl check on the node:\n%s", n.run(t, installedCtl, "check"))

	c := n.sleep(t, 0, containerOptions{runtime: runtimeclass.RuntimeType})
	if got := c.exec(t, "nvidia-smi", "-L"); got != first+"\n" {
		t.Errorf("nvidia-smi -L in the container: got %q, want %q", got, first)
	}
	out := c.exec(t, "/bin/sh", "-c", "vectoradd 2>&1 || true")
	t.Logf("vectoradd in the container:\n%s", out)
	simhost.Want(t, out, "count 1\n", " ok\n")
	c.remove(t)

	n.once(t, 0, true, "--uninstall")
	if after := n.state(t); after != before {
		t.Errorf("uninstall left: %s", changed(before, after))
	}
	n.api.Want(t, "", "", 3)
}
