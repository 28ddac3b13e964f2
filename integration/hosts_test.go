package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/simtest"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// Hosts that put the driver where no distribution does. The layouts of Debian, RHEL
// and GKE are those of the other tests.
func TestContainersOnTalosAndNixOS(t *testing.T) {
	for _, layout := range []sim.Layout{sim.Talos, sim.NixOS} {
		t.Run(string(layout), func(t *testing.T) {
			h := newDevHost(t, hostOptions{Options: sim.Options{GPUs: 4, Layout: layout}})
			minors := devCheckMinors(t, h.Driver)
			devCompare(t, h.devRun(t, "NVIDIA_VISIBLE_DEVICES=2"), devExpect(h.Driver, minors, []int{2}))
		})
	}
}

// replaceConfig changes the simulated driver's configuration, which each create reads.
func (h *host) replaceConfig(t testing.TB, old, new string) {
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
	h := newDevHost(t, hostOptions{Options: sim.Options{GPUs: 4, Layout: sim.NvidiaCurrent}, testenv: testenv.Options{Cgroup: testenv.CgroupVersions()[0]}})
	minors := devCheckMinors(t, h.Driver)
	container := simtest.NewDriverContainer(t, filepath.Join(h.Driver.Dir, "run-nvidia-driver"))
	h.replaceConfig(t, fmt.Sprintf("driver-root = %q", h.Driver.Root), fmt.Sprintf("driver-root = %q", container.At))
	one := testenv.RunOptions{Image: h.Image, Env: []string{"NVIDIA_VISIBLE_DEVICES=1"}, Args: devProbeScript(devNodes(h.Driver, minors))}
	if r, err := h.TryRun(t, one); err != nil || r.ExitCode == 0 || !strings.Contains(r.Stderr, "host.driver-root") {
		t.Fatalf("before the driver container: %v\n%s", err, r.Stderr)
	}
	// ctr's client mounts nothing: what containerd's mount namespace sees is what the
	// host mounts later, which is propagation where it has one of its own.
	container.Start(t, h.Driver.Root)
	want := devExpect(h.Driver, minors, []int{1})
	devCompare(t, devParse(h.MustRun(t, one)), want)
	running := h.devSleep(t, testenv.RunOptions{Env: []string{"NVIDIA_VISIBLE_DEVICES=3"}})

	container.Stop(t)
	if r, err := h.TryRun(t, one); err != nil || r.ExitCode == 0 {
		t.Errorf("while the driver container is away: %v\n%s", err, r.Stderr)
	}
	container.Restart(t, h.Driver.Root, filepath.Join(h.Driver.Dir, "again"))
	devCompare(t, devParse(h.MustRun(t, one)), want)
	if r := h.Exec(t, running, "nvidia-smi", "-L"); r.ExitCode != 0 || !strings.Contains(r.Stdout, h.Driver.GPUs[3].UUID) {
		t.Errorf("in the container from before the restart: %d\n%s%s", r.ExitCode, r.Stdout, r.Stderr)
	}
}

