package simhost

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/record"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// Main is the TestMain of a package that uses hosts.
func Main(m *testing.M) { testenv.Main(m, runtimeclass.Programs...) }

// DefaultImage is small and has what a probe needs: a shell, glibc, the test programs.
const DefaultImage = "glibc-nocache"

// Mask is where the mask is.
const Mask = "/proc/driver"

// UserNamespace are the flags of ctr for a user namespace.
var UserNamespace = []string{"--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536"}

// Lib is the directory where programs in a container find the driver's libraries.
const Lib = "/usr/local/nvidia/lib64/"

// Multiarch is Debian's library directory of this machine.
var Multiarch = map[string]string{"amd64": "/usr/lib/x86_64-linux-gnu", "arm64": "/usr/lib/aarch64-linux-gnu"}[runtime.GOARCH]

// Options are how a host is made. The zero value has four GPUs, Debian's layout, the
// first possible cgroup version and DefaultImage.
type Options struct {
	Driver sim.Options
	Env    testenv.Options
	// Config is TOML that is appended to the simulated driver's configuration.
	Config string
	// Image is the name of the image that is imported.
	Image string
}

// Host is a containerd with a simulated driver.
type Host struct {
	*testenv.Env
	Devices
	tree string // that of Spec
}

// New starts a host. When the test ends it is gone, and this machine is as before.
func New(t testing.TB, o Options) *Host {
	t.Helper()
	before := testenv.Snapshot(t)
	t.Cleanup(func() { before.AssertUnchanged(t) })
	if o.Driver.GPUs == 0 {
		o.Driver.GPUs = 4
	}
	h := &Host{Devices: NewDevices(t, sim.New(t, o.Driver))}
	if o.Config != "" {
		Append(t, h.Driver.ConfigPath, o.Config)
	}
	o.Env.ShimConfig = h.Driver.ConfigPath
	if o.Env.ShimDir == "" {
		o.Env.ShimDir = testenv.ShimDir()
	}
	h.Env = testenv.Start(t, o.Env)
	if o.Image == "" {
		o.Image = DefaultImage
	}
	h.Image = h.Load(t, o.Image)
	return h
}

// Load imports a named image and returns its reference.
func (h *Host) Load(t testing.TB, name string) string {
	t.Helper()
	h.Import(t, build(t, name))
	return images.Ref(name)
}

func build(t testing.TB, name string) string {
	t.Helper()
	tar, err := images.Build(name)
	if err != nil {
		t.Fatal(err)
	}
	return tar
}

// Ctl runs nvidia-shimctl with the host's configuration and returns what it prints.
func (h *Host) Ctl(t testing.TB, args ...string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(testenv.ShimDir(), version.Ctl), append([]string{"--config", h.Driver.ConfigPath}, args...)...)
	r, err := testenv.Output(time.Minute, cmd)
	if err != nil || r.ExitCode != 0 {
		t.Fatalf("nvidia-shimctl %s: %v, exit status %d: %s%s", strings.Join(args, " "), err, r.ExitCode, r.Output, r.Error)
	}
	return r.Output
}

// Record is what the shim wrote about a container.
func (h *Host) Record(t testing.TB, id string) record.Record {
	t.Helper()
	r, err := record.Read(h.BundleDir(id))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// LogLines are the lines that the shim logged about a container with this level.
func (h *Host) LogLines(id, level string) []string {
	var lines []string
	for line := range strings.Lines(h.Log()) {
		if strings.Contains(line, `msg="nvidia:`) && strings.Contains(line, "id="+id+" ") && strings.Contains(line, "level="+level+" ") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// PodAnnotations are those that containerd's CRI plugin writes.
func PodAnnotations(namespace, pod, container string) []string {
	const cri = "io.kubernetes.cri."
	return []string{
		cri + "container-type=container", cri + "sandbox-namespace=" + namespace,
		cri + "sandbox-name=" + pod, cri + "container-name=" + container,
	}
}
