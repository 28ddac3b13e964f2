package request

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// noRequest are containers that ask for no GPU.
var noRequest = []struct {
	name        string
	env         []string
	annotations []string
}{
	{"unset", nil, nil},
	{"empty", []string{"NVIDIA_VISIBLE_DEVICES="}, nil},
	{"void", []string{"NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_DRIVER_CAPABILITIES=nonsense"}, nil},
	{"only commas", []string{"NVIDIA_VISIBLE_DEVICES=, ,"}, nil},
	{"capabilities alone", []string{"NVIDIA_DRIVER_CAPABILITIES=all"}, nil},
	{"a pod's sandbox", []string{"NVIDIA_VISIBLE_DEVICES=all"}, []string{"io.kubernetes.cri.container-type=sandbox"}},
}

// A container that asked for no GPU runs as under the stock shim: the same bytes of config.json,
// the same files in its bundle but for the shim's address, the same mounts, nothing in the state
// directory, not a word in the log; and problems with the GPUs of its host do not affect it.
func TestT66AContainerWithoutARequestIsUntouched(t *testing.T) {
	h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 3}})
	for i, state := range []struct {
		name  string
		spoil func(t *testing.T)
	}{
		{"on a good host", func(*testing.T) {}},
		{"with a broken configuration", func(t *testing.T) {
			simhost.Restore(t, h.Driver.ConfigPath)
			simhost.WriteFile(t, h.Driver.ConfigPath, "nonsense = [\n")
		}},
		{"with a configuration that everybody can write", func(t *testing.T) {
			if err := os.Chmod(h.Driver.ConfigPath, 0o666); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.Chmod(h.Driver.ConfigPath, 0o644) })
		}},
		{"without a configuration", func(t *testing.T) { simhost.Away(t, h.Driver.ConfigPath) }},
		{"without a driver", func(t *testing.T) { simhost.Away(t, filepath.Join(h.Driver.ProcRoot, "driver")) }},
		{"without the driver's files and nodes", func(t *testing.T) {
			simhost.Away(t, h.Driver.Root)
			simhost.Away(t, h.Driver.DevRoot)
		}},
	} {
		t.Run(state.name, func(t *testing.T) {
			state.spoil(t)
			// What is wrong with the host is the same for every kind of them.
			requests := noRequest
			if i > 0 {
				requests = noRequest[2:3]
			}
			for _, tc := range requests {
				t.Run(tc.name, func(t *testing.T) {
					before := h.Snapshot(t)
					o := testenv.RunOptions{ID: h.NewID(), Env: tc.env, Annotations: tc.annotations}
					stock := bundleOf(t, h, o, testenv.StockRuntime)
					ours := bundleOf(t, h, o, testenv.DefaultRuntime)
					if !bytes.Equal(stock.config, ours.config) {
						t.Errorf("config.json differs:\nstock %s\nours  %s", stock.config, ours.config)
					}
					// The one file more is the shim's address, by which daemons before 2.3
					// find it again and by which it removes its socket.
					simhost.Same(t, "the bundle's files", append([]string{"address"}, stock.files...), ours.files)
					simhost.Same(t, "mounts", stock.mounts, ours.mounts)
					simhost.Same(t, "/dev", stock.dev, ours.dev)
					for _, level := range []string{"debug", "info", "warning", "error"} {
						if lines := h.LogLines(o.ID, level); len(lines) > 0 {
							t.Errorf("lines in the log: %q", lines)
						}
					}
					if _, err := os.Stat(h.Driver.StateDir); !os.IsNotExist(err) {
						t.Errorf("the state directory was made: %v", err)
					}
					before.AssertUnchanged(t)
				})
			}
		})
	}
}

// bundle is what a running container's bundle shows.
type bundle struct {
	config             []byte
	files, mounts, dev []string
}

// bundleOf runs a container, looks, and removes it.
func bundleOf(t *testing.T, h *simhost.Host, o testenv.RunOptions, runtime string) bundle {
	t.Helper()
	o.Runtime = runtime
	o.Detach, o.Args = true, []string{"/bin/sleep", "600"}
	h.Run(t, o)
	defer h.Remove(t, o.ID)
	var b bundle
	var err error
	if b.config, err = os.ReadFile(filepath.Join(h.BundleDir(o.ID), "config.json")); err != nil {
		t.Fatal(err)
	}
	b.files = simhost.Names(t, h.BundleDir(o.ID))
	out := h.Exec(t, o.ID, "/bin/sh", "-c", "cat /proc/self/mountinfo; echo == dev; ls -lR /dev").Output
	table, dev, _ := strings.Cut(out, "== dev\n")
	mounts, err := mountinfo.GetMountsFromReader(strings.NewReader(table), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		// Without identifiers and the numbers of snapshots.
		if m.FSType == "overlay" {
			m.Source = "overlay"
		}
		b.mounts = append(b.mounts, strings.Join([]string{m.Mountpoint, m.Options, m.FSType, m.Source}, " "))
	}
	for line := range strings.Lines(dev) {
		f := strings.Fields(line)
		if len(f) > 9 && (line[0] == 'c' || line[0] == 'b') {
			f = append(f[:6], f[9:]...) // times, behind two numbers of a device
		} else if len(f) > 8 {
			f = append(f[:5], f[8:]...)
		}
		b.dev = append(b.dev, strings.Join(f, " "))
	}
	return b
}
