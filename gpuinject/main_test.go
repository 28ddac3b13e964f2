package gpuinject

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
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
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// The test binary runs itself in a mount namespace of its own, so that nothing it
// mounts is ever the host's.
const envInside = "GPUINJECT_TEST_INSIDE"

// simulated is the driver of all tests: four GPUs, whose minors are not their
// indices.
var simulated *sim.Driver

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		os.Stderr.WriteString("gpuinject: the tests make device nodes and mount file systems: run them as root\n")
		os.Exit(1)
	}
	if os.Getenv(envInside) != "" {
		os.Exit(withDriver(m))
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), envInside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// The os package makes the mounts of the new namespace private.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		os.Exit(max(1, exit.ExitCode()))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
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

// hostConfig is the configuration of a host with the simulated driver and a state
// directory of the test's own.
func hostConfig(t testing.TB) *config.Config {
	t.Helper()
	cfg, err := config.Load(simulated.ConfigPath)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Host.StateDir = filepath.Join(t.TempDir(), "state")
	t.Cleanup(func() {
		removeState(cfg.Host.StateDir)
	})
	return cfg
}

// removeState unmounts the views of a state directory.
func removeState(dir string) { _ = syscall.Unmount(filepath.Join(dir, "view"), syscall.MNT_DETACH) }

// loading returns what Examine loads the configuration with.
func loading(cfg *config.Config) func() (*config.Config, error) {
	return func() (*config.Config, error) { return cfg, nil }
}

// newSpec is the configuration of a container as containerd makes it, with the
// variables env.
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

