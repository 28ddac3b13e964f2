package gpuinject

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

// cached returns the paths that the image's loader cache has for a name.
func cached(t testing.TB, dir, name string) []string {
	t.Helper()
	cache, err := ldcache.ParseCache(readFile(t, dir, "rootfs/etc/ld.so.cache"))
	check(t, err)
	var paths []string
	for _, e := range cache.Entries {
		if e.Name == name {
			paths = append(paths, e.Path)
		}
	}
	return paths
}

func TestWSL(t *testing.T) {
	d := newHost(t, sim.Options{GPUs: 1})
	check(t, d.BecomeWSL(t.Context()))
	plan := mustInject(t, d.cfg, newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=all")))
	if plan.Platform != "wsl" || plan.DriverVersion != "" || plan.Proc.Masked {
		t.Errorf("plan %+v", plan)
	}
	t.Run("the mask is not needed, so neither is a procfs of the container's own", func(t *testing.T) {
		spec := newSpec("NVIDIA_VISIBLE_DEVICES=0")
		spec.Mounts = spec.Mounts[1:]
		mustInject(t, d.cfg, newBundle(t, spec))
	})
	t.Run("what an image requires is asked of NVML, the driver's version too", func(t *testing.T) {
		for driver, ok := range map[string]bool{"581.42": true, "470.1": false} {
			os.Remove(filepath.Join(d.cfg.Host.StateDir, "nvml.json"))
			d.change = func(f *device.Facts) { f.Driver = driver }
			_, err := d.resolve(t, newSpec("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_CUDA=cuda>=13.0,driver>=580,arch>=8.0"))
			if (err == nil) != ok {
				t.Errorf("driver %s: %v", driver, err)
			}
		}
	})
	t.Run("what CDI gave is taken over", func(t *testing.T) {
		takenOver(t, d, all(withNode(d.Majors.Misc, 125), editedByCDI("/dev/dxg")), 1)
	})
}

// On WSL2 every full id that the kubelet allocated is the one device. On other hosts an id "all" is
// another plugin's, for example of a network card.
func TestAllocationsOnWSL(t *testing.T) {
	d := newHost(t, sim.Options{GPUs: 1})
	check(t, d.BecomeWSL(t.Context()))
	const uuid, none = "GPU-5a1d4e3c-7e5f-4b6e-9d5c-3f2a1b0c9d8e", "starts without a GPU"
	writeCheckpoint(t,
		podAllocation{"u1", "main", gpuResource, []string{"all"}},
		podAllocation{"u1", "init", gpuResource, []string{"all"}},
		podAllocation{"u2", "main", "nvidia.com/gpu.shared", []string{"all::0"}},
		podAllocation{"u3", "main", gpuResource, []string{uuid}},
		podAllocation{"u4", "main", gpuResource, []string{uuid + "::3"}},
		podAllocation{"u5", "main", gpuResource, []string{"MIG-5a1d4e3c-7e5f-4b6e-9d5c-3f2a1b0c9d8e"}},
		podAllocation{"u6", "main", gpuResource, []string{"all::x", "0", "GPU-5a1d4e3c", "everything"}},
		podAllocation{"u7", "main", "example.com/gpu", []string{"all"}},
	)
	table{host: d, rows: []row{
		{name: "all", env: devices("all"), spec: podNamed("u1", "main"), want: "GPU 0"},
		{name: "an init container", env: devices("all"), spec: podNamed("u1", "init"), want: "GPU 0"},
		{name: "a replica", env: devices("all"), spec: podNamed("u2", "main"), want: "GPU 0"},
		{name: "a UUID", env: devices(uuid), spec: podNamed("u3", "main"), want: "GPU 0"},
		{name: "a replica by UUID", env: devices(uuid), spec: podNamed("u4", "main"), want: "GPU 0"},
		{name: "a MIG device's UUID", env: devices("all"), spec: podNamed("u5", "main"), want: "GPU 0"},
		{name: "ids that are not full", env: devices("all"), spec: podNamed("u6", "main"), want: none},
		{name: "another domain", env: devices("all"), spec: podNamed("u7", "main"), want: none},
		{name: "nothing", env: devices("all"), spec: podNamed("u9", "main"), want: none},
		{name: "nothing, by index", env: devices("0"), spec: podNamed("u9", "main"), want: "refused: is not this container's"},
		{name: "device-list mounts", spec: all(podNamed("u1", "main"), listing("all")), want: "GPU 0"},
		{name: "a UUID outside Kubernetes", env: devices(uuid), want: "GPU 0"},
		{name: "on a host with GPUs on its PCI bus", env: devices("all"), spec: podNamed("u1", "main"), host: simulatedHost(t), want: none},
		{name: "a replica there", env: devices("all"), spec: podNamed("u2", "main"), host: simulatedHost(t), want: none},
	}}.run(t)
}

// takenOver checks that the host's GPU and its nodes are taken over from CDI.
func takenOver(t *testing.T, h *testHost, given func(*specs.Spec), nodes int) {
	t.Helper()
	spec := newSpec("NVIDIA_VISIBLE_DEVICES=void")
	given(spec)
	d := spec.Linux.Devices[0]
	spec.Linux.Resources.Devices = append(spec.Linux.Resources.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &d.Major, Minor: &d.Minor, Access: "rwm"})
	dir := newBundle(t, spec)
	plan := mustInject(t, h.cfg, dir)
	got := readSpec(t, dir)
	if len(plan.GPUs) != 1 || plan.Grant != "taken over from CDI: 0" || len(got.Hooks.CreateContainer) != 0 || len(got.Linux.Devices) != nodes {
		t.Errorf("%s: GPUs %v, hooks %v, nodes %v", plan.Grant, plan.GPUs, got.Hooks, got.Linux.Devices)
	}
	for _, r := range got.Linux.Resources.Devices {
		if r.Allow && strings.Contains(r.Access, "m") {
			t.Errorf("a right to mknod stays: %+v", r)
		}
	}
}

