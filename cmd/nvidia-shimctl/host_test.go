package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/check"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hostinfo"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/status"
)

// contains fails the test for each text that is not in out.
func contains(t *testing.T, out string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(out, text) {
			t.Errorf("no %q in\n%s", text, out)
		}
	}
}

func TestInfoShowsTheHost(t *testing.T) {
	d := simulate(t)
	if err := d.Reconfigure(t.Context(), []sim.MIGDevice{{GPU: 1, GI: 9, CI: 0}}); err != nil {
		t.Fatal(err)
	}
	out := fine(t, "--config", d.ConfigPath, "--json", "info")
	var info hostinfo.Info
	decode(t, out, &info)
	if info.DriverVersion != d.Version || info.CUDAVersion != "13.0" || info.NVMLError != "" || info.Roots["driver"] != d.Root || len(info.GPUs) != 3 {
		t.Errorf("%s", out)
	}
	if g := info.GPUs[2]; g.UUID != d.GPUs[2].UUID || g.NVML == nil || g.NVML.Brand != "nvidia" || g.NVML.Arch != "9.0" || g.NVML.MIG {
		t.Errorf("GPU 2 of %s", out)
	}
	older := "MIG-" + d.GPUs[1].UUID + "/9/0"
	mig := gpuinject.PlanMIG{GPU: 1, GI: 9, CI: 0, Name: older, UUID: d.MIG[0].UUID, Profile: info.GPUs[1].NVML.Instances[0].Name}
	if !slices.Equal(info.MIG, []gpuinject.PlanMIG{mig}) || len(info.GPUs[1].NVML.Instances) != 1 {
		t.Errorf("MIG devices of %s", out)
	}
	file := func(f string) bool { return filepath.Base(f) == "libcuda.so."+d.Version }
	if !slices.ContainsFunc(info.Files["compute"], file) {
		t.Errorf("files of compute: %v", info.Files["compute"])
	}

	out = fine(t, "--config", d.ConfigPath, "info")
	contains(t, out, "Driver "+d.Version+", CUDA 13.0\n", d.GPUs[2].UUID, d.GPUs[2].BusID, d.MIG[0].UUID)
	if strings.Contains(out, "libcuda") {
		t.Errorf("files without --files:\n%s", out)
	}
	for line := range strings.Lines(out) {
		if len(line) > 80 {
			t.Errorf("a line of more than 79 columns: %q", line)
		}
	}
	contains(t, fine(t, "--config", d.ConfigPath, "info", "--files"), "libcuda.so."+d.Version, "searched:")
	contains(t, fine(t, "--config", d.ConfigPath, "plan", "--env", "NVIDIA_VISIBLE_DEVICES="+older), "GPU instance 9, compute instance 0 of GPU 1", "gi9/ci0/access")

	if err := os.RemoveAll(filepath.Join(d.ProcRoot, "driver")); err != nil {
		t.Fatal(err)
	}
	code, out, errs := ctl(t, "--config", d.ConfigPath, "info")
	if code != 1 || out != "" || !strings.Contains(errs, "no NVIDIA driver is loaded") || strings.Count(errs, "\n") != 1 {
		t.Errorf("without a driver: status %d, stdout %q, stderr %q", code, out, errs)
	}
}

// What containers do not get of the driver is in info and check.
func TestWhatTheDriverLacksIsShown(t *testing.T) {
	d := simulate(t)
	cuda, err := filepath.Glob(d.Root + "/usr/lib/*-linux-gnu/libcuda.so." + d.Version)
	if err != nil || len(cuda) == 0 {
		t.Fatal("no libcuda", err)
	}
	data, err := os.ReadFile(cuda[0])
	if err == nil {
		err = os.WriteFile(filepath.Join(filepath.Dir(cuda[0]), "libGL.so."+d.Version), data, 0o755)
	}
	if err == nil {
		err = os.Remove(d.Root + "/usr/bin/nvidia-smi")
	}
	if err != nil {
		t.Fatal(err)
	}
	contains(t, fine(t, "--config", d.ConfigPath, "info"), "missing: utility: nvidia-smi\n", "libGL.so."+d.Version+": containers never get it")
	_, out, _ := ctl(t, "--config", d.ConfigPath, "check")
	contains(t, out, "libGL.so."+d.Version+": containers never get it", "containers with the capability utility get no nvidia-smi")
}

