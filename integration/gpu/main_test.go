//go:build gpu

package gpu

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/mounts"
)

func TestMain(m *testing.M) {
	if _, err := os.Stat("/proc/driver/nvidia/version"); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL: these tests need a host with NVIDIA GPUs and a loaded driver; /proc/driver/nvidia/version is missing. `make test` needs neither.")
		os.Exit(1)
	}
	testenv.Main(m, "containerd-shim-nvidia-v2", "nvidia-shimctl", "nvidia-shim-nvml")
}

// gpu is one GPU of the host.
type gpu struct {
	testenv.GPU
	Bus, Minor string
}

// hostGPUs asks the host's nvidia-smi and its procfs.
func hostGPUs(t testing.TB) []gpu {
	t.Helper()
	var gpus []gpu
	for _, g := range testenv.HostGPUs(t) {
		gpus = append(gpus, gpu{GPU: g})
	}
	infos, err := filepath.Glob("/proc/driver/nvidia/gpus/*/information")
	if err != nil || len(infos) == 0 {
		t.Fatal("no GPU in /proc/driver/nvidia/gpus", err)
	}
	for _, name := range infos {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for i := range gpus {
			if strings.Contains(string(data), gpus[i].UUID) {
				gpus[i].Bus = filepath.Base(filepath.Dir(name))
				m := regexp.MustCompile(`Device Minor:\s*(\d+)`).FindSubmatch(data)
				gpus[i].Minor = string(m[1])
			}
		}
	}
	return gpus
}

// compiled is the directory with Programs: what NVIDIA_SHIM_GPU_PROGRAMS names, for a
// host without a compiler, or else made now.
var compiled = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("NVIDIA_SHIM_GPU_PROGRAMS"); dir != "" {
		for _, name := range Programs {
			if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
				return "", fmt.Errorf("NVIDIA_SHIM_GPU_PROGRAMS is not what integration/gpu/pack made of this version: %w", err)
			}
		}
		return filepath.Abs(dir)
	}
	dir, err := testenv.ProcessDir()
	if err != nil {
		return "", err
	}
	return dir, Compile(dir)
})

// buildImage makes an image of the host's own programs and C library, and of those
// that were compiled.
var buildImage = sync.OnceValues(func() (string, error) {
	programs, err := compiled()
	if err != nil {
		return "", err
	}
	dir, err := testenv.ProcessDir()
	if err != nil {
		return "", err
	}
	image, err := ProgramsImage(imageRef, programs)
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "image.tar")
	return name, image.Write(name)
})

// graphicsImage is the tar of GraphicsImage: from what NVIDIA_SHIM_GPU_IMAGES names,
// for a host without the loaders, or else made now.
var graphicsImage = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("NVIDIA_SHIM_GPU_IMAGES"); dir != "" {
		return packedGraphics(dir)
	}
	programs, err := compiled()
	if err != nil {
		return "", err
	}
	dir, err := testenv.ProcessDir()
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, graphicsTar)
	return name, writeGraphics(programs, name)
})

const imageRef = "test/gpu:latest"

// newEnv starts a containerd that uses the real driver, with the image in it.
func newEnv(t testing.TB, extra string) *testenv.Env {
	t.Helper()
	return newEnvFrom(t, extra, testenv.ShimDir())
}

// newEnvFrom is newEnv with the shim's programs in another directory.
func newEnvFrom(t testing.TB, extra, programs string) *testenv.Env {
	t.Helper()
	before := testenv.Snapshot(t)
	t.Cleanup(func() { before.AssertUnchanged(t) })
	dir := mounts.TempDir(t)
	state := filepath.Join(dir, "state")
	config := filepath.Join(dir, "config.toml")
	if err := os.WriteFile(config, []byte("[host]\nstate-dir = \""+state+"\"\n"+extra), 0o644); err != nil {
		t.Fatal(err)
	}
	env := testenv.Start(t, testenv.Options{ShimConfig: config, ShimDir: programs})
	tar, err := buildImage()
	if err != nil {
		t.Fatal(err)
	}
	env.Import(t, tar)
	return env
}
