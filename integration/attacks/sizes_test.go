package attacks

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// What an image or a pod repeats without end costs the shim little processor time and memory, which
// are not the container's own.
func TestT71SizesAreBounded(t *testing.T) {
	h := newHost(t, simhost.Options{})
	root := h.Tree(t, "glibc-hwcaps")
	volume := filepath.Join(h.Dir, "volume")
	if err := os.Mkdir(volume, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/usr", filepath.Join(volume, "link")); err != nil {
		t.Fatal(err)
	}
	// The last mount is refused, after all have been examined.
	mounts := func(n int) func(spec map[string]any) {
		return func(spec map[string]any) {
			list := spec["mounts"].([]any)
			for i := len(list); i < n; i++ {
				at := "/v"
				if i > n/2 {
					at = fmt.Sprint("/v/", i)
				}
				if i == n-1 {
					at = "/v/link/x"
				}
				list = append(list, map[string]any{"destination": at, "source": volume, "type": "bind", "options": []string{"rbind"}})
			}
			spec["mounts"] = list
		}
	}
	for _, tc := range []struct {
		name    string
		change  func(spec map[string]any)
		refusal string // "" if it starts
	}{
		{"a variable of 4 MiB", withEnv("NVIDIA_VISIBLE_DEVICES=" + strings.Repeat("0,", 2<<20)), "commas"},
		{"a variable of 4 MiB without commas", withEnv("NVIDIA_VISIBLE_DEVICES=" + strings.Repeat("0", 4<<20)), "no program can be started"},
		{"a variable of 120 KiB", withEnv("NVIDIA_VISIBLE_DEVICES=" + strings.Repeat("0,", 60<<10)), "1024 devices"},
		{"capabilities of 120 KiB", withEnv(one, "NVIDIA_DRIVER_CAPABILITIES="+strings.Repeat("compute,", 15<<10)), ""},
		{"channels of 120 KiB", withEnv(one, "NVIDIA_IMEX_CHANNELS="+strings.Repeat("0,", 60<<10)), "imex"},
		{"100,000 variables", withEnv(append(slices.Repeat([]string{"NVIDIA_X=1"}, 100_000), one)...), ""},
		{"a million variables", withEnv(append(slices.Repeat([]string{"A="}, 1_000_000), one)...), "commas"},
		{"variables of 7 MiB", withEnv(append(slices.Repeat([]string{"A=" + strings.Repeat("x", 100<<10)}, 70), one)...), ""},
		{"variables of 60 MiB", withEnv(append(slices.Repeat([]string{"A=" + strings.Repeat("x", 100<<10)}, 600), one)...), "is larger than"},
		{"100,000 annotations", func(spec map[string]any) {
			withEnv(one)(spec)
			annotations := map[string]any{}
			for i := range 100_000 {
				annotations[fmt.Sprint("cdi.k8s.io/", i)] = ""
			}
			spec["annotations"] = annotations
		}, ""},
		{"4,096 mounts", func(spec map[string]any) { withEnv(one)(spec); mounts(4096)(spec) }, "by a link in its volume"},
		{"20,000 mounts", func(spec map[string]any) { withEnv(one)(spec); mounts(20_000)(spec) }, "has 20000 mounts"},
		{"120,000 empty mounts", func(spec map[string]any) {
			withEnv(one)(spec)
			spec["mounts"] = slices.Repeat([]any{map[string]any{}}, 120_000)
		}, "has 120000 mounts"},
	} {
		t.Run("T71 "+tc.name, func(t *testing.T) {
			b, spec := h.newBundle(t, testenv.RunOptions{RootfsDir: root})
			tc.change(spec)
			b.write(t, encode(t, spec))
			h.unharmed(t, func() {
				defer b.remove(t)
				var err error
				h.quickly(t, func() { err = b.create("") })
				if (err == nil) != (tc.refusal == "") || err != nil && (!strings.Contains(err.Error(), tc.refusal) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 2048) {
					t.Errorf("%.4096v", err)
				}
			})
		})
	}
}
