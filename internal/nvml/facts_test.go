//go:build cgo

package nvml

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// envTask makes the test binary do a task in a separate process, as nvidia-shimctl asks NVML: the
// thread cannot get back what isolate takes away. It is "facts", "cuda", "live", "shared",
// "calls" or one of suspend_test.go, all but "calls" with ":" and a configuration.
const envTask = "NVML_TEST_TASK"

// envCgroups are the cgroups that Live is asked about.
const envCgroups = "NVML_TEST_CGROUPS"

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		os.Stderr.WriteString("nvml: the tests make device nodes and mount them: run them as root\n")
		os.Exit(1)
	}
	task, ok := os.LookupEnv(envTask)
	if !ok {
		os.Exit(m.Run())
	}
	if err := do(task); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func do(task string) error {
	what, name, _ := strings.Cut(task, ":")
	if what == "calls" {
		return tryCalls()
	}
	if what == "shared" {
		return askShared(name)
	}
	switch what {
	case "confine":
		return confineAnd(name, "move")
	case "confine-measure":
		return confineAnd(name, "measure")
	case "measure":
		return measure(name)
	case "confine-memory":
		return confineAnd(name, "memory")
	case "memory":
		return answerMemory(name)
	case "confine-memory-try":
		return confineAnd(name, "memory-try")
	case "memory-try":
		return tryMemory()
	case "confine-try":
		return confineAnd(name, "try")
	case "shared-try":
		runtime.LockOSThread()
		return tryShared(name)
	case "try":
		return try(name)
	case "move":
		return move(name)
	case "reuse":
		return reuse(name)
	}
	cfg, err := config.Load(name)
	if err != nil {
		return err
	}
	var v any
	switch what {
	case "facts":
		v, err = Facts(cfg.Host)
	case "cuda":
		v, err = cudaFacts(cfg.Host)
	case "watch", "use":
		answers := json.NewEncoder(os.Stdout)
		return Watch(cfg.Host, watchInterval, what == "use", func(o probe.Observation) error { return answers.Encode(o) })
	default:
		v, err = Live(cfg.Host, filepath.SplitList(os.Getenv(envCgroups)))
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(v)
}

var check = testtree.Check

// askFor asks the simulated driver's NVML for facts or live, with an environment that names no
// other.
func askFor[T any](t *testing.T, d *sim.Driver, what string, cgroups ...string) (answer T, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{envTask + "=" + what + ":" + d.ConfigPath, envCgroups + "=" + strings.Join(cgroups, ":")}
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return answer, errors.New(strings.TrimSpace(errs.String()))
	}
	return answer, json.Unmarshal(out.Bytes(), &answer)
}

// wantFacts are the facts of a simulated driver.
func wantFacts(d *sim.Driver, cuda string) device.Facts {
	want := device.Facts{Driver: d.Version, CUDA: cuda, GPUs: []device.GPUFacts{}}
	for _, g := range d.GPUs {
		if g.Excluded {
			continue
		}
		f := device.GPUFacts{
			Index: len(want.GPUs), Minor: g.Minor, UUID: g.UUID, BusID: g.BusID, Name: g.Name, Brand: g.Brand, Arch: g.Arch,
			Instances: []device.InstanceFacts{},
		}
		for _, m := range d.MIG {
			if m.GPU == g.Index {
				f.MIG = true
				f.Instances = append(f.Instances, device.InstanceFacts{Index: len(f.Instances), UUID: m.UUID, GI: m.GI, CI: m.CI, Name: "1g.18gb"})
			}
		}
		want.GPUs = append(want.GPUs, f)
	}
	return want
}

