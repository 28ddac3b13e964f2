package gpuinject

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// The mask is made before the image is looked at, and held by a descriptor.
func TestAnInjectionThatFailsGivesTheMaskUp(t *testing.T) {
	for name, devices := range map[string]string{"made at once": "0", "made meanwhile": "all"} {
		t.Run(name, func(t *testing.T) {
			cfg := hostConfig(t)
			spec := newSpec("NVIDIA_VISIBLE_DEVICES=" + devices)
			spec.Mounts = append(spec.Mounts, specs.Mount{Destination: ViewDir, Type: "bind", Source: "/tmp", Options: []string{"bind"}})
			dir := newBundle(t, spec)
			inject := func() {
				job, _, err := Examine(dir, loading(cfg))
				if err == nil {
					err = job.Resolve()
				}
				if err != nil {
					t.Fatal(err)
				}
				if _, err := job.Inject(filepath.Join(dir, "rootfs")); err == nil {
					t.Fatal("injected over a volume")
				}
			}
			inject()
			before := descriptors(t)
			for range 8 {
				inject()
			}
			if after := descriptors(t); after >= before+8 {
				t.Errorf("%d descriptors are open, before it were %d", after, before)
			}
		})
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
