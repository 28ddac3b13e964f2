package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

var driverVersion = regexp.MustCompile(`Module\s+(?:for \S+\s+)?([0-9.]+)`)

// realDriver is the host's own driver with the default configuration, except for the
// state directory, so that a shim installed on this host is not disturbed.
func realDriver(work string) (stateDir, config, version string, err error) {
	data, err := os.ReadFile("/proc/driver/nvidia/version")
	if err != nil {
		return "", "", "", err
	}
	m := driverVersion.FindSubmatch(data)
	if m == nil {
		return "", "", "", fmt.Errorf("no version in %q", data)
	}
	stateDir, config = filepath.Join(work, "state"), filepath.Join(work, "config.toml")
	text := fmt.Sprintf("[host]\nstate-dir = %q\n", stateDir)
	return stateDir, config, string(m[1]), os.WriteFile(config, []byte(text), 0o600)
}

// hostImage assembles an image from this host's own programs and C library, with a
// loader's cache, without a compiler.
func hostImage(work string) (string, error) {
	image, err := images.FromHostPrograms(images.Ref("host"), []string{"true", "sleep"}, images.Dir("etc/ld.so.conf.d", 0o755))
	if err != nil {
		return "", err
	}
	layer, err := images.WithCache(filepath.Join(work, "hostimage"), image.Layers[0].Files)
	if err != nil {
		return "", err
	}
	image.Layers = []images.Layer{layer}
	tar := filepath.Join(work, "host.tar")
	return tar, image.Write(tar)
}

// peers are the other ways to give a container a GPU that this host has; notes say
// which it has not.
func peers(h *testenv.Lifetime, image string) (found []Variant, notes []string) {
	if ctk, err := exec.LookPath("nvidia-ctk"); err != nil {
		notes = append(notes, "containerd's CDI was not measured: nvidia-ctk is not installed on this host.")
	} else if err := cdiSpec(h, ctk); err != nil {
		notes = append(notes, "containerd's CDI was not measured: "+err.Error())
	} else {
		found = append(found, Variant{
			Name: "containerd's CDI", image: image, runtime: testenv.StockRuntime, gpus: -1,
			extra: []string{"--device", "nvidia.com/gpu=0"},
		})
	}
	path, err := exec.LookPath("nvidia-container-runtime")
	if err != nil {
		return found, append(notes, "nvidia-container-runtime was not measured: it is not installed on this host.")
	}
	return append(found, Variant{
		Name: "nvidia-container-runtime", image: image, runtime: testenv.StockRuntime, gpus: -1,
		env:   []string{"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"},
		extra: []string{"--runc-binary", path},
	}), notes
}

// cdiSpec makes sure that a CDI specification of the GPUs is there; one that it
// makes is removed at the end.
func cdiSpec(h *testenv.Lifetime, ctk string) error {
	for _, pattern := range []string{"/etc/cdi/*", cdiSpecs + "/*"} {
		names, _ := filepath.Glob(pattern)
		for _, name := range names {
			if data, err := os.ReadFile(name); err == nil && strings.Contains(string(data), "nvidia.com/gpu") {
				return nil
			}
		}
	}
	spec, err := exec.Command(ctk, "cdi", "generate").Output()
	if err != nil {
		return fmt.Errorf("nvidia-ctk cdi generate: %w", err)
	}
	return writeCDI(h, "nvidia-shim-bench.yaml", spec)
}

// cdiSpecs is where generated CDI specifications are.
const cdiSpecs = "/var/run/cdi"

// writeCDI puts a CDI specification there, for as long as the run takes.
func writeCDI(h *testenv.Lifetime, name string, spec []byte) error {
	if _, err := os.Stat(cdiSpecs); os.IsNotExist(err) {
		if err := os.MkdirAll(cdiSpecs, 0o755); err != nil {
			return err
		}
		h.Cleanup(func() { os.Remove(cdiSpecs) })
	}
	name = filepath.Join(cdiSpecs, name)
	h.Cleanup(func() { os.Remove(name) })
	return os.WriteFile(name, spec, 0o644)
}
