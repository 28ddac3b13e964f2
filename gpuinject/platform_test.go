package gpuinject

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/facts"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/simtest"
)

// newHost makes a simulated host of the test's own and its configuration.
func newHost(t testing.TB, o sim.Options) (*sim.Driver, *config.Config) {
	t.Helper()
	d := simtest.New(t, o)
	cfg, err := config.Load(d.ConfigPath)
	if err != nil {
		t.Fatal(err)
	}
	return d, cfg
}

// deviceNumbers are the nodes of a configuration, as "/dev/nvidia0 195:0".
func deviceNumbers(t testing.TB, dir string) []string {
	t.Helper()
	var out []string
	for _, d := range readSpec(t, dir).Linux.Devices {
		out = append(out, fmt.Sprintf("%s %d:%d", d.Path, d.Major, d.Minor))
	}
	return out
}

// cached is what the loader of the image is told about a name.
func cached(t testing.TB, dir, name string) []string {
	t.Helper()
	cache, err := ldcache.ParseCache(readFile(t, dir, "rootfs/etc/ld.so.cache"))
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, e := range cache.Entries {
		if e.Name == name {
			paths = append(paths, e.Path)
		}
	}
	return paths
}

func TestWSL(t *testing.T) {
	d, cfg := newHost(t, sim.Options{GPUs: 1})
	if err := d.BecomeWSL(t.Context()); err != nil {
		t.Fatal(err)
	}
	dir := newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=all"))
	inj := mustInject(t, cfg, dir)
	if got, want := deviceNumbers(t, dir), []string{fmt.Sprintf("/dev/dxg %d:125", d.Majors.Misc)}; !slices.Equal(got, want) {
		t.Errorf("nodes %v, want %v", got, want)
	}
	dest := map[string]string{}
	for _, m := range readSpec(t, dir).Mounts {
		dest[m.Destination] = m.Source
	}
	for _, name := range []string{"/usr/lib/wsl/lib", "/" + sim.WSLPackage} {
		if dest[name] != d.Root+name {
			t.Errorf("at %s is %q: dxcore names files by the host's paths", name, dest[name])
		}
	}
	if dest[ViewDir] == "" || !slices.Contains(given(t, dir), "/usr/bin/nvidia-smi") {
		t.Errorf("given %v", given(t, dir))
	}
	for name, want := range map[string]string{"libcuda.so.1": "libcuda.so.1", "libdxcore.so": "libdxcore.so", "libnvidia-ml.so.1": "libnvidia-ml.so.1"} {
		if got := cached(t, dir, name); !slices.Equal(got, []string{ViewDir + "/lib64/" + want}) {
			t.Errorf("the loader is told %v of %s", got, name)
		}
	}
	if inj.Plan.Platform != "wsl" || inj.Plan.DriverVersion != "" || inj.Plan.Proc.Masked || inj.Mask != nil {
		t.Errorf("plan %+v", inj.Plan)
	}
	t.Run("the mask is not needed, so neither is a procfs of the container's own", func(t *testing.T) {
		spec := newSpec("NVIDIA_VISIBLE_DEVICES=0")
		spec.Mounts = spec.Mounts[1:]
		mustInject(t, cfg, newBundle(t, spec))
	})
	t.Run("what an image requires is asked of NVML, the driver's version too", func(t *testing.T) {
		for driver, ok := range map[string]bool{"581.42": true, "470.1": false} {
			os.Remove(filepath.Join(cfg.Host.StateDir, facts.Name))
			_, err := resolveWith(t, cfg, newSpec("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_CUDA=cuda>=13.0,driver>=580,arch>=8.0"), factsFrom(func() (device.Facts, error) {
				return device.Facts{Driver: driver, CUDA: "13.0", GPUs: []device.GPUFacts{{Index: 0, BusID: "0000:01:00.0", Arch: "8.9", Brand: "geforcertx"}}}, nil
			}))
			if (err == nil) != ok {
				t.Errorf("driver %s: %v", driver, err)
			}
		}
	})
	t.Run("what CDI gave is taken over", func(t *testing.T) {
		spec := newSpec("NVIDIA_VISIBLE_DEVICES=void")
		spec.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/dxg", Type: "c", Major: int64(d.Majors.Misc), Minor: 125}}
		spec.Hooks = &specs.Hooks{CreateContainer: []specs.Hook{{Path: "/usr/bin/nvidia-cdi-hook", Args: []string{"nvidia-cdi-hook", "update-ldcache"}}}}
		dir := newBundle(t, spec)
		inj := mustInject(t, cfg, dir)
		got := readSpec(t, dir)
		if len(inj.Plan.GPUs) != 1 || inj.Plan.Grant != "taken over from CDI: 0" || len(got.Hooks.CreateContainer) != 0 || len(deviceNumbers(t, dir)) != 1 {
			t.Errorf("%s: GPUs %v, hooks %v, nodes %v", inj.Plan.Grant, inj.Plan.GPUs, got.Hooks, deviceNumbers(t, dir))
		}
	})
}