// libcuda knows the versions and the architectures that NVML knows.
func TestFactsOfLibcuda(t *testing.T) {
	d := sim.New(t, sim.Options{GPUs: 2})
	got, err := askFor[device.Facts](t, d, "cuda")
	check(t, err)
	want := device.Facts{CUDAOnly: true, CUDA: "13.0", GPUs: []device.GPUFacts{}}
	for i, g := range d.GPUs {
		want.GPUs = append(want.GPUs, device.GPUFacts{Index: i, Arch: g.Arch, Instances: []device.InstanceFacts{}})
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A Tegra need not have libnvidia-ml. The simulated libcuda finds no GPU there.
func TestFactsOfATegra(t *testing.T) {
	d := sim.New(t, sim.Options{GPUs: 1})
	check(t, d.BecomeTegra(t.Context()))
	got, err := askFor[device.Facts](t, d, "facts")
	check(t, err)
	if want := (device.Facts{CUDAOnly: true, CUDA: "13.0", GPUs: []device.GPUFacts{}}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestFactsAreThoseOfTheDriver(t *testing.T) {
	for _, tc := range []struct {
		name string
		o    sim.Options
		cuda string
	}{
		{"of one GPU", sim.Options{GPUs: 1}, "13.0"},
		{"of GPUs whose minors are not their indices", sim.Options{GPUs: 4}, "13.0"},
		{"of GPUs behind one that is excluded", sim.Options{GPUs: 4, Excluded: []int{1}}, "13.0"},
		{"of MIG devices", sim.Options{GPUs: 3, MIG: []sim.MIGDevice{{GPU: 1, GI: 1}, {GPU: 1, GI: 2, CI: 1}, {GPU: 2, GI: 13, CI: 7}}}, "13.0"},
		{"of GPUs of several kinds", sim.Options{GPUs: 3, Models: map[int]sim.Model{
			0: {Name: "Tesla T4", Brand: "tesla", Arch: "7.5"}, 2: {Name: "NVIDIA GeForce RTX 4090", Brand: "geforcertx", Arch: "8.9"},
		}}, "13.0"},
		{"of an older driver", sim.Options{GPUs: 1, Version: "550.54.15"}, "12.4"},
		{"of another CUDA", sim.Options{GPUs: 1, CUDA: "11.8"}, "11.8"},
		{"of a driver below /usr/local", sim.Options{GPUs: 1, Layout: sim.GKE}, "13.0"},
		{"of a driver behind links", sim.Options{GPUs: 1, Layout: sim.NvidiaCurrent}, "13.0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := sim.New(t, tc.o)
			facts, err := askFor[device.Facts](t, d, "facts")
			check(t, err)
			if want := wantFacts(d, tc.cuda); !reflect.DeepEqual(facts, want) {
				t.Errorf("facts %+v\nwant  %+v", facts, want)
			}
		})
	}
}

// No program runs, and no file and no mount is made.
func TestAQuestionChangesNothing(t *testing.T) {
	d := sim.New(t, sim.Options{GPUs: 2})
	dir := t.TempDir()
	program := filepath.Join(dir, "modprobe")
	check(t, os.WriteFile(program, []byte("#!/bin/sh\ntouch "+dir+"/ran\n"), 0o755))
	check(t, d.Modprobe(program))
	before := tree(t, d.Dir)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{envTask + "=shared:" + d.ConfigPath}
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("NVML started a program or made a node: %v, %v", entries, err)
	}
	if after := tree(t, d.Dir); after != before {
		t.Errorf("files changed:\n%s\nwere:\n%s", after, before)
	}
	// The same library without the precautions does both.
	cmd = exec.Command(filepath.Join(d.Root, "usr/bin/nvidia-smi"), "-L")
	cmd.Env = []string{"LD_LIBRARY_PATH=" + filepath.Join(d.Root, d.Layout.LibDir()), "NVIDIA_SIM_DEV=" + filepath.Join(d.DevRoot, "dev")}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 3 {
		t.Errorf("the simulated NVML by itself: %v, %v", entries, err)
	}
}

// askShared asks in a mount namespace whose mounts are shared, as the mounts of a host are under
// systemd, and compares the mounts before and after.
func askShared(name string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return err
	}
	before := devMounts()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{envTask + "=facts:" + name}
	out, err := cmd.CombinedOutput()
	after := devMounts()
	if err != nil || !bytes.Equal(before, after) || !bytes.Contains(before, []byte("shared:")) {
		return errors.Join(err, fmt.Errorf("%s: mounts\n%s\nwere\n%s", out, after, before))
	}
	return nil
}

// devMounts returns the mounts at and below /dev: other tests mount elsewhere meanwhile.
func devMounts() []byte {
	data, _ := os.ReadFile("/proc/self/mountinfo")
	var list []byte
	for line := range bytes.Lines(data) {
		if bytes.HasPrefix(bytes.Fields(line)[4], []byte("/dev")) {
			list = append(list, line...)
		}
	}
	return list
}

// tree lists names, modes and times of change.
func tree(t *testing.T, dir string) string {
	t.Helper()
	out, err := exec.Command("find", dir, "-printf", "%p %M %U %s %C@\n").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

func TestErrorsSayWhyNVMLCannotBeAsked(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(d *sim.Driver, library string) error
		err    string
	}{
		{"another user's library", func(_ *sim.Driver, l string) error { return os.Chown(l, 1000, 0) }, "it is owned by uid 1000"},
		{"a world-writable library", func(_ *sim.Driver, l string) error { return os.Chmod(l, 0o666) }, "it is writable by users other than root"},
		{"no library", func(_ *sim.Driver, l string) error { return os.Remove(l) }, "libnvidia-ml.so.580.159.04 was not found"},
		{"a library of another version than the module", func(d *sim.Driver, _ string) error { return d.LoadModule("590.44.01") }, "but the loaded kernel module is 590.44.01"},
		{"no module", func(d *sim.Driver, _ string) error {
			return os.Remove(filepath.Join(d.ProcRoot, "driver/nvidia/version"))
		}, "no NVIDIA driver is loaded"},
		{"no control node", func(d *sim.Driver, _ string) error { return os.Remove(filepath.Join(d.DevRoot, "dev/nvidiactl")) }, "NVML cannot be initialized: Driver is not loaded ("},
		{"no nodes at all", func(d *sim.Driver, _ string) error { return os.RemoveAll(filepath.Join(d.DevRoot, "dev")) }, "give NVML the device nodes of host.dev-root: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := sim.New(t, sim.Options{GPUs: 1})
			library := filepath.Join(d.Root, d.Layout.LibDir(), "libnvidia-ml.so."+d.Version)
			check(t, tc.change(d, library))
			_, err := askFor[device.Facts](t, d, "facts")
			testtree.Says(t, err, tc.err)
		})
	}
}

// NVML reports the instances of one MIG device for two: neither name is believed.
func TestMIGDevicesAreToldApart(t *testing.T) {
	d := sim.New(t, sim.Options{GPUs: 1, MIG: []sim.MIGDevice{{GPU: 0, GI: 5}, {GPU: 0, GI: 9}, {GPU: 0, GI: 10}}})
	check(t, d.Answers(sim.Answer{Function: "nvmlDeviceGetGpuInstanceId", UUID: d.MIG[0].UUID, Value: "9"}))
	facts, err := askFor[device.Facts](t, d, "facts")
	check(t, err)
	for i, in := range facts.GPUs[0].Instances {
		if want := i < 2; strings.Contains(in.Error, "for 2 MIG devices") != want {
			t.Errorf("%+v, want an error %v", in, want)
		}
	}
	if len(facts.GPUs[0].Instances) != 3 || facts.GPUs[0].Error != "" {
		t.Errorf("%+v", facts.GPUs[0])
	}
}