func TestTegra(t *testing.T) {
	d := newHost(t, sim.Options{GPUs: 1})
	check(t, d.BecomeTegra(t.Context()))
	dir := newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"))
	plan := mustInject(t, d.cfg, dir)
	if gids := readSpec(t, dir).Process.User.AdditionalGids; !slices.Equal(gids, []uint32{44}) {
		t.Errorf("groups %v: the nodes belong to video", gids)
	}
	nvidia := plan.Linker.Directory + "/nvidia"
	for _, name := range []string{"libcuda.so.1", "libcuda.so", "libcuda.so.1.1"} {
		if got := cached(t, dir, name); !slices.Equal(got, []string{nvidia + "/libcuda.so.1.1"}) {
			t.Errorf("the loader is told %v of %s", got, name)
		}
	}
	// ldconfig in the container reads this file whenever it runs.
	if conf := string(readFile(t, dir, "rootfs/etc/ld.so.conf.d/000-nvidia-shim.conf")); !slices.Contains(strings.Split(conf, "\n"), nvidia) {
		t.Errorf("%s is not among the directories of the linker: %q", nvidia, conf)
	}
	if plan.Platform != "tegra" || plan.Proc.Masked || !slices.Contains(plan.Libraries, "libnvrm_gpu.so") {
		t.Errorf("plan %+v", plan)
	}
	t.Run("what CDI gave is taken over", func(t *testing.T) {
		takenOver(t, d, all(withNode(d.Majors.FS, 2), editedByCDI("/dev/nvhost-gpu")), 3)
	})
}

// On a host that is not a container itself, a missing node has to be created and does not change
// how GPUs are counted.
func TestMissingNode(t *testing.T) {
	d := newHost(t, sim.Options{GPUs: 2})
	check(t, os.Remove(fmt.Sprintf("%s/dev/nvidia%d", d.DevRoot, d.GPUs[0].Minor)))
	table{host: d, rows: []row{
		{name: "of the GPU that is asked for", env: devices("0"), want: "refused: is missing", kind: verdict.KindPrecondition},
		{name: "of another GPU", env: devices("1"), want: "GPU 1"},
	}}.run(t)
}

// What the driver lacks of a requested capability is noted, and a host that is a container is not
// told to reboot.
func TestWhatTheDriverLacks(t *testing.T) {
	d := newHost(t, sim.Options{GPUs: 1})
	check(t, os.Remove(filepath.Join(d.Root, "usr/bin/nvidia-smi")))
	const note = "utility: this host's driver has no nvidia-smi"
	table{host: d, env: devices("0"), show: func(p Plan) string { return fmt.Sprint(slices.Contains(p.Notes, note)) }, rows: []row{
		{name: "utility", env: caps("utility"), want: "true"},
		{name: "compute", env: caps("compute"), want: "false"},
	}}.run(t)
	other := newHost(t, sim.Options{GPUs: 1, KernelVersion: "580.200.01"})
	_, err := other.resolve(t, newSpec("NVIDIA_VISIBLE_DEVICES=0"))
	if err == nil || !strings.Contains(err.Error(), "reboot") || strings.Contains(err.Error(), "a container") {
		t.Errorf("another version: %v", err)
	}
	writeFile(t, filepath.Join(other.ProcRoot, "1/uid_map"), "0 100000 65536\n", 0o444)
	_, err = other.resolve(t, newSpec("NVIDIA_VISIBLE_DEVICES=0"))
	if err == nil || !strings.Contains(err.Error(), "this host is itself a container: install the driver's user-space") {
		t.Errorf("in a container: %v", err)
	}
}
