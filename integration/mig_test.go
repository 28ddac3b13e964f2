package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// migLayout has another order than the ids of the instances: NVML counts as here,
// procfs has them by id.
var migLayout = []sim.MIGDevice{{GPU: 1, GI: 9, CI: 0}, {GPU: 1, GI: 5, CI: 0}, {GPU: 1, GI: 5, CI: 1}}

func newMIGHost(t *testing.T, o hostOptions) *devHost {
	t.Helper()
	o.Options = sim.Options{GPUs: 3, MIG: migLayout}
	return newDevHost(t, o)
}

// migMinor is the number of a capability node in the driver's own table
// (/proc/driver/nvidia-caps/mig-minors), written down apart from the simulated
// driver: each GPU has 15 GPU instances and each of these 8 compute instances. ci is
// -1 for the GPU instance itself.
func migMinor(minor, gi, ci int) int { return 3 + (minor*15+gi)*9 + 1 + ci }

// migNodes are all nodes of the host.
func migNodes(d *sim.Driver, minors []int) []devNode {
	nodes := devNodes(d, minors)
	for _, m := range d.MIG {
		for _, ci := range []int{-1, m.CI} {
			n := migMinor(minors[m.GPU], m.GI, ci)
			node := devNode{fmt.Sprintf("nvidia-caps/nvidia-cap%d", n), fmt.Sprintf("%d:%d", d.Majors.Caps, n)}
			if !slices.Contains(nodes, node) {
				nodes = append(nodes, node)
			}
		}
	}
	return nodes
}

// migExpect is what a container must see that was given exactly the GPUs and the MIG
// devices given by position, and further capability nodes by number.
func migExpect(d *sim.Driver, minors, gpus, mig []int, more ...int) devProbe {
	granted := map[string]bool{"nvidiactl": true, "nvidia-uvm": true, "nvidia-uvm-tools": true}
	caps := slices.Clone(more)
	seen := slices.Clone(gpus)
	for _, i := range mig {
		m := d.MIG[i]
		caps = append(caps, migMinor(minors[m.GPU], m.GI, -1), migMinor(minors[m.GPU], m.GI, m.CI))
		if !slices.Contains(seen, m.GPU) {
			seen = append(seen, m.GPU)
		}
	}
	slices.Sort(seen)
	for _, n := range caps {
		granted[fmt.Sprintf("nvidia-caps/nvidia-cap%d", n)] = true
	}
	var want devProbe
	for _, i := range seen {
		granted[fmt.Sprintf("nvidia%d", minors[i])] = true
		want.smi = append(want.smi, d.GPUs[i].UUID)
		want.cuda = append(want.cuda, d.GPUs[i].UUID)
		want.procGPUs = append(want.procGPUs, d.GPUs[i].BusID)
		// The order of NVML.
		for k, m := range d.MIG {
			if m.GPU == i && slices.Contains(mig, k) {
				want.smi = append(want.smi, m.UUID)
			}
		}
	}
	for _, n := range migNodes(d, minors) {
		if granted[n.name] {
			want.open, want.mknod, want.dev = append(want.open, n.name+" ENXIO"), append(want.mknod, n.number+" ENXIO"), append(want.dev, n.name)
		} else {
			want.open, want.mknod = append(want.open, n.name+" ENOENT"), append(want.mknod, n.number+" EPERM")
		}
	}
	slices.Sort(want.dev)
	return want
}

// migRun runs the probe in a container that must have what migExpect says.
func (h *devHost) migRun(t *testing.T, o testenv.RunOptions, gpus, mig []int, more ...int) {
	t.Helper()
	d, minors := h.Driver, devCheckMinors(t, h.Driver)
	o.Image, o.Args = h.Image, devProbeScript(migNodes(d, minors))
	devCompare(t, devParse(h.MustRun(t, o)), migExpect(d, minors, gpus, mig, more...))
}

func visible(value string, more ...string) testenv.RunOptions {
	return testenv.RunOptions{Env: append([]string{"NVIDIA_VISIBLE_DEVICES=" + value}, more...)}
}