// newBundle writes spec into a bundle with an image that has the C library of this
// machine, in a merged /usr.
func newBundle(t testing.TB, spec any) string {
	t.Helper()
	dir := t.TempDir()
	raw, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, bundle.ConfigName), string(raw), 0o600)
	found, _ := filepath.Glob("/lib/*-linux-gnu/libc.so.6")
	libdir := "usr/lib/x86_64-linux-gnu"
	if len(found) == 0 {
		found = []string{"/lib64/libc.so.6"}
	} else {
		libdir = filepath.Join("usr/lib", filepath.Base(filepath.Dir(found[0])))
	}
	libc, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatalf("the tests need this machine's glibc: %v", err)
	}
	root := filepath.Join(dir, "rootfs")
	writeFile(t, filepath.Join(root, libdir, "libc.so.6"), string(libc), 0o755)
	for _, d := range []string{"etc", "proc", "dev", "usr/bin", "usr/local"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("usr/lib", filepath.Join(root, "lib")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func writeFile(t testing.TB, name, content string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, mode); err != nil {
		t.Fatal(err)
	}
}

// readSpec is the configuration as runc would read it.
func readSpec(t testing.TB, dir string) *specs.Spec {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, bundle.ConfigName))
	if err != nil {
		t.Fatal(err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(raw, &spec); err != nil {
		t.Fatal(err)
	}
	return &spec
}

// noProbe is a probe that cannot be started.
func noProbe(probe.Questions) probe.Answers {
	return probe.Answers{FactsError: "no probe in this test", PodError: "no probe in this test"}
}

// factsFrom is a probe whose NVML answers with what facts returns.
func factsFrom(facts func() (device.Facts, error)) Ask {
	return func(q probe.Questions) (a probe.Answers) {
		if q.Facts {
			f, err := facts()
			if err != nil {
				a.FactsError = err.Error()
			} else {
				a.Facts = &f
			}
		}
		if q.Pod != nil {
			a.PodError = "no kubelet in this test"
		}
		return a
	}
}

// mustExamine examines a specification that asks for the driver.
func mustExamine(t testing.TB, cfg *config.Config, spec any) Container {
	t.Helper()
	c, err := ExamineSpec(spec, loading(cfg))
	if err != nil {
		t.Fatal(err)
	}
	if !c.Asks {
		t.Fatalf("the container asks for the driver, and Examine says that it does not: %s", c.Reason)
	}
	return c
}

// resolveIn resolves a container whose image is at root.
func resolveIn(t testing.TB, c Container, root string, ask Ask) (Plan, error) {
	t.Helper()
	img, err := image.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	return Resolve(c, img, ask)
}

// resolve takes a container of an empty image through Examine and Resolve.
func resolve(t testing.TB, cfg *config.Config, spec any) (Plan, error) {
	t.Helper()
	return resolveWith(t, cfg, spec, noProbe)
}

func resolveWith(t testing.TB, cfg *config.Config, spec any, ask Ask) (Plan, error) {
	t.Helper()
	return resolveIn(t, mustExamine(t, cfg, spec), t.TempDir(), ask)
}

// inject takes the container of the bundle dir through all steps but the mask's attachment.
func inject(t testing.TB, cfg *config.Config, dir string) (Applied, error) {
	t.Helper()
	return injectWith(t, cfg, dir, noProbe)
}

func injectWith(t testing.TB, cfg *config.Config, dir string, ask Ask) (Applied, error) {
	t.Helper()
	c, err := Examine(dir, loading(cfg))
	if err != nil || !c.Asks {
		t.Fatalf("examine: %+v, %v", c, err)
	}
	root, err := image.Open(c.Bundle.RootPath())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	plan, err := Resolve(c, root, ask)
	if err != nil {
		return Applied{}, err
	}
	a, err := Apply(c, plan, root)
	if a.Mask != nil {
		t.Cleanup(func() { a.Mask.Close() })
	}
	return a, err
}

func mustInject(t testing.TB, cfg *config.Config, dir string) Applied {
	t.Helper()
	a, err := inject(t, cfg, dir)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// refused fails the test unless err is of the kind, in one line that has all of
// words.
func refused(t testing.TB, err error, kind Kind, words ...string) {
	t.Helper()
	var e *Error
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

// given are the places where a container finds what was injected: the destinations of
// its mounts, and the links of its image into the view. Each link leads to a file of
// the view, and the record has them all.
func given(t testing.TB, dir string) []string {
	t.Helper()
	spec := readSpec(t, dir)
	places := destinations(spec.Mounts)
	var links []PlanLink
	root := filepath.Join(dir, "rootfs")
	err := filepath.WalkDir(root, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.Type() != fs.ModeSymlink {
			return err
		}
		target, err := os.Readlink(name)
		if inView, ok := strings.CutPrefix(target, ViewDir+"/"); ok {
			source := spec.Mounts[slices.Index(places, ViewDir)].Source
			if info, err := os.Stat(filepath.Join(source, inView)); err != nil || !info.Mode().IsRegular() {
				t.Errorf("%s leads to %s: %v", name, target, err)
			}
			links = append(links, PlanLink{strings.TrimPrefix(name, root), target})
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var record Plan
	if err := json.Unmarshal(readFile(t, dir, RecordName), &record); err != nil {
		t.Fatal(err)
	}
	if len(record.Links) != len(links) {
		t.Errorf("links %v, recorded %v", links, record.Links)
	}
	for _, l := range links {
		places = append(places, l.Path)
	}
	return places
}

// gpuIndices are the indices of the GPUs that a plan gives.
func gpuIndices(p Plan) (indices []int) {
	for _, g := range p.GPUs {
		indices = append(indices, g.Index)
	}
	return indices
}

// pod is a container that CRI made, with the nodes of the GPUs that the kubelet
// allocated.
func pod(t *testing.T, namespace string, allocated []int, env ...string) *specs.Spec {
	t.Helper()
	spec := newSpec(env...)
	spec.Annotations["io.kubernetes.cri.container-type"] = "container"
	spec.Annotations["io.kubernetes.cri.sandbox-namespace"] = namespace
	for _, i := range allocated {
		spec.Linux.Devices = append(spec.Linux.Devices, specs.LinuxDevice{
			Path: "/dev/nvidia-of-the-plugin", Type: "c", Major: int64(simulated.Majors.GPU), Minor: int64(simulated.GPUs[i].Minor),
		})
	}
	return spec
}