func TestContainersUnderWSL(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := newDevHost(t, hostOptions{Options: sim.Options{GPUs: 1}, testenv: testenv.Options{Cgroup: version}})
		if err := h.Driver.BecomeWSL(t.Context()); err != nil {
			t.Fatal(err)
		}
		dxg := fmt.Sprintf("%d:125", h.Driver.Majors.Misc)
		out := h.MustRun(t, testenv.RunOptions{Image: h.Image, Env: []string{"NVIDIA_VISIBLE_DEVICES=all"}, Args: []string{"/bin/sh", "-c", strings.Join([]string{
			"/test/opendev /dev/dxg", "/test/mkdev " + dxg + fmt.Sprintf(" %d:126", h.Driver.Majors.Misc),
			"find /dev -type c | grep -e nvidia -e dri -e dxg", "ls /usr/lib/wsl/lib /" + sim.WSLPackage, "/test/cucount; ls -d /proc/driver/gpus; nvidia-smi -L; true",
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
		if strings.Contains(out, "/dev/nvidia") || strings.Contains(out, "/proc/driver/gpus") || strings.Contains(out, "x.d") {
			t.Errorf("a node or a mask of the NVIDIA kernel module, or another vendor's package:\n%s", out)
		}
		r, err := h.TryRun(t, testenv.RunOptions{Image: h.Image, Env: []string{"NVIDIA_VISIBLE_DEVICES=1"}, Args: []string{"/bin/true"}})
		if err != nil || !strings.Contains(r.Stderr, "every GPU that Windows shares with WSL2") {
			t.Errorf("%v\n%s", err, r.Stderr)
		}
	})
}

func TestContainersOnATegra(t *testing.T) {
	h := newDevHost(t, hostOptions{Options: sim.Options{GPUs: 1}})
	if err := h.Driver.BecomeTegra(t.Context()); err != nil {
		t.Fatal(err)
	}
	out := h.MustRun(t, testenv.RunOptions{Image: h.Image, User: "1000:1000", Env: []string{"NVIDIA_VISIBLE_DEVICES=all"}, Args: []string{"/bin/sh", "-c", strings.Join([]string{
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

// nestedScript is what a node that is a container does: its own containerd, this shim,
// and a container. $1 is the namespace, the rest the inner container's environment.
const nestedScript = `
mount -t cgroup2 none /sys/fs/cgroup || exit 90
%s
export PATH=/shim:/tools:$PATH NVIDIA_SHIM_CONFIG=/in/shim.toml CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1
containerd --config /in/containerd.toml >/in/log 2>&1 &
n=0
until ctr --address /run/in.sock version >/dev/null 2>&1; do
	n=$((n+1)); [ $n -lt 300 ] || { cat /in/log; exit 91; }
	sleep 0.1
done
ctr --address /run/in.sock --namespace %s images import /in/image.tar >/dev/null || exit 92
i=0
for ask in %s; do
	i=$((i+1))
	echo "== ask $ask"
	ctr --address /run/in.sock --namespace %s run --rm --cpu-shares 0 --runtime io.containerd.nvidia.v2 --env NVIDIA_VISIBLE_DEVICES=$ask %s inner$i /bin/sh -c '%s' 2>&1
done
exit 0
`

// nestedHosts are containers of ours that are hosts themselves, as a node of kind is:
// privileged (procfs shows all of the machine) or with just the capabilities that runc
// needs (procfs is masked by us).
var nestedHosts = []struct {
	name, prepare string
	options       testenv.RunOptions
}{
	{"privileged, with the host's procfs", "mkdir -p /sim/driver && mount --bind /proc0 /sim || exit 93", testenv.RunOptions{Privileged: true}},
	{
		"unprivileged, with our mask for its procfs",
		// The simulated driver's mask is at /proc/driver.
		"mkdir -p /sim/driver/nvidia && cp /proc0/devices /sim && mount --bind /proc/driver /sim/driver/nvidia || exit 93",
		testenv.RunOptions{Extra: []string{"--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_NET_ADMIN", "--cap-add", "CAP_SYS_PTRACE"}},
	},
}

// nested starts a container as a host that is given what given names, and in it one
// container after another that ask; they say what they see of nodes.
func (h *devHost) nested(t *testing.T, prepare string, o testenv.RunOptions, given string, asks []string, nodes []devNode) map[string]string {
	t.Helper()
	tar, err := images.Build(devImage)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, n := range nodes {
		paths = append(paths, "/dev/"+n.name)
	}
	probe := "echo == open; /test/opendev " + strings.Join(paths, " ") + "; echo == smi; nvidia-smi -L; echo == cuda; /test/cucount; echo == proc; ls /proc/driver/gpus; true"
	in, err := os.MkdirTemp(h.Dir, "in")
	if err != nil {
		t.Fatal(err)
	}
	devWriteFile(t, filepath.Join(in, "shim.toml"), "[host]\nproc-root = \"/sim\"\nsys-root = \"/sys0\"\nproc-mask-target = \"/proc/driver\"\n")
	devWriteFile(t, filepath.Join(in, "containerd.toml"), `version = 3
root = "/in/root"
state = "/run/containerd"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.podsandbox.controller.v1.podsandbox", "io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.erofs"]
[grpc]
  address = "/run/in.sock"
`)
	o.Image, o.Env = h.Image, []string{"NVIDIA_VISIBLE_DEVICES=" + given}
	for dst, src := range map[string]string{"/in": in, "/in/image.tar": tar, "/tools": h.Options.ToolsDir, "/shim": h.Options.ShimDir, "/proc0": h.Driver.ProcRoot, "/sys0": h.Driver.SysRoot} {
		o.Mounts = append(o.Mounts, "type=bind,src="+src+",dst="+dst+",options=rbind:rw")
	}
	slices.SortFunc(o.Mounts, func(a, b string) int {
		return strings.Compare(a[strings.Index(a, "dst="):], b[strings.Index(b, "dst="):])
	})
	o.Args = []string{"/bin/sh", "-c", fmt.Sprintf(nestedScript, prepare, h.ID, strings.Join(asks, " "), h.ID, h.Image, probe)}
	out := h.MustRun(t, o)
	if strings.Count(out, "== ask") != len(asks) {
		log, _ := os.ReadFile(filepath.Join(in, "log"))
		t.Fatalf("%s\n%s", out, log)
	}
	got := map[string]string{}
	for _, part := range strings.Split(out, "== ask ")[1:] {
		ask, rest, _ := strings.Cut(part, "\n")
		got[ask] = rest
	}
	return got
}

// nestedCompare compares what a container in a container sees.
func nestedCompare(t *testing.T, ask, got string, want devProbe) {
	t.Helper()
	p := devParse(got)
	want.mknod, want.dev, p.mknod, p.dev = nil, nil, nil, nil
	devCompare(t, p, want)
	if t.Failed() {
		t.Fatalf("asked for %s:\n%s", ask, got)
	}
}

// What a container that is a host starts gets the GPUs that it was given, counted from
// 0, and no others.
func TestNestedContainersGetTheGPUsOfTheOuterOne(t *testing.T) {
	h := newDevHost(t, hostOptions{Options: sim.Options{GPUs: 4}, testenv: testenv.Options{Cgroup: 2}})
	minors := devCheckMinors(t, h.Driver)
	uuid := func(i int) string { return h.Driver.GPUs[i].UUID }
	for _, tc := range nestedHosts {
		t.Run(tc.name, func(t *testing.T) {
			got := h.nested(t, tc.prepare, tc.options, "1,3", []string{"all", "0", "1", uuid(3), "2", uuid(0)}, devNodes(h.Driver, minors))
			for ask, want := range map[string][]int{"all": {1, 3}, "0": {1}, "1": {3}, uuid(3): {3}} {
				nestedCompare(t, ask, got[ask], devExpect(h.Driver, minors, want))
			}
			for _, ask := range []string{"2", uuid(0)} {
				if !strings.Contains(got[ask], "unknown GPU") || strings.Contains(got[ask], "== open") {
					t.Errorf("asked for %s, which the outer container was not given:\n%s", ask, got[ask])
				}
			}
		})
	}
}

// The same of MIG devices: GPU 1 of the host has three, of which the outer container
// was given two, and nothing else but GPU 2.
func TestNestedContainersGetTheMIGDevicesOfTheOuterOne(t *testing.T) {
	h := newMIGHost(t, hostOptions{testenv: testenv.Options{Cgroup: 2}})
	d, minors := h.Driver, devCheckMinors(t, h.Driver)
	older := func(i int) string {
		return fmt.Sprintf("MIG-%s/%d/%d", d.GPUs[1].UUID, d.MIG[i].GI, d.MIG[i].CI)
	}
	for _, tc := range nestedHosts {
		t.Run(tc.name, func(t *testing.T) {
			given := d.MIG[0].UUID + "," + d.MIG[2].UUID + ",2"
			got := h.nested(t, tc.prepare, tc.options, given,
				[]string{"all", "0:0", "0:1", d.MIG[2].UUID, older(0), "1", "0", "0:2", d.MIG[1].UUID, older(1)}, migNodes(d, minors))
			for ask, want := range map[string]struct{ gpus, mig []int }{
				"all": {[]int{2}, []int{0, 2}}, "0:0": {nil, []int{0}}, "0:1": {nil, []int{2}}, d.MIG[2].UUID: {nil, []int{2}},
				older(0): {nil, []int{0}}, "1": {[]int{2}, nil},
			} {
				nestedCompare(t, ask, got[ask], migExpect(d, minors, want.gpus, want.mig))
			}
			for ask, message := range map[string]string{"0": "divided by MIG", "0:2": "unknown MIG device", d.MIG[1].UUID: "unknown MIG device", older(1): "unknown MIG device"} {
				if !strings.Contains(got[ask], message) || strings.Contains(got[ask], "== open") {
					t.Errorf("asked for %s, which the outer container was not given:\n%s", ask, got[ask])
				}
			}
		})
	}
}