// T60: exactly the capability nodes of the granted MIG devices open.
func TestMIGDevicesAreGivenExactlyAsAskedFor(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := newMIGHost(t, hostOptions{testenv: testenv.Options{Cgroup: version}})
		d := h.Driver
		older := func(i int) string {
			return fmt.Sprintf("MIG-%s/%d/%d", d.GPUs[d.MIG[i].GPU].UUID, d.MIG[i].GI, d.MIG[i].CI)
		}
		for _, tc := range []struct {
			name, value string
			gpus, mig   []int
		}{
			{"by UUID", d.MIG[0].UUID, nil, []int{0}},
			{"by the beginning of a UUID, in capitals", strings.ToUpper(d.MIG[1].UUID[:16]), nil, []int{1}},
			{"by index, which is NVML's", "1:0", nil, []int{0}},
			{"by the older name", older(2), nil, []int{2}},
			{"by several names", "1:2," + d.MIG[2].UUID + "," + older(2), nil, []int{2}},
			{"two of one GPU instance", "1:1,1:2", nil, []int{1, 2}},
			{"beside a whole GPU", "2,1:0", []int{2}, []int{0}},
			{"all", "all", []int{0, 2}, []int{0, 1, 2}},
			{"none", "0", []int{0}, nil},
		} {
			t.Run(tc.name, func(t *testing.T) { h.migRun(t, visible(tc.value), tc.gpus, tc.mig) })
		}
		t.Run("of the device list", func(t *testing.T) {
			o := testenv.RunOptions{Mounts: []string{"type=bind,src=/dev/null,options=rbind:ro,dst=/var/run/nvidia-container-devices/" + older(1)}}
			h.migRun(t, o, nil, []int{1})
		})
	})
}

// In a user namespace the host's capability nodes are bound, and the mask shows those
// of the MIG device alone there too.
func TestAUserNamespaceHasItsMIGDeviceToo(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := newMIGHost(t, hostOptions{testenv: testenv.Options{Cgroup: version}})
		d, minors := h.Driver, devCheckMinors(t, h.Driver)
		nodes := migNodes(d, minors)
		o := visible("1:2")
		o.Image, o.Extra = h.Image, []string{"--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536"}
		o.Args = devProbeScript(nodes)
		o.Args[2] += "\necho '== capabilities'; cd " + devMask + "/capabilities && find . -type f | sort; for f in $(find . -type f); do grep Modify: $f; echo > $f; done 2>&1; true"
		out := h.MustRun(t, o)
		want := migExpect(d, minors, nil, []int{2})
		for i, n := range nodes {
			want.mknod[i] = n.number + " mknod EPERM"
			// The host's mode, 0444, is for reading, as NVML opens it: nvidia-smi lists the
			// MIG device. Only the host's root could open it for writing.
			if strings.HasPrefix(n.name, "nvidia-caps/") {
				want.open[i] = strings.Replace(want.open[i], "ENXIO", "EACCES", 1)
			}
		}
		devCompare(t, devParse(out), want)
		_, shown, _ := strings.Cut(out, "== capabilities\n")
		gi := fmt.Sprintf("./gpu%d/mig/gi5", minors[1])
		if !strings.HasPrefix(shown, gi+"/access\n"+gi+"/ci1/access\nDeviceFileModify: 0\n") || strings.Count(shown, "\n") != 6 || strings.Count(shown, "ead-only file system") != 2 {
			t.Errorf("the mask shows\n%s", shown)
		}
	})
}

func TestTheMaskShowsTheCapabilitiesOfGrantedMIGDevicesOnly(t *testing.T) {
	h := newMIGHost(t, hostOptions{})
	d := h.Driver
	minor := devCheckMinors(t, d)[1]
	read := func(name string) string {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(d.ProcRoot, "driver/nvidia", name))
		if err != nil {
			t.Fatal(err)
		}
		text := string(data)
		if changed := strings.Replace(text, "DeviceFileModify: 1\n", "DeviceFileModify: 0\n", 1); changed != text {
			return changed
		}
		t.Fatalf("%s says nothing that the mask would have to change: %s", name, text)
		return ""
	}
	for _, tc := range []struct {
		name  string
		o     testenv.RunOptions
		files []string
		gpus  []int
	}{
		{"a MIG device", visible("1:2"), []string{"gpu%d/mig/gi5/access", "gpu%d/mig/gi5/ci1/access"}, []int{1}},
		{"a whole GPU", visible("0"), nil, []int{0}},
		{"the right to configure MIG", testenv.RunOptions{
			Env:   []string{"NVIDIA_VISIBLE_DEVICES=1", "NVIDIA_MIG_CONFIG_DEVICES=all"},
			Extra: []string{"--cap-add", "CAP_SYS_ADMIN"},
		}, []string{
			"gpu%d/mig/gi5/access", "gpu%d/mig/gi5/ci0/access", "gpu%d/mig/gi5/ci1/access", "gpu%d/mig/gi9/access", "gpu%d/mig/gi9/ci0/access", "mig/config",
		}, []int{1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var want []string
			for _, f := range tc.files {
				name := "capabilities/" + strings.ReplaceAll(f, "%d", fmt.Sprint(minor))
				want = append(want, "== ./"+name+"\n"+read(name))
			}
			tc.o.Image = h.Image
			tc.o.Args = []string{"/bin/sh", "-c", "cd " + devMask + "; ls gpus; for f in $(find . -path './capabilities/*' -type f | sort); do echo \"== $f\"; cat $f; done"}
			var buses string
			for _, i := range tc.gpus {
				buses += d.GPUs[i].BusID + "\n"
			}
			if got := h.MustRun(t, tc.o); got != buses+strings.Join(want, "") {
				t.Errorf("got\n%s\nwant\n%s", got, buses+strings.Join(want, ""))
			}
		})
	}
}

