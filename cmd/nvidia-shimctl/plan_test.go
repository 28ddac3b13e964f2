package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

func TestAPlanSaysWhatTheContainerWouldGet(t *testing.T) {
	d := simulate(t)
	out := fine(t, "--config", d.ConfigPath, "--json", "plan", "--env", "NVIDIA_VISIBLE_DEVICES=2,0")
	var plan gpuinject.Plan
	decode(t, out, &plan)
	want := []gpuinject.PlanGPU{
		{Index: 0, Minor: d.GPUs[0].Minor, UUID: d.GPUs[0].UUID, PCI: d.GPUs[0].BusID},
		{Index: 2, Minor: d.GPUs[2].Minor, UUID: d.GPUs[2].UUID, PCI: d.GPUs[2].BusID},
	}
	if !plan.GPU || !slices.Equal(plan.GPUs, want) || !slices.Equal(plan.Capabilities, []string{"compute", "utility"}) || plan.DriverVersion != d.Version {
		t.Errorf("plan %+v", plan)
	}
	if len(plan.Devices) != 5 || !slices.Contains(plan.Libraries, "libcuda.so."+d.Version) || !slices.Contains(plan.Binaries, "nvidia-smi") || !plan.Proc.Masked {
		t.Errorf("plan %+v", plan)
	}
	if len(plan.Mounts) == 0 || plan.Mounts[0].Destination != view.Dir {
		t.Errorf("mounts %+v", plan.Mounts)
	}
	// Programs rely on these keys.
	var keys map[string]json.RawMessage
	decode(t, out, &keys)
	for _, key := range []string{"gpu", "reason", "gpus", "mig", "capabilities", "devices", "libraries", "binaries", "mounts", "links", "proc", "linker", "removed_hooks"} {
		if v, ok := keys[key]; !ok || string(v) == "null" {
			t.Errorf("key %q is %s", key, v)
		}
	}

	out = fine(t, "--config", d.ConfigPath, "plan", "-e", "NVIDIA_VISIBLE_DEVICES=2", "--privileged")
	contains(t, out, d.GPUs[2].UUID, "not masked",
		"because:      container: asks for the driver: NVIDIA_VISIBLE_DEVICES=\"2\"\n",
		"\n              GPU 0: not given: not asked for\n",
		"\n              GPU 2: given: asked for as \"2\"\n")
	if strings.Contains(out, d.GPUs[0].UUID) {
		t.Errorf("output:\n%s", out)
	}
}

// Nothing is said about the image if none is named.
func TestThePlanWithoutAnImageSaysNothingAboutIt(t *testing.T) {
	d := simulate(t)
	plan := []string{"--config", d.ConfigPath, "plan", "-e", "NVIDIA_VISIBLE_DEVICES=0"}
	const note = "the image has no C library"
	if out := fine(t, plan...); strings.Contains(out, note) {
		t.Errorf("without an image:\n%s", out)
	}
	contains(t, fine(t, append(plan, "--rootfs", t.TempDir())...), note)
}

// Programs that read JSON need no case for a list that is missing.
func TestInfoHasNoNullAndLowerCaseKeys(t *testing.T) {
	d := simulate(t)
	if out := fine(t, "--config", d.ConfigPath, "--json", "info"); strings.Contains(out, "null") {
		t.Errorf("%s", out)
	}
	text, err := json.Marshal(driver.Refused{Path: "/a", Reason: "b"})
	if want := `{"path":"/a","reason":"b"}`; err != nil || string(text) != want {
		t.Errorf("%s, %v", text, err)
	}
}