// Hosts without the kernel module of PCI GPUs.
func TestOtherPlatforms(t *testing.T) {
	for _, tt := range []struct {
		name, driver, device string
		become               func(t *testing.T, d *sim.Driver) error
	}{
		{"WSL2", "of Windows, by WSL2 (experimental)", "/dev/dxg", func(t *testing.T, d *sim.Driver) error { return d.BecomeWSL(t.Context()) }},
		{"Tegra", "of a Tegra, by its lists of files (experimental)", "/dev/nvmap", func(t *testing.T, d *sim.Driver) error { return d.BecomeTegra(t.Context()) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := simulate(t)
			if err := tt.become(t, d); err != nil {
				t.Fatal(err)
			}
			contains(t, fine(t, "--config", d.ConfigPath, "info", "--files"), "Driver "+tt.driver, "libcuda.so.1.1")
			contains(t, fine(t, "--config", d.ConfigPath, "plan", "--env", "NVIDIA_VISIBLE_DEVICES=all"), tt.driver, tt.device+" (")
			code, _, errs := ctl(t, "--config", d.ConfigPath, "cdi")
			contains(t, errs, "use NVIDIA_VISIBLE_DEVICES")
			if code != 1 {
				t.Errorf("cdi: status %d", code)
			}
			_, out, _ := ctl(t, "--config", d.ConfigPath, "check")
			contains(t, out, "ok       driver: ", "ok       nodes: ", "ok       libraries: ")
		})
	}
}

func TestCheckCommand(t *testing.T) {
	d := simulate(t)
	empty := filepath.Join(t.TempDir(), "none.toml")
	code, out, errs := ctl(t, "--config", d.ConfigPath, "--json", "check", "--containerd-config", empty, "--containerd", "/nonexistent/containerd")
	var got struct {
		OK       bool
		Findings []check.Finding
	}
	decode(t, out, &got)
	if code != 1 || got.OK || len(got.Findings) < 12 || errs != "" {
		t.Errorf("status %d, %+v, %s", code, got, errs)
	}
	code, out, _ = ctl(t, "--config", d.ConfigPath, "check", "--containerd-config", empty)
	contains(t, out, "ok       driver: ", "ok       nodes: ", "ok       libraries: ", "problem  handler: no runtime handler in "+empty, "\n         fix: nvidia-shimctl install, then")
	last := fmt.Sprintf("\nproblems: %d, warnings: %d, ok: %d\n", strings.Count("\n"+out, "\nproblem "), strings.Count("\n"+out, "\nwarning "), strings.Count("\n"+out, "\nok "))
	if code != 1 || !strings.HasSuffix(out, last) {
		t.Errorf("status %d, and not %q at the end of\n%s", code, last, out)
	}
}

// record writes a container's record below a state directory.
func record(t *testing.T, d *sim.Driver) (state string) {
	t.Helper()
	state = t.TempDir()
	write(t, filepath.Join(state, "io.containerd.runtime.v2.task/default/of-gpu-1", gpuinject.RecordName),
		`{"gpu": true, "container": {"id": "of-gpu-1", "namespace": "default"}, "gpus": [{"uuid": "`+d.GPUs[1].UUID+`", "pci": "`+d.GPUs[1].BusID+`"}]}`)
	return state
}

func TestAHungDriverHidesNeitherGPUsNorContainers(t *testing.T) {
	defer func(d time.Duration) { nvmlTimeout = d }(nvmlTimeout)
	nvmlTimeout = 300 * time.Millisecond
	d := simulate(t)
	if err := d.Hang(true); err != nil {
		t.Fatal(err)
	}
	state := record(t, d)
	for _, tc := range []struct {
		args []string
		want []string
	}{
		{[]string{"status", "--state", state}, []string{"NVML: NVML has not answered within 300ms", "of-gpu-1", d.GPUs[1].Name}},
		{[]string{"status", "--root", filepath.Dir(state), "--state", "/" + filepath.Base(state)}, []string{"of-gpu-1"}},
		{[]string{"--json", "status", "--state", state}, []string{`"nvml_error": "NVML has not answered within 300ms`, `"of-gpu-1"`}},
		{[]string{"info"}, []string{"NVML: NVML has not answered within 300ms", d.GPUs[1].UUID}},
	} {
		contains(t, fine(t, append([]string{"--config", d.ConfigPath}, tc.args...)...), tc.want...)
	}
}

