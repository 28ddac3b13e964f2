package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/simtest"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

func TestMain(m *testing.M) { testenv.Main(m, runtimeclass.ShimName, runtimeclass.CtlName) }

// host is a containerd with a simulated driver.
type host struct {
	*testenv.Env
	Driver *sim.Driver
}

// hostOptions say how a host is made; the zero value is four GPUs of the Debian
// layout under the first cgroup version that is possible.
type hostOptions struct {
	sim.Options
	testenv testenv.Options
	// config is TOML appended to the simulated driver's configuration.
	config string
}

// newHost starts a containerd with a simulated driver. When the test ends both are
// gone and the host is as it was before.
func newHost(t testing.TB, o hostOptions) *host {
	t.Helper()
	before := testenv.Snapshot(t)
	t.Cleanup(func() { testenv.AssertUnchanged(t, before) })
	if o.Dir == "" {
		// Short, and below a directory that only root can write.
		dir, err := os.MkdirTemp("", "nvsim")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		o.Dir = filepath.Join(dir, "d")
	}
	if o.GPUs == 0 {
		o.GPUs = 4
	}
	driver := simtest.New(t, o.Options)
	if o.config != "" {
		f, err := os.OpenFile(driver.ConfigPath, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(o.config); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	o.testenv.ShimConfig = driver.ConfigPath
	if o.testenv.ShimDir == "" {
		o.testenv.ShimDir = testenv.ShimDir()
	}
	return &host{Env: testenv.Start(t, o.testenv), Driver: driver}
}

// image imports the image of the given kind, once per host.
func (h *host) image(t testing.TB, name string) string {
	t.Helper()
	tar, err := images.Build(name)
	if err != nil {
		t.Fatal(err)
	}
	h.Import(t, tar)
	return images.Ref(name)
}

// ctl runs nvidia-shimctl with the host's configuration and returns what it prints.
func (h *host) ctl(t testing.TB, args ...string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(testenv.ShimDir(), runtimeclass.CtlName), append([]string{"--config", h.Driver.ConfigPath}, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("nvidia-shimctl %s: %v: %s%s", strings.Join(args, " "), err, out, stderr.String())
	}
	return string(out)
}

// record reads what the shim wrote about a container.
func (h *host) record(t testing.TB, id string) gpuinject.Plan {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(h.BundleDir(id), gpuinject.RecordName))
	if err != nil {
		t.Fatal(err)
	}
	var plan gpuinject.Plan
	if err := json.Unmarshal(data, &plan); err != nil {
		t.Fatal(err)
	}
	return plan
}