func TestAContainerThatDoesNotAskIsLeftAloneAndThatIsFine(t *testing.T) {
	// There is no driver and the configuration is broken: neither matters.
	name := testtree.NewRoot(t).Write("config.toml", "broken")
	for _, tc := range []struct {
		args []string
		why  string
	}{
		{[]string{"plan"}, "NVIDIA_VISIBLE_DEVICES is not set"},
		{[]string{"plan", "--env", "NVIDIA_VISIBLE_DEVICES=void"}, `NVIDIA_VISIBLE_DEVICES="void"`},
		{[]string{"plan", "--env", "NVIDIA_VISIBLE_DEVICES="}, "NVIDIA_VISIBLE_DEVICES is empty"},
		{[]string{"plan", "--env", "PATH=/bin", "--privileged"}, "NVIDIA_VISIBLE_DEVICES is not set"},
		{[]string{"plan", "--env", "NVIDIA_VISIBLE_DEVICES=all", "--annotation", "io.kubernetes.cri.container-type=sandbox"}, "the sandbox container of a pod"},
	} {
		var plan gpuinject.Plan
		decode(t, fine(t, append([]string{"--config", name, "--json"}, tc.args...)...), &plan)
		if plan.GPU || plan.Error != "" || !strings.HasPrefix(plan.Reason, "the container does not ask for the driver: the shim leaves it alone: "+tc.why) {
			t.Errorf("%v: plan %+v", tc.args, plan)
		}
	}
}

func TestWhatIsRefusedEndsWithStatusOneAndSaysWhy(t *testing.T) {
	d := simulate(t)
	text, err := os.ReadFile(d.ConfigPath)
	testtree.Check(t, err)
	refusing := testtree.NewRoot(t).Write("config.toml", string(text)+"[policy]\naccept-env-when-unprivileged = false\n")
	for _, tc := range []struct {
		name   string
		config string
		args   []string
		says   string
	}{
		{"an unknown GPU", d.ConfigPath, []string{"--env", "NVIDIA_VISIBLE_DEVICES=7"}, d.GPUs[2].UUID},
		{"an unknown capability", d.ConfigPath, []string{"--env", "NVIDIA_VISIBLE_DEVICES=0", "--env", "NVIDIA_DRIVER_CAPABILITIES=compute,magic"}, "magic"},
		{"a volume over the driver", d.ConfigPath, []string{"--env", "NVIDIA_VISIBLE_DEVICES=0", "--mount", "/srv:/usr/local", "--mount", "/srv:/opt"}, "/usr/local"},
		{"by policy", refusing, []string{"--env", "NVIDIA_VISIBLE_DEVICES=0"}, "accept-env-when-unprivileged"},
		{"a configuration that is missing", filepath.Join(d.Dir, "none.toml"), []string{"--env", "NVIDIA_VISIBLE_DEVICES=0"}, "none.toml"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, out, errs := ctl(t, append([]string{"--config", tc.config, "--json", "plan"}, tc.args...)...)
			var plan gpuinject.Plan
			decode(t, out, &plan)
			if status != 1 || errs != "" || plan.GPU || !strings.Contains(plan.Error, tc.says) {
				t.Errorf("status %d, stderr %q, plan %+v", status, errs, plan)
			}
			status, out, _ = ctl(t, append([]string{"--config", tc.config, "plan"}, tc.args...)...)
			if status != 1 || !strings.HasPrefix(out, "refused: ") {
				t.Errorf("status %d, output %q", status, out)
			}
			// The refusal is one line; what was decided before it follows.
			_, rest, _ := strings.Cut(out, "\n")
			if (rest != "") != (len(plan.Decisions) > 0) || rest != "" && !strings.HasPrefix(rest, "before:       container: asks for the driver: ") {
				t.Errorf("decisions %+v, output %q", plan.Decisions, rest)
			}
		})
	}
}

func TestABundleIsReadAsTheShimReadsIt(t *testing.T) {
	d := simulate(t)
	dir := t.TempDir()
	spec := fmt.Sprintf(`{"root": {"path": "rootfs"}, "process": {"env": ["NVIDIA_VISIBLE_DEVICES=%s"]},
		"mounts": [{"destination": "/proc", "type": "proc"}], "linux": {"namespaces": [{"type": "mount"}]}}`, d.GPUs[1].UUID)
	write(t, filepath.Join(dir, "config.json"), spec)
	write(t, filepath.Join(dir, "rootfs/x"), "")
	var plan gpuinject.Plan
	decode(t, fine(t, "--config", d.ConfigPath, "--json", "plan", "--bundle", dir), &plan)
	if len(plan.GPUs) != 1 || plan.GPUs[0].UUID != d.GPUs[1].UUID {
		t.Errorf("plan %+v", plan)
	}
	if after, _ := os.ReadFile(filepath.Join(dir, "config.json")); string(after) != spec {
		t.Errorf("config.json became %s", after)
	}
	// A mistyped name must not look like a container that asks for nothing.
	status, out, errs := ctl(t, "--config", d.ConfigPath, "plan", "--bundle", dir+"x")
	if status != 1 || !strings.Contains(errs, dir+"x") {
		t.Errorf("no such bundle: status %d, stdout %q, stderr %q", status, out, errs)
	}
}