func TestTegra(t *testing.T) {
	d, cfg := newHost(t, sim.Options{GPUs: 1})
	if err := d.BecomeTegra(t.Context()); err != nil {
		t.Fatal(err)
	}
	dir := newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"))
	inj := mustInject(t, cfg, dir)
	want := []string{
		fmt.Sprintf("/dev/nvmap %d:80", d.Majors.Misc), fmt.Sprintf("/dev/nvhost-gpu %d:2", d.Majors.FS), fmt.Sprintf("/dev/nvgpu/igpu0/as %d:0", d.Majors.GDR),
	}
	if got := deviceNumbers(t, dir); !slices.Equal(got, want) {
		t.Errorf("nodes %v, want %v", got, want)
	}
	if gids := readSpec(t, dir).Process.User.AdditionalGids; !slices.Equal(gids, []uint32{44}) {
		t.Errorf("groups %v: the nodes belong to video", gids)
	}
	dest := map[string]string{}
	for _, m := range readSpec(t, dir).Mounts {
		dest[m.Destination] = m.Source
	}
	nvidia := inj.Plan.Linker.Directory + "/nvidia"
	for _, name := range []string{nvidia + "/libcuda.so.1.1", nvidia + "/libnvrm_gpu.so", "/usr/sbin/nvidia-smi", "/usr/lib/firmware/tegra234", "/etc/nv_tegra_release"} {
		if dest[name] != d.Root+name {
			t.Errorf("at %s is %q", name, dest[name])
		}
	}
	for _, name := range []string{"libcuda.so.1", "libcuda.so", "libcuda.so.1.1"} {
		if got := cached(t, dir, name); !slices.Equal(got, []string{nvidia + "/libcuda.so.1.1"}) {
			t.Errorf("the loader is told %v of %s", got, name)
		}
	}
	// What ldconfig in the container reads, whenever it runs.
	if conf := string(readFile(t, dir, "rootfs/etc/ld.so.conf.d/000-nvidia-shim.conf")); !slices.Contains(strings.Split(conf, "\n"), nvidia) {
		t.Errorf("%s is not among the directories of the linker: %q", nvidia, conf)
	}
	if _, ok := dest["/usr/local/cuda-10.2"]; ok || inj.Plan.Platform != "tegra" || inj.Plan.Proc.Masked || !slices.Contains(inj.Plan.Libraries, "libnvrm_gpu.so") {
		t.Errorf("plan %+v", inj.Plan)
	}
	t.Run("NVIDIA_REQUIRE_JETPACK brings the further lists", func(t *testing.T) {
		dir := newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=all", host.AllLists))
		mustInject(t, cfg, dir)
		if !slices.Contains(destinations(readSpec(t, dir).Mounts), "/usr/local/cuda-10.2") {
			t.Error("cuda.csv was not followed")
		}
		plan, err := resolve(t, cfg, newSpec("NVIDIA_VISIBLE_DEVICES=all"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range plan.files.Data {
			if f.Dest == "/usr/local/cuda-10.2" {
				t.Error("the next container got them without asking")
			}
		}
	})
	t.Run("what CDI gave is taken over", func(t *testing.T) {
		spec := newSpec("NVIDIA_VISIBLE_DEVICES=void")
		minor := int64(2)
		major := int64(d.Majors.FS)
		spec.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/nvhost-gpu", Type: "c", Major: major, Minor: minor}}
		spec.Linux.Resources.Devices = append(spec.Linux.Resources.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rwm"})
		spec.Hooks = &specs.Hooks{CreateContainer: []specs.Hook{{Path: "/usr/bin/nvidia-ctk", Args: []string{"nvidia-ctk", "hook", "update-ldcache"}}}}
		dir := newBundle(t, spec)
		inj := mustInject(t, cfg, dir)
		got := readSpec(t, dir)
		if len(inj.Plan.GPUs) != 1 || len(got.Hooks.CreateContainer) != 0 || len(deviceNumbers(t, dir)) != len(want) {
			t.Errorf("GPUs %v, hooks %v, nodes %v", inj.Plan.GPUs, got.Hooks, deviceNumbers(t, dir))
		}
		for _, r := range got.Linux.Resources.Devices {
			if r.Allow && strings.Contains(r.Access, "m") {
				t.Errorf("a right to mknod stays: %+v", r)
			}
		}
	})
}

// The same host, whose files are its own: a node that is missing is one to make, and no
// reason to count GPUs otherwise.
func TestMissingNode(t *testing.T) {
	d, cfg := newHost(t, sim.Options{GPUs: 2})
	if err := os.Remove(fmt.Sprintf("%s/dev/nvidia%d", d.DevRoot, d.GPUs[0].Minor)); err != nil {
		t.Fatal(err)
	}
	_, err := resolve(t, cfg, newSpec("NVIDIA_VISIBLE_DEVICES=0"))
	refused(t, err, Precondition, "is missing")
	plan, err := resolve(t, cfg, newSpec("NVIDIA_VISIBLE_DEVICES=1"))
	if err != nil || plan.GPUs[0].UUID != d.GPUs[1].UUID {
		t.Errorf("%v, %v", plan.GPUs, err)
	}
}

// A driver container: its root is mounted at a place that is there before it, holds
// absolute links that mean that root, and is another mount after each restart. Nodes
// and procfs are the host's.
func TestDriverContainerRoot(t *testing.T) {
	d, cfg := newHost(t, sim.Options{GPUs: 2, Layout: sim.NvidiaCurrent})
	container := simtest.NewDriverContainer(t, filepath.Join(t.TempDir(), "run/nvidia/driver"))
	cfg.Host.DriverRoot = container.At
	ask := func() (Applied, string, error) {
		t.Helper()
		dir := newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=0"))
		a, err := inject(t, cfg, dir)
		return a, dir, err
	}
	source := func(dir string) string {
		for _, m := range readSpec(t, dir).Mounts {
			if m.Destination == ViewDir {
				return m.Source
			}
		}
		t.Fatal("no view")
		return ""
	}

	_, _, err := ask()
	refused(t, err, Precondition, "libcuda.so."+d.Version, "host.driver-root")
	container.Start(t, d.Root)
	_, first, err := ask()
	if err != nil {
		t.Fatalf("the driver container came up after the first create: %v", err)
	}
	if got := deviceNumbers(t, first); len(got) != 4 || !strings.HasPrefix(got[1], fmt.Sprintf("/dev/nvidia%d ", d.GPUs[0].Minor)) {
		t.Errorf("nodes %v", got)
	}
	container.Stop(t)
	if _, _, err = ask(); err == nil {
		t.Error("the driver container is gone and containers are still given its driver")
	}
	container.Restart(t, d.Root, filepath.Join(t.TempDir(), "again"))
	_, second, err := ask()
	if err != nil {
		t.Fatal(err)
	}
	if source(first) == source(second) {
		t.Errorf("a restarted driver container's files are taken from the view of the former's: %s", source(first))
	}
	for name, dir := range map[string]string{"before": first, "after": second} {
		lib := filepath.Join(source(dir), "lib64", "libcuda.so.1")
		if _, err := os.ReadFile(lib); err != nil {
			t.Errorf("the view of %s the restart: %v", name, err)
		}
	}
	removeState(cfg.Host.StateDir)
}
