package gpuinject

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/place"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/question"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

var check = testtree.Check

// simulated is the driver of most tests: four GPUs whose minor numbers are not their indices.
var simulated *sim.Driver

func TestMain(m *testing.M) {
	testtree.InOwnMounts()
	os.Exit(withDriver(m))
}

func withDriver(m *testing.M) int {
	dir, err := os.MkdirTemp("", "gpuinject")
	if err == nil {
		defer os.RemoveAll(dir)
		simulated, err = sim.Create(context.Background(), sim.Options{
			Dir: filepath.Join(dir, "driver"), GPUs: 4, Others: sim.Others{IMEX: 3, GDS: true, MOFED: true, GDRCopy: true, NVSwitch: true},
		})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// hostConfig returns the configuration of the simulated host with the test's own state directory.
func hostConfig(t testing.TB) *config.Config {
	t.Helper()
	return configOf(t, simulated)
}

// configOf is like hostConfig, for another host. When the test ends, the views in the state
// directory are unmounted.
func configOf(t testing.TB, d *sim.Driver) *config.Config {
	t.Helper()
	cfg, err := config.Load(d.ConfigPath)
	check(t, err)
	cfg.Host.StateDir = filepath.Join(t.TempDir(), "state")
	t.Cleanup(func() {
		_ = syscall.Unmount(filepath.Join(cfg.Host.StateDir, "view"), syscall.MNT_DETACH)
	})
	return cfg
}

// testHost is a simulated host, and its NVML.
type testHost struct {
	*sim.Driver
	cfg *config.Config
	// asked counts the questions to NVML, which does not answer if silent is true.
	asked  int
	silent bool
	// change changes NVML's answer.
	change func(*device.Facts)
}

// Places in a container and its bundle.
const (
	profileName = "application-profile.conf"
	cacheName   = "ld.so.cache"
	byPathName  = "dri-by-path"
	byPathDest  = "/dev/dri/by-path"
	udevDir     = "/run/udev"
	cufileJSON  = "/etc/cufile.json"
)

// simulatedHost returns the host of most tests, without kept answers of NVML.
func simulatedHost(t testing.TB) *testHost {
	t.Helper()
	return &testHost{Driver: simulated, cfg: hostConfig(t)}
}

func newHost(t testing.TB, o sim.Options) *testHost {
	t.Helper()
	d := sim.New(t, o)
	return &testHost{Driver: d, cfg: configOf(t, d)}
}

// ask answers as this host's probe.
func (h *testHost) ask(q question.Questions) (a question.Answers) {
	if q.Pod != nil {
		a.PodError = "no kubelet in this test"
	}
	if !q.Facts {
		return a
	}
	h.asked++
	if h.silent {
		a.FactsError = "NVML cannot be asked in this test"
		return a
	}
	facts := factsOf(h.Driver)
	if h.change != nil {
		h.change(&facts)
	}
	a.Facts = &facts
	return a
}

func (h *testHost) resolve(t *testing.T, spec any) (Plan, error) {
	t.Helper()
	return resolve(t, h.cfg, spec, h.ask)
}

// factsOf returns the answer of a simulated driver's NVML. GPU 3 is a different model.
func factsOf(d *sim.Driver) device.Facts {
	f := device.Facts{Driver: d.Version, CUDA: "13.0"}
	for _, g := range d.GPUs {
		gpu := device.GPUFacts{Index: g.Index, Minor: g.Minor, UUID: g.UUID, BusID: g.BusID, Brand: "nvidia", Arch: "9.0"}
		if g.Index == 3 {
			gpu.Brand, gpu.Arch = "geforcertx", "8.9"
		}
		for _, m := range d.MIG {
			if m.GPU == g.Index {
				gpu.Instances = append(gpu.Instances, device.InstanceFacts{Index: len(gpu.Instances), UUID: m.UUID, GI: m.GI, CI: m.CI, Name: "1g.18gb"})
			}
		}
		f.GPUs = append(f.GPUs, gpu)
	}
	return f
}

// loading returns a function that loads cfg, for Examine.
func loading(cfg *config.Config) func() (*config.Config, error) {
	return func() (*config.Config, error) { return cfg, nil }
}

// newSpec returns the configuration of a container as containerd creates it, with the variables
// env.
func newSpec(env ...string) *specs.Spec {
	return &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: "rootfs"},
		Process: &specs.Process{Env: env, Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_MKNOD"}}},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"},
		},
		Annotations: map[string]string{},
		Linux: &specs.Linux{
			Namespaces:  []specs.LinuxNamespace{{Type: specs.MountNamespace}, {Type: specs.PIDNamespace}},
			MaskedPaths: []string{"/proc/kcore"},
			Resources:   &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"}}},
		},
	}
}

