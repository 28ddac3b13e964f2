package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

func TestCDISpecificationOfTheHost(t *testing.T) {
	d := simulate(t)
	if err := d.Reconfigure(t.Context(), []sim.MIGDevice{{GPU: 1, GI: 9, CI: 0}}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "cdi", "nvidia.yaml")
	refresh := []string{"--config", d.ConfigPath, "cdi", "--output", file, "--refresh"}
	fine(t, refresh...)
	if _, err := os.Stat(file); err == nil {
		t.Error("--refresh made a file that was not there")
	}
	fine(t, refresh[:5]...)
	text, err := os.ReadFile(file)
	if err != nil || string(text) != fine(t, "--config", d.ConfigPath, "cdi") {
		t.Errorf("%s, %v", text, err)
	}
	// The CDI project's own reader accepts it.
	cache, err := cdi.NewCache(cdi.WithSpecDirs(filepath.Dir(file)), cdi.WithAutoRefresh(false))
	if err != nil || len(cache.GetErrors()) > 0 {
		t.Fatal(err, cache.GetErrors())
	}
	nodes := map[string][]string{ // of a device, on the host, without the common ones
		"0": {"nvidia" + minor(d, 0)}, d.GPUs[0].UUID: {"nvidia" + minor(d, 0)}, "2": {"nvidia" + minor(d, 2)}, d.GPUs[2].UUID: {"nvidia" + minor(d, 2)},
	}
	var spec specs.Spec
	decode(t, fine(t, "--config", d.ConfigPath, "--json", "cdi"), &spec)
	got := map[string][]string{}
	for _, dev := range spec.Devices {
		for _, n := range dev.ContainerEdits.DeviceNodes {
			if !strings.HasPrefix(n.HostPath, d.DevRoot+"/dev/") || n.Permissions != "rw" {
				t.Errorf("%+v", n)
			}
			got[dev.Name] = append(got[dev.Name], filepath.Base(n.Path))
		}
	}
	for name, want := range nodes {
		if !slices.Equal(got[name], want) {
			t.Errorf("device %s has %q, want %q", name, got[name], want)
		}
	}
	uuid := d.MIG[0].UUID
	if mig := got["1:0"]; len(mig) != 3 || mig[0] != "nvidia"+minor(d, 1) || !slices.Equal(mig, got[uuid]) || len(got["all"]) != 5 || len(got) != 7 {
		t.Errorf("%q", got)
	}
	for _, n := range spec.ContainerEdits.DeviceNodes {
		if !slices.Contains([]string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}, n.Path) {
			t.Errorf("every device has %s", n.Path)
		}
	}
	var places []string
	for _, m := range spec.ContainerEdits.Mounts {
		if info, err := os.Lstat(m.HostPath); err != nil || !info.Mode().IsRegular() || strings.HasPrefix(m.HostPath, d.StateDir) {
			t.Errorf("%+v: %v", m, err)
		}
		places = append(places, m.ContainerPath)
	}
	for _, p := range []string{"/usr/lib64/libcuda.so.1", "/usr/bin/nvidia-smi", "/usr/lib64/libnvidia-ml.so.1"} {
		if !slices.Contains(places, p) {
			t.Errorf("no %s in %q", p, places)
		}
	}
	if len(spec.ContainerEdits.Hooks) > 0 {
		t.Error("a runtime would execute something")
	}
}

func minor(d *sim.Driver, gpu int) string { return string(rune('0' + d.GPUs[gpu].Minor)) }

func TestCDIFileOfAnotherProgramStays(t *testing.T) {
	d := simulate(t)
	dir := t.TempDir()
	theirs, link := filepath.Join(dir, "nvidia.yaml"), filepath.Join(dir, "link.yaml")
	if err := os.WriteFile(theirs, []byte("cdiVersion: 0.5.0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(theirs, link); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{theirs}, {theirs, "--refresh"}, {link}} {
		code, _, errs := ctl(t, append([]string{"--config", d.ConfigPath, "cdi", "--output"}, args...)...)
		if text, _ := os.ReadFile(theirs); code != 1 || string(text) != "cdiVersion: 0.5.0\n" {
			t.Errorf("%q: status %d, %s, %s", args, code, errs, text)
		}
	}
	if code, _, _ := ctl(t, "cdi", "--refresh"); code != 2 {
		t.Errorf("--refresh without a file: status %d", code)
	}
}