func TestAChangeOfTheMIGLayoutNeedsNoRestart(t *testing.T) {
	h := newMIGHost(t, hostOptions{})
	old := h.Driver.MIG[0].UUID
	h.migRun(t, visible(old), nil, []int{0})
	if err := h.Driver.Reconfigure(t.Context(), []sim.MIGDevice{{GPU: 1, GI: 5, CI: 0}, {GPU: 0, GI: 2, CI: 3}}); err != nil {
		t.Fatal(err)
	}
	r := h.Run(t, testenv.RunOptions{Image: h.Image, Env: []string{"NVIDIA_VISIBLE_DEVICES=" + old}, Args: []string{"/bin/true"}})
	if r.ExitCode == 0 || !strings.Contains(r.Stderr, "unknown MIG device") || !strings.Contains(r.Stderr, h.Driver.MIG[1].UUID) {
		t.Errorf("exit status %d: %s", r.ExitCode, r.Stderr)
	}
	h.migRun(t, visible(h.Driver.MIG[1].UUID), nil, []int{1})
	h.migRun(t, visible("0:0"), nil, []int{1})
	h.migRun(t, visible("all"), []int{2}, []int{0, 1})
}

func TestRightsOverMIGNeedMoreThanTheEnvironment(t *testing.T) {
	h := newMIGHost(t, hostOptions{})
	const configure, watch = "NVIDIA_MIG_CONFIG_DEVICES=all", "NVIDIA_MIG_MONITOR_DEVICES=all"
	refused := func(name string, o testenv.RunOptions, words ...string) {
		t.Run(name, func(t *testing.T) {
			o.Image, o.Args = h.Image, []string{"/bin/true"}
			r := h.Run(t, o)
			for _, w := range words {
				if r.ExitCode == 0 || !strings.Contains(r.Stderr, w) {
					t.Errorf("exit status %d, want %q: %s", r.ExitCode, w, r.Stderr)
				}
			}
		})
	}
	refused("an ordinary container", visible("all", configure), "NVIDIA_MIG_CONFIG_DEVICES", "CAP_SYS_ADMIN")
	refused("another value", visible("all", "NVIDIA_MIG_MONITOR_DEVICES=0"), `NVIDIA_MIG_MONITOR_DEVICES="0"`)
	admin := func(value string, env ...string) testenv.RunOptions {
		o := visible(value, env...)
		o.Extra = []string{"--cap-add", "CAP_SYS_ADMIN"}
		return o
	}
	refused("a MIG device by name", admin("1:0", watch), `"1:0"`)
	refused("a divided GPU by name, without the right", admin("1"), "divided by MIG", h.Driver.GPUs[1].UUID)
	t.Run("CAP_SYS_ADMIN may configure", func(t *testing.T) {
		h.migRun(t, admin("all", configure), []int{0, 1, 2}, []int{0, 1, 2}, 1)
	})
	t.Run("CAP_SYS_ADMIN may watch", func(t *testing.T) {
		h.migRun(t, admin("1", watch), []int{1}, []int{0, 1, 2}, 2)
	})
	t.Run("a privileged container may configure", func(t *testing.T) {
		o := visible("1", configure)
		o.Image, o.Privileged = h.Image, true
		o.Args = []string{"/bin/sh", "-c", "/test/opendev /dev/nvidia-caps/nvidia-cap1; nvidia-smi -L"}
		out := h.MustRun(t, o)
		if !strings.Contains(out, "/dev/nvidia-caps/nvidia-cap1 ENXIO") {
			t.Errorf("the right is not there:\n%s", out)
		}
		for _, m := range h.Driver.MIG {
			if !strings.Contains(out, m.UUID) {
				t.Errorf("%s is not there:\n%s", m.UUID, out)
			}
		}
	})
	t.Run("a privileged container gets no right that it does not ask for", func(t *testing.T) {
		o := visible("1:0")
		o.Image, o.Privileged = h.Image, true
		o.Args = []string{"/bin/sh", "-c", "/test/opendev /dev/nvidia-caps/nvidia-cap1; nvidia-smi -L"}
		out := h.MustRun(t, o)
		if !strings.Contains(out, "/dev/nvidia-caps/nvidia-cap1 ENOENT") || !strings.Contains(out, h.Driver.MIG[0].UUID) || strings.Contains(out, h.Driver.MIG[1].UUID) {
			t.Errorf("got\n%s", out)
		}
	})
}
