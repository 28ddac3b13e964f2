package cdi

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

// What nvidia-ctk 1.18, 1.19 and 1.20 wrote in each mode for this host (gpuinject/testdata/nvidia-ctk),
// applied by containerd to an image that asks for every GPU: its GPUs and management's are taken over
// and no hook runs; for what else it describes, the container is left alone.
func TestWhatEveryVersionOfNVIDIACTKWrites(t *testing.T) {
	h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 4, Others: sim.Others{IMEX: 3, GDS: true, MOFED: true, GDRCopy: true, NVSwitch: true}}})
	d := h.Driver
	ran := filepath.Join(t.TempDir(), "ran")
	hook := simhost.Script(t, filepath.Join(t.TempDir(), "nvidia-cdi-hook"), "echo \"$@\" >>"+ran+"\n")
	filledIn := strings.NewReplacer("DEVROOT", d.DevRoot, "ROOT", d.Root, "VERSION", d.Version, "TRIPLE", filepath.Base(simhost.Multiarch), "/usr/bin/nvidia-cdi-hook", hook)
	node := func(i int) string { return fmt.Sprintf("/dev/nvidia%d\n", d.GPUs[i].Minor) }
	const alone = ""
	modes := map[string]struct{ class, device, want string }{
		"nvml":         {"gpu", "1", node(1) + "taken over\n"},
		"management":   {"management", "all", "/dev/nvidia0\n/dev/nvidia1\n/dev/nvidia2\n/dev/nvidia3\ntaken over\n"},
		"gds":          {"gds", "all", alone},
		"gdrcopy":      {"gdrcopy", "all", alone},
		"mofed":        {"mofed", "all", alone},
		"nvswitch":     {"nvswitch", "all", alone},
		"imex-channel": {"imex-channel", "all", alone},
	}
	files, err := filepath.Glob("../../gpuinject/testdata/nvidia-ctk/*.yaml")
	testtree.Check(t, err)
	tried := 0
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		_, mode, _ := strings.Cut(name, "-")
		m, ok := modes[mode]
		if !ok { // csv is for a Tegra, which gpuinject's test has
			continue
		}
		tried++
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(file)
			testtree.Check(t, err)
			placeSpec(t, []byte(strings.Replace(filledIn.Replace(string(text)), "nvidia.com/"+m.class, kind, 1)))
			out := h.MustRun(t, testenv.RunOptions{
				ID:  "ctk-" + strings.ReplaceAll(name, ".", "-"),
				Env: []string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"}, Extra: []string{"--device", kind + "=" + m.device},
				Args: []string{"/bin/sh", "-c", "ls /dev/nvidia[0-9] 2>/dev/null; test -e /usr/local/nvidia/bin/nvidia-smi && echo taken over; true"},
			})
			if out != m.want {
				t.Errorf("%q, want %q", out, m.want)
			}
		})
	}
	if tried < 18 {
		t.Errorf("only %d files", tried)
	}
	t.Run("as NVIDIA's DRA driver names it", func(t *testing.T) {
		text, err := os.ReadFile("../../gpuinject/testdata/nvidia-ctk/1.20.2-nvml.yaml")
		testtree.Check(t, err)
		claim := fmt.Sprintf("k8s.gpu.nvidia.com/claim-%d", os.Getpid())
		spec := strings.Replace(filledIn.Replace(string(text)), "nvidia.com/gpu", claim, 1)
		placeSpec(t, []byte(strings.Replace(spec, "name: \"1\"", "name: 6d2b3a0e-gpu-1", 1)))
		out := h.MustRun(t, testenv.RunOptions{
			Env: []string{"NVIDIA_VISIBLE_DEVICES=all"}, Extra: []string{"--device", claim + "=6d2b3a0e-gpu-1"},
			Args: []string{"/bin/sh", "-c", "ls /dev/nvidia[0-9]; test -e /usr/local/nvidia/bin/nvidia-smi && echo taken over"},
		})
		if want := node(1) + "taken over\n"; out != want {
			t.Errorf("%q, want %q", out, want)
		}
	})
	if data, err := os.ReadFile(ran); err == nil {
		t.Errorf("NVIDIA's hooks ran: %s", data)
	}
}