// The shim removes these hooks, or refuses the container.
func TestAPlanForAContainerWithNVIDIAsHooksAlone(t *testing.T) {
	d := simulate(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "config.json"), `{"root": {"path": "rootfs"}, "process": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
		"hooks": {"prestart": [{"path": "/usr/bin/nvidia-container-runtime-hook"}]}, "linux": {"namespaces": [{"type": "mount"}]}}`)
	write(t, filepath.Join(dir, "rootfs/x"), "")
	var plan gpuinject.Plan
	decode(t, fine(t, "--config", d.ConfigPath, "--json", "plan", "--bundle", dir), &plan)
	if plan.GPU || !slices.Equal(plan.RemovedHooks, []string{"/usr/bin/nvidia-container-runtime-hook"}) {
		t.Errorf("plan %+v", plan)
	}
	contains(t, fine(t, "--config", d.ConfigPath, "plan", "--bundle", dir), "no GPU: NVIDIA_VISIBLE_DEVICES=\"void\"",
		"container: does not ask for the driver", "nvidia-container-runtime-hook\": removed")
	text, err := os.ReadFile(d.ConfigPath)
	testtree.Check(t, err)
	refusing := testtree.NewRoot(t).Write("config.toml", string(text)+"[policy]\nforeign-hooks = \"refuse\"\n")
	status, out, _ := ctl(t, "--config", refusing, "plan", "--bundle", dir)
	if status != 1 || !strings.HasPrefix(out, "refused: ") {
		t.Errorf("status %d, output %q", status, out)
	}
}

// U12: a read-only command keeps nothing under the state directory, and does not create it.
func TestACommandThatShowsWritesNothing(t *testing.T) {
	d := simulate(t)
	testtree.Check(t, d.Reconfigure(t.Context(), []sim.MIGDevice{{GPU: 1, GI: 9, CI: 0}}))
	mig := "NVIDIA_VISIBLE_DEVICES=" + d.MIG[0].UUID
	dir := t.TempDir()
	write(t, filepath.Join(dir, "config.json"), `{"root": {"path": "rootfs"}, "process": {"env": ["`+mig+`"]},
		"mounts": [{"destination": "/proc", "type": "proc"}], "linux": {"namespaces": [{"type": "mount"}]}}`)
	write(t, filepath.Join(dir, "rootfs/x"), "")
	for _, args := range [][]string{
		{"plan", "-e", mig, "-e", "NVIDIA_REQUIRE_ARCH=arch>=8.0"}, {"plan", "-e", mig, "--rootfs", t.TempDir()}, {"plan", "--bundle", dir},
		{"run-args", "--for", "ctr"}, {"cdi"}, {"info"}, {"probe"},
	} {
		before := tree(t, dir)
		if code, _, errs := ctl(t, append([]string{"--config", d.ConfigPath}, args...)...); code != 0 {
			t.Errorf("%v: %s", args, errs)
		}
		if _, err := os.Lstat(d.StateDir); !errors.Is(err, fs.ErrNotExist) || !slices.Equal(tree(t, dir), before) {
			t.Errorf("%v wrote %v", args, tree(t, d.StateDir))
			testtree.Check(t, os.RemoveAll(d.StateDir))
		}
	}
	// If the shim has created the directory, only NVML's lock is taken in it.
	testtree.Check(t, os.Mkdir(d.StateDir, 0o700))
	fine(t, "--config", d.ConfigPath, "plan", "-e", mig)
	ctl(t, "--config", d.ConfigPath, "check") // the host may have a containerd of other tests
	if got := tree(t, d.StateDir); slices.ContainsFunc(got, func(n string) bool { return strings.Contains(n, ".json") }) {
		t.Errorf("in a directory of the shim it wrote %v", got)
	}
}

func tree(t *testing.T, dir string) (names []string) {
	t.Helper()
	testtree.Check(t, filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		names = append(names, name)
		return err
	}))
	return names
}