// twice is a buffer that ends a command when it contains text twice.
type twice struct {
	bytes.Buffer
	text string
	end  func()
}

func (b *twice) Write(p []byte) (int, error) {
	n, err := b.Buffer.Write(p)
	if strings.Count(b.String(), b.text) == 2 {
		b.end()
	}
	return n, err
}

func TestStatusIsRepeated(t *testing.T) {
	d := simulate(t)
	watch := func(text string, args ...string) string {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		out, errs := &twice{text: text, end: cancel}, &bytes.Buffer{}
		args = append([]string{"nvidia-shimctl", "--config", d.ConfigPath}, args...)
		if code := run(ctx, append(args, "status", "--watch", "--interval=100ms", "--state="+t.TempDir()), out, errs); code != 0 {
			t.Errorf("status %d, %s", code, errs)
		}
		return out.String()
	}
	lines := strings.Split(strings.TrimSpace(watch("\n", "--json")), "\n")
	if len(lines) != 2 {
		t.Errorf("%d lines of JSON", len(lines))
	}
	for _, l := range lines {
		var s status.Status
		decode(t, l, &s)
		if len(s.GPUs) != 3 || s.GPUs[1].Memory == nil || s.CUDAVersion != "13.0" || s.Time.IsZero() {
			t.Errorf("%s", l)
		}
	}
	for _, command := range []string{"status", "suspend"} {
		args := []string{"--config", d.ConfigPath, command, "--state", "/nope"}
		if command == "suspend" {
			args = append(args, "container")
		}
		if code, out, errs := ctl(t, args...); code != 1 || out != "" || !strings.Contains(errs, "--state: open /nope") {
			t.Errorf("%s: a state directory that does not exist: status %d, %s%s", command, code, out, errs)
		}
	}
	if out := watch("Driver " + d.Version); strings.Count(out, "HELD BY") != 2 || strings.Contains(out, "\x1b") {
		t.Errorf("in a pipe:\n%q", out)
	}
}

// Programs rely on the fields of status and info.
func TestEveryFieldIsDocumented(t *testing.T) {
	data, err := os.ReadFile("../../docs/shimctl.md")
	if err != nil {
		t.Fatal(err)
	}
	var walk func(typ reflect.Type)
	walk = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || typ.PkgPath() == "time" {
			return
		}
		for _, f := range reflect.VisibleFields(typ) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name != "" && name != "-" && !strings.Contains(string(data), "`"+name+"`") {
				t.Errorf("docs/shimctl.md does not name the field %q of %s", name, typ)
			}
			if f.IsExported() {
				walk(f.Type)
			}
		}
	}
	walk(reflect.TypeFor[status.Status]())
	walk(reflect.TypeFor[hostinfo.Info]())
}

// Without the driver's libraries or a GPU that works, no container can use the driver.
func TestInfoFailsIfTheDriverIsUnusable(t *testing.T) {
	for what, spoil := range map[string]func(d *sim.Driver) error{
		"libcuda.so." + sim.DefaultVersion + " was not found": func(d *sim.Driver) error {
			return os.Remove(filepath.Join(d.Root, d.Layout.LibDir(), "libcuda.so."+d.Version))
		},
		"no GPU can be used": func(d *sim.Driver) error {
			names, err := filepath.Glob(d.ProcRoot + "/driver/nvidia/gpus/*/information")
			for _, name := range names {
				err = errors.Join(err, os.Remove(name))
			}
			return err
		},
	} {
		d := sim.New(t, sim.Options{GPUs: 2})
		fine(t, "--config", d.ConfigPath, "info")
		testtree.Check(t, spoil(d))
		status, out, _ := ctl(t, "--config", d.ConfigPath, "info")
		if status != 1 || !strings.Contains(out, "unusable: ") || !strings.Contains(strings.Join(strings.Fields(out), " "), what) {
			t.Errorf("%s: %d\n%s", what, status, out)
		}
		if status, out, _ := ctl(t, "--config", d.ConfigPath, "--json", "info"); status != 1 || !strings.Contains(out, `"unusable": "`) {
			t.Errorf("%s: %d\n%s", what, status, out)
		}
	}
}
