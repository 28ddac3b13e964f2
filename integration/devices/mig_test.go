package devices

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// migLayout has another order than the ids of the instances: NVML counts as here,
// procfs has them by id.
var migLayout = []sim.MIGDevice{{GPU: 1, GI: 9, CI: 0}, {GPU: 1, GI: 5, CI: 0}, {GPU: 1, GI: 5, CI: 1}}

func newMIGHost(t *testing.T, version int) *simhost.Host {
	t.Helper()
	return simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 3, MIG: migLayout}, Env: testenv.Options{Cgroup: version}})
}

// expectMIG runs a container that must have exactly these GPUs, MIG devices by position
// and capability nodes.
func expectMIG(t *testing.T, h *simhost.Host, o testenv.RunOptions, gpus, mig []int, capabilities ...int) {
	t.Helper()
	simhost.Compare(t, h.Probe(t, o), h.ExpectMIG(gpus, mig, capabilities...))
}

// Exactly the capability nodes of the granted MIG devices open.
func TestT60MIGDevicesAreGivenExactlyAsAskedFor(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := newMIGHost(t, version)
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
			t.Run(tc.name, func(t *testing.T) { expectMIG(t, h, simhost.Visible(tc.value), tc.gpus, tc.mig) })
		}
		t.Run("of the device list", func(t *testing.T) {
			o := testenv.RunOptions{Mounts: []string{"type=bind,src=/dev/null,options=rbind:ro,dst=/var/run/nvidia-container-devices/" + older(1)}}
			expectMIG(t, h, o, nil, []int{1})
		})
	})
}

func TestTheMaskShowsTheCapabilitiesOfGrantedMIGDevicesOnly(t *testing.T) {
	h := newMIGHost(t, 0)
	d := h.Driver
	minor := h.Minors[1]
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
	data, err := os.ReadFile(filepath.Join(d.ProcRoot, "driver/nvidia-caps/mig-minors"))
	if err != nil {
		t.Fatal(err)
	}
	table := "\n" + string(data)
	for _, tc := range []struct {
		name  string
		o     testenv.RunOptions
		files []string
		gpus  []int
	}{
		{"a MIG device", simhost.Visible("1:2"), []string{"gpu%d/mig/gi5/access", "gpu%d/mig/gi5/ci1/access"}, []int{1}},
		{"a whole GPU", simhost.Visible("0"), nil, []int{0}},
		{"the right to configure MIG", testenv.RunOptions{
			Env:   []string{"NVIDIA_VISIBLE_DEVICES=1", "NVIDIA_MIG_CONFIG_DEVICES=all"},
			Extra: []string{"--cap-add", "CAP_SYS_ADMIN"},
		}, []string{
			"gpu%d/mig/gi5/access", "gpu%d/mig/gi5/ci0/access", "gpu%d/mig/gi5/ci1/access", "gpu%d/mig/gi9/access", "gpu%d/mig/gi9/ci0/access", "mig/config",
		}, []int{1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var want, minors []string
			for _, f := range tc.files {
				name := "capabilities/" + strings.ReplaceAll(f, "%d", fmt.Sprint(minor))
				want = append(want, "== ./"+name+"\n"+read(name))
				start := strings.Index(table, "\n"+strings.NewReplacer("capabilities/", "", "mig/", "").Replace(name)+" ")
				line, _, _ := strings.Cut(table[start+1:], "\n")
				minors = append(minors, line+"\n")
			}
			slices.Sort(minors)
			tc.o.Args = []string{"/bin/sh", "-c", "cd " + simhost.Mask + "; ls nvidia/gpus; [ ! -e nvidia-caps ] || LC_ALL=C sort nvidia-caps/mig-minors; cd nvidia; for f in $(find . -path './capabilities/*' -type f | sort); do echo \"== $f\"; cat $f; done"}
			var buses string
			for _, i := range tc.gpus {
				buses += d.GPUs[i].BusID + "\n"
			}
			seen := buses + strings.Join(minors, "") + strings.Join(want, "")
			if got := h.MustRun(t, tc.o); got != seen {
				t.Errorf("got\n%s\nwant\n%s", got, seen)
			}
		})
	}
}

func TestAChangeOfTheMIGLayoutNeedsNoRestart(t *testing.T) {
	h := newMIGHost(t, 0)
	old := h.Driver.MIG[0].UUID
	expectMIG(t, h, simhost.Visible(old), nil, []int{0})
	if err := h.Driver.Reconfigure(t.Context(), []sim.MIGDevice{{GPU: 1, GI: 5, CI: 0}, {GPU: 0, GI: 2, CI: 3}}); err != nil {
		t.Fatal(err)
	}
	h.Refused(t, simhost.Visible(old), "unknown MIG device", h.Driver.MIG[1].UUID)
	expectMIG(t, h, simhost.Visible(h.Driver.MIG[1].UUID), nil, []int{1})
	expectMIG(t, h, simhost.Visible("0:0"), nil, []int{1})
	expectMIG(t, h, simhost.Visible("all"), []int{2}, []int{0, 1})
}

func TestRightsOverMIGNeedMoreThanTheEnvironment(t *testing.T) {
	h := newMIGHost(t, 0)
	const configure, watch = "NVIDIA_MIG_CONFIG_DEVICES=all", "NVIDIA_MIG_MONITOR_DEVICES=all"
	refused := func(name string, o testenv.RunOptions, words ...string) {
		t.Run(name, func(t *testing.T) { h.Refused(t, o, words...) })
	}
	refused("an ordinary container", simhost.Visible("all", configure), "NVIDIA_MIG_CONFIG_DEVICES", "CAP_SYS_ADMIN")
	refused("another value", simhost.Visible("all", "NVIDIA_MIG_MONITOR_DEVICES=0"), `NVIDIA_MIG_MONITOR_DEVICES="0"`)
	admin := func(value string, env ...string) testenv.RunOptions {
		o := simhost.Visible(value, env...)
		o.Extra = []string{"--cap-add", "CAP_SYS_ADMIN"}
		return o
	}
	refused("a MIG device by name", admin("1:0", watch), `"1:0"`)
	refused("a MIG-partitioned GPU by name, without the right", admin("1"), "by MIG", "ask for its MIG devices")
	t.Run("CAP_SYS_ADMIN may configure", func(t *testing.T) {
		expectMIG(t, h, admin("all", configure), []int{0, 1, 2}, []int{0, 1, 2}, 1)
	})
	t.Run("CAP_SYS_ADMIN may watch", func(t *testing.T) {
		expectMIG(t, h, admin("1", watch), []int{1}, []int{0, 1, 2}, 2)
	})
	t.Run("a privileged container may configure", func(t *testing.T) {
		o := simhost.Visible("1", configure)
		o.Privileged = true
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
		o := simhost.Visible("1:0")
		o.Privileged = true
		o.Args = []string{"/bin/sh", "-c", "/test/opendev /dev/nvidia-caps/nvidia-cap1; nvidia-smi -L"}
		out := h.MustRun(t, o)
		if !strings.Contains(out, "/dev/nvidia-caps/nvidia-cap1 ENOENT") || !strings.Contains(out, h.Driver.MIG[0].UUID) || strings.Contains(out, h.Driver.MIG[1].UUID) {
			t.Errorf("got\n%s", out)
		}
	})
}
