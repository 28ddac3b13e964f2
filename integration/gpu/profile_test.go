//go:build gpu

package gpu

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// The application profile that a container gets says the same to the driver outside
// of it, where all nodes can be opened: so it is the profile that narrows EGL's list,
// and not the nodes alone.
func TestTheDriversEGLFollowsTheProfileOfAContainer(t *testing.T) {
	gpus := hostGPUs(t)
	env := newGraphicsEnv(t)
	loaders := loadersOnHost(t)
	home := t.TempDir()
	t.Setenv("HOME", home)
	all := listedGPUs(onHost(t, loaders, "egldevices"), gpus)
	if len(gpus) < 2 || !slices.Equal(all, uuids(gpus)) {
		t.Logf("ONLY THE FORM IS TESTED: of the host's GPUs %v its own EGL lists %v, and two are needed to leave one out", uuids(gpus), all)
	}
	name := filepath.Join(home, ".nv/nvidia-application-profiles-rc.d/10-container.conf")
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	for i, g := range gpus {
		text := env.MustRun(t, graphics(env, g.Index, "graphics", "cat /etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"))
		t.Logf("GPU %s: %s", g.Index, text)
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		got := listedGPUs(onHost(t, loaders, "egldevices"), gpus)
		if slices.Equal(all, uuids(gpus)) && !slices.Equal(got, uuids(gpus[i:i+1])) {
			t.Errorf("with the profile of a container with %s the host's EGL lists %v", g.UUID, got)
		}
	}
}