// newBundle writes spec into a bundle with an image that has the C library of this machine, in a
// merged /usr.
func newBundle(t testing.TB, spec any) string {
	t.Helper()
	return families()[0].build(t, spec)
}

func writeFile(t testing.TB, name, content string, mode os.FileMode) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(name), 0o755)
	if err == nil {
		err = os.WriteFile(name, []byte(content), mode)
	}
	if err = errors.Join(err, os.Chmod(name, mode)); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t testing.TB, dir string) string {
	t.Helper()
	check(t, os.MkdirAll(dir, 0o755))
	return dir
}

func symlink(t testing.TB, target, name string) {
	t.Helper()
	check(t, os.Symlink(target, name))
}

func readFile(t testing.TB, dir, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	check(t, err)
	return data
}

// readSpec returns the configuration as runc would read it.
func readSpec(t testing.TB, dir string) *specs.Spec {
	t.Helper()
	var spec specs.Spec
	check(t, json.Unmarshal(readFile(t, dir, bundle.ConfigName), &spec))
	return &spec
}

// noProbe is a probe that cannot be started.
func noProbe(question.Questions) question.Answers {
	return question.Answers{FactsError: "no probe in this test", PodError: "no probe in this test"}
}

// resolveIn resolves a container whose image is at root.
func resolveIn(t testing.TB, c Container, root string, ask question.Ask) (Plan, error) {
	t.Helper()
	img, err := image.Open(root)
	check(t, err)
	defer img.Close()
	return Resolve(c, img, ask)
}

// resolve runs Examine and Resolve for a container that asks for the driver and has an empty image.
func resolve(t testing.TB, cfg *config.Config, spec any, ask question.Ask) (Plan, error) {
	t.Helper()
	c, err := ExamineSpec(spec, loading(cfg))
	if err != nil || !c.Asks {
		t.Fatalf("examine: %+v, %v", c, err)
	}
	return resolveIn(t, c, t.TempDir(), ask)
}

// mustInject runs all steps for the container of the bundle in dir except attaching the mask. It
// checks that there is a mask if the plan has one.
func mustInject(t testing.TB, cfg *config.Config, dir string) Plan {
	t.Helper()
	c, err := Examine(dir, loading(cfg))
	if err != nil || !c.Asks {
		t.Fatalf("examine: %+v, %v", c, err)
	}
	root, err := image.Open(c.Bundle.RootPath())
	check(t, err)
	defer root.Close()
	plan, err := Resolve(c, root, noProbe)
	check(t, err)
	plan, mask, err := Apply(c, plan, root)
	if err != nil || (mask != nil) != plan.Proc.Masked {
		t.Fatal(mask, err)
	}
	if mask != nil {
		mask.Close()
	}
	return plan
}

// refused fails the test unless err has this kind and is one line that contains all words.
func refused(t testing.TB, err error, kind verdict.Kind, words ...string) {
	t.Helper()
	var e *verdict.Error
	if !errors.As(err, &e) {
		t.Fatalf("error %v, want one of kind %d", err, kind)
	}
	if e.Kind != kind {
		t.Errorf("error %q is of kind %d, want %d", err, e.Kind, kind)
	}
	if strings.ContainsAny(err.Error(), "\n\r") {
		t.Errorf("error %q is more than one line", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

// given returns the places where a container finds what was injected: the destinations of its
// mounts, and the links of its image into the view. Each link leads to a file of the view, and the
// record has them all.
func given(t testing.TB, dir string) []string {
	t.Helper()
	spec := readSpec(t, dir)
	places := destinations(spec.Mounts)
	var links []place.Link
	root := filepath.Join(dir, "rootfs")
	err := filepath.WalkDir(root, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.Type() != fs.ModeSymlink {
			return err
		}
		target, err := os.Readlink(name)
		if inView, ok := strings.CutPrefix(target, view.Dir+"/"); ok {
			source := spec.Mounts[slices.Index(places, view.Dir)].Source
			if info, err := os.Stat(filepath.Join(source, inView)); err != nil || !info.Mode().IsRegular() {
				t.Errorf("%s leads to %s: %v", name, target, err)
			}
			links = append(links, place.Link{Path: strings.TrimPrefix(name, root), Target: target})
		}
		return err
	})
	check(t, err)
	var record Plan
	check(t, json.Unmarshal(readFile(t, dir, RecordName), &record))
	if len(record.Links) != len(links) {
		t.Errorf("links %v, recorded %v", links, record.Links)
	}
	for _, l := range links {
		places = append(places, l.Path)
	}
	return places
}
