package hosts

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

func TestMain(m *testing.M) { simhost.Main(m) }

// Hosts that put the driver where no other distribution does. Other tests have the layouts of
// Debian, RHEL and GKE.
func TestContainersOnTalosAndNixOS(t *testing.T) {
	for _, layout := range []sim.Layout{sim.Talos, sim.NixOS} {
		t.Run(string(layout), func(t *testing.T) {
			h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 4, Layout: layout}})
			simhost.Compare(t, h.Probe(t, simhost.Visible("2")), h.Expect([]int{2}))
		})
	}
}

// replaceConfig changes the simulated driver's configuration, which each create reads.
func replaceConfig(t testing.TB, h *simhost.Host, old, new string) {
	t.Helper()
	data, err := os.ReadFile(h.Driver.ConfigPath)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(data), old, new, 1)
	if changed == string(data) {
		t.Fatalf("the configuration has no %s:\n%s", old, data)
	}
	if err := os.WriteFile(h.Driver.ConfigPath, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A driver container comes up after containerd, and is restarted under containers that
// use its files.
func TestDriverContainerComesAndGoesUnderContainerd(t *testing.T) {
	h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 4, Layout: sim.NvidiaCurrent}})
	at := filepath.Join(h.Driver.Dir, "run-nvidia-driver")
	testtree.Check(t, os.MkdirAll(at, 0o755))
	start := func(root string) { testtree.Check(t, unix.Mount(root, at, "", unix.MS_BIND, "")) }
	stop := func() { testtree.Check(t, unix.Unmount(at, unix.MNT_DETACH)) }
	replaceConfig(t, h, fmt.Sprintf("driver-root = %q", h.Driver.Root), fmt.Sprintf("driver-root = %q", at))
	one := testenv.RunOptions{Env: []string{"NVIDIA_VISIBLE_DEVICES=1"}, Args: h.ProbeArgs()}
	h.Refused(t, one, "host.driver-root")
	// ctr's client mounts nothing: containerd, if it has a mount namespace of its own, sees later
	// mounts of the host by propagation.
	start(h.Driver.Root)
	want := h.Expect([]int{1})
	simhost.Compare(t, simhost.Parse(h.MustRun(t, one)), want)
	running := h.Start(t, testenv.RunOptions{Env: []string{"NVIDIA_VISIBLE_DEVICES=3"}})

	stop()
	h.Refused(t, one)                             // while the driver container is away
	again := filepath.Join(h.Driver.Dir, "again") // from a copy, as its image would be
	testtree.Check(t, os.CopyFS(again, os.DirFS(h.Driver.Root)))
	start(again)
	t.Cleanup(stop)
	simhost.Compare(t, simhost.Parse(h.MustRun(t, one)), want)
	if r := h.Exec(t, running, "nvidia-smi", "-L"); r.ExitCode != 0 || !strings.Contains(r.Output, h.Driver.GPUs[3].UUID) {
		t.Errorf("in the container from before the restart: %d\n%s%s", r.ExitCode, r.Output, r.Error)
	}
}

func TestContainersUnderWSL(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 1}, Env: testenv.Options{Cgroup: version}})
		if err := h.Driver.BecomeWSL(t.Context()); err != nil {
			t.Fatal(err)
		}
		dxg := fmt.Sprintf("%d:125", h.Driver.Majors.Misc)
		out := h.MustRun(t, testenv.RunOptions{Env: []string{"NVIDIA_VISIBLE_DEVICES=all"}, Args: []string{"/bin/sh", "-c", strings.Join([]string{
			"exec 2>/dev/null", "/test/opendev /dev/dxg", "/test/mkdev " + dxg + fmt.Sprintf(" %d:126", h.Driver.Majors.Misc),
			"find /dev -type c | grep -e nvidia -e dri -e dxg", "ls /usr/lib/wsl/lib /" + sim.WSLPackage, "/test/cucount; ls -d /proc/driver/nvidia/gpus; nvidia-smi -L; true",
		}, "\n")}})
		for _, line := range []string{
			"/dev/dxg ENXIO", dxg + " ENXIO", fmt.Sprintf("%d:126 EPERM", h.Driver.Majors.Misc), "/dev/dxg",
			"libcuda.so.1.1", "libdxcore.so", "nvcubins.bin",
			"libcuda /usr/local/nvidia/lib64/libcuda.so.1", "cuInit 100", // the simulated one knows no dxg
		} {
			if !slices.Contains(strings.Split(out, "\n"), line) {
				t.Errorf("no line %q in\n%s", line, out)
			}
		}
		if strings.Contains(out, "/dev/nvidia") || strings.Contains(out, "/proc/driver/nvidia/gpus") || strings.Contains(out, "x.d") {
			t.Errorf("a node or a mask of the NVIDIA kernel module, or another vendor's package:\n%s", out)
		}
		h.Refused(t, simhost.Visible("1"), "every GPU that Windows shares with WSL2")
	})
}

func TestContainersOnATegra(t *testing.T) {
	h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 1}})
	if err := h.Driver.BecomeTegra(t.Context()); err != nil {
		t.Fatal(err)
	}
	out := h.MustRun(t, testenv.RunOptions{User: "1000:1000", Env: []string{"NVIDIA_VISIBLE_DEVICES=all"}, Args: []string{"/bin/sh", "-c", strings.Join([]string{
		"/test/opendev /dev/nvmap /dev/nvhost-gpu /dev/nvgpu/igpu0/as", "/test/cucount", "ls -d /usr/lib/firmware/tegra234/x.bin /etc/nv_tegra_release /usr/sbin/nvidia-smi; true",
	}, "\n")}})
	for _, want := range []string{
		"/dev/nvmap ENXIO", "/dev/nvhost-gpu ENXIO", "/dev/nvgpu/igpu0/as ENXIO", "cuInit 100",
		"/usr/lib/firmware/tegra234/x.bin", "/etc/nv_tegra_release", "/usr/sbin/nvidia-smi",
	} {
		if !slices.Contains(strings.Split(out, "\n"), want) {
			t.Errorf("no line %q in\n%s", want, out)
		}
	}
	if !strings.Contains(out, "/libcuda.so.1") {
		t.Errorf("libcuda was not found:\n%s", out)
	}
}
