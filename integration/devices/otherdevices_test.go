package devices

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/kubelettest"
)

// newOtherHost has devices of every other class.
func newOtherHost(t *testing.T, o simhost.Options) *simhost.Host {
	t.Helper()
	o.Driver = sim.Options{GPUs: 3, Others: sim.Others{IMEX: 4, GDS: true, MOFED: true, GDRCopy: true, NVSwitch: true}}
	return simhost.New(t, o)
}

// otherNodes are the nodes of the other classes, written down apart from the simulated
// driver's own list.
func otherNodes(d *sim.Driver) []simhost.Node {
	m := d.Majors
	node := func(name string, major uint32, minor int) simhost.Node {
		return simhost.Node{Name: name, Number: fmt.Sprintf("%d:%d", major, minor)}
	}
	const imex = "nvidia-caps-imex-channels/channel"
	return []simhost.Node{
		node(imex+"0", m.IMEX, 0), node(imex+"1", m.IMEX, 1), node(imex+"2", m.IMEX, 2), node(imex+"3", m.IMEX, 3),
		node("nvidia-fs0", m.FS, 0), node("nvidia-fs1", m.FS, 1), node("gdrdrv", m.GDR, 0),
		node("infiniband/uverbs0", m.Verbs, 192), node("infiniband/uverbs1", m.Verbs, 193), node("infiniband/rdma_cm", m.Misc, 122),
		node("nvidia-nvswitchctl", m.Switch, 255), node("nvidia-nvswitch0", m.Switch, 0), node("nvidia-nvswitch1", m.Switch, 1),
	}
}

// otherNames are the base names of all of them.
func otherNames(d *sim.Driver) (names []string) {
	for _, n := range otherNodes(d) {
		names = append(names, filepath.Base(n.Name))
	}
	return names
}

// everything asks for everything.
var everything = []string{
	"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_IMEX_CHANNELS=0,channel1,2,3", "NVIDIA_GDS=enabled", "NVIDIA_GDRCOPY=enabled",
	"NVIDIA_MOFED=enabled", "NVIDIA_NVSWITCH=enabled",
}

// expectOthers runs the probe in a container and compares every node of the other classes:
// those in want (base names) open and their numbers open under a name of the
// container's own making (ENXIO: no driver is behind them), all others neither exist
// nor open when made (EPERM). count is how many GPUs it must have.
func expectOthers(t *testing.T, h *simhost.Host, o testenv.RunOptions, count int, want ...string) testenv.Result {
	t.Helper()
	o.Args = h.ProbeArgs(otherNodes(h.Driver)...)
	r := h.Run(t, o)
	if r.ExitCode != 0 {
		t.Fatalf("exit status %d: %s", r.ExitCode, r.Error)
	}
	got := simhost.Parse(r.Output)
	var open, mknod []string
	for _, n := range otherNodes(h.Driver) {
		if slices.Contains(want, filepath.Base(n.Name)) {
			open, mknod = append(open, n.Name+" ENXIO"), append(mknod, n.Number+" ENXIO")
		} else {
			open, mknod = append(open, n.Name+" ENOENT"), append(mknod, n.Number+" EPERM")
		}
	}
	simhost.Same(t, "open of each node", open, got.Open)
	simhost.Same(t, "mknod and open of each number", mknod, got.Mknod)
	if len(got.SMI) != count {
		t.Errorf("%d GPUs, want %d: %s", len(got.SMI), count, got.SMIText)
	}
	return r
}

func TestOtherDevicesAreGivenExactlyAsAskedFor(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := newOtherHost(t, simhost.Options{Env: testenv.Options{Cgroup: version}})
		for _, tc := range []struct {
			name string
			env  []string
			gpus int
			want []string
		}{
			{"a GPU alone", []string{"NVIDIA_VISIBLE_DEVICES=0"}, 1, nil},
			{"two channels of four", []string{"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_IMEX_CHANNELS=3,channel1"}, 1, []string{"channel1", "channel3"}},
			{"all channels in the environment are none", []string{"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_IMEX_CHANNELS=all"}, 1, nil},
			{"GDS", []string{"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_GDS=enabled"}, 1, []string{"nvidia-fs0", "nvidia-fs1"}},
			{"GDRCopy", []string{"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_GDRCOPY=enabled"}, 1, []string{"gdrdrv"}},
			{"MOFED", []string{"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_MOFED=enabled"}, 1, []string{"uverbs0", "uverbs1", "rdma_cm"}},
			{"NVSwitch", []string{"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_NVSWITCH=enabled"}, 1, []string{"nvidia-nvswitchctl", "nvidia-nvswitch0", "nvidia-nvswitch1"}},
			{"everything", everything, 3, otherNames(h.Driver)},
			{"nothing of it without a GPU", append(slices.Clone(everything), "NVIDIA_VISIBLE_DEVICES=none"), 0, nil},
		} {
			t.Run(tc.name, func(t *testing.T) { expectOthers(t, h, testenv.RunOptions{Env: tc.env}, tc.gpus, tc.want...) })
		}
		t.Run("channels of the device list go before the environment", func(t *testing.T) {
			const list = "type=bind,src=/dev/null,options=rbind:ro,dst=/var/run/nvidia-container-devices/"
			expectOthers(t, h, testenv.RunOptions{Env: everything[:2], Mounts: []string{list + h.Driver.GPUs[1].UUID, list + "imex/2"}}, 1, "channel2")
		})
		t.Run("a channel without a node fails creation by its name", func(t *testing.T) {
			h.Refused(t, simhost.Visible("0", "NVIDIA_IMEX_CHANNELS=9"), "/channel9 is missing")
		})
		t.Run("GDS brings the udev database and cuFile's configuration, read-only", func(t *testing.T) {
			out := h.MustRun(t, testenv.RunOptions{
				Env:  []string{"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_GDS=enabled"},
				Args: []string{"/bin/sh", "-c", "cat /run/udev/data/b259:0 /etc/cufile.json; touch /run/udev/x /etc/cufile.json 2>/dev/null || echo refused"},
			})
			simhost.Want(t, out, "nvme-simulated", "allow_compat_mode", "refused")
		})
	})
}

// The kubelet allocates a GPU; what the environment of an image or a pod author asks
// for besides needs a grant of its own.
func TestT43InAPodOtherDevicesNeedAGrantOfTheirOwn(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	h := newOtherHost(t, simhost.Options{Config: "[policy]\nkubelet-socket = \"" + socket + "\"\nallow-from-environment = [\"gdrcopy\"]\n"})
	kubelettest.Serve(t, socket, kubelettest.Pod("team", "train", h.Driver.GPUs[1].UUID))
	pod := simhost.PodAnnotations("team", "train", "main")
	// As NVIDIA's device plugin names what was allocated.
	own := append(slices.Clone(everything), "NVIDIA_VISIBLE_DEVICES="+h.Driver.GPUs[1].UUID)
	run := func(t *testing.T, o testenv.RunOptions, gpus int, want ...string) []string {
		t.Helper()
		if o.Env = everything; gpus == 1 {
			o.Env = own
		}
		return h.LogLines(expectOthers(t, h, o, gpus, want...).ID, "warning")
	}
	// The device plugin's node keeps its name on the host, which no probe looks at.
	allocated := func(name string) []string { return []string{"--device", h.Driver.DevRoot + "/dev/" + name} }
	for _, tc := range []struct {
		name      string
		allocated []string
		want      []string
		ignored   []string
	}{
		{"only what the operator allows", nil, []string{"gdrdrv"}, []string{"imex", "gds", "mofed", "nvswitch"}},
		{"a channel that was allocated", allocated("nvidia-caps-imex-channels/channel2"), []string{"gdrdrv", "channel2"}, []string{"imex 0,1,3", "gds", "mofed", "nvswitch"}},
		{"an adapter that was allocated, and the connection manager", allocated("infiniband/uverbs1"), []string{"gdrdrv", "uverbs1", "rdma_cm"}, []string{"imex", "gds", "nvswitch"}},
		{"GDS that was allocated", allocated("nvidia-fs0"), []string{"gdrdrv", "nvidia-fs0", "nvidia-fs1"}, []string{"imex", "mofed", "nvswitch"}},
		{"a switch that was allocated", allocated("nvidia-nvswitch1"), []string{"gdrdrv", "nvidia-nvswitchctl", "nvidia-nvswitch1"}, []string{"imex", "gds", "mofed"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			lines := run(t, testenv.RunOptions{Annotations: pod, Extra: tc.allocated}, 1, tc.want...)
			if len(lines) != len(tc.ignored) {
				t.Errorf("warnings: %q, want one for each of %q", lines, tc.ignored)
			}
			for _, what := range tc.ignored {
				if !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, "nvidia: ignored: "+what+": ") }) {
					t.Errorf("no warning of %s in %q", what, lines)
				}
			}
		})
	}
	t.Run("mounted channels", func(t *testing.T) {
		const list = "type=bind,src=/dev/null,options=rbind:ro,dst=/var/run/nvidia-container-devices/"
		lines := run(t, testenv.RunOptions{Annotations: pod, Mounts: []string{list + h.Driver.GPUs[1].UUID, list + "imex/3"}}, 1, "gdrdrv", "channel3")
		if len(lines) != 3 {
			t.Errorf("warnings: %q", lines)
		}
	})
	t.Run("a look-alike of the mount", func(t *testing.T) {
		run(t, testenv.RunOptions{Annotations: pod, Mounts: []string{"type=bind,src=/dev/null,options=rbind:ro,dst=/var/run/nvidia-container-devicesX/imex/3"}}, 1, "gdrdrv")
	})
	t.Run("a trusted namespace", func(t *testing.T) {
		if lines := run(t, testenv.RunOptions{Annotations: simhost.PodAnnotations("kube-system", "dcgm", "main")}, 3, otherNames(h.Driver)...); len(lines) != 0 {
			t.Errorf("warnings: %q", lines)
		}
	})
	t.Run("a namespace that looks like one", func(t *testing.T) {
		// Unknown to the kubelet: neither GPU nor anything else.
		run(t, testenv.RunOptions{Annotations: simhost.PodAnnotations("kube-systemd", "dcgm", "main")}, 0)
	})
	t.Run("the record says what was ignored", func(t *testing.T) {
		id := h.Start(t, testenv.RunOptions{Annotations: pod, Env: own})
		plan := h.Record(t, id)
		if len(plan.Ignored) != 4 || len(plan.IMEX) != 0 || !slices.Equal(plan.Classes, []string{"gdrcopy"}) {
			t.Errorf("ignored %q, IMEX %v, classes %q", plan.Ignored, plan.IMEX, plan.Classes)
		}
	})
}
