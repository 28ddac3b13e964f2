package attacks

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// Old releases of runc are below the floors and have vulnerabilities of their own; what the shim
// promises does not depend on them. runc-1.1 is 1.1.12.
func TestT70AnOldRunc(t *testing.T) {
	for _, name := range []string{"runc-1.1", "runc-1.2"} {
		t.Run("T70 "+name, func(t *testing.T) {
			h := newHost(t, simhost.Options{})
			runc := filepath.Join(h.Options.ToolsDir, name)
			table := simhost.WriteFile(t, filepath.Join(h.Dir, "old.toml"), "BinaryName = \""+runc+"\"\n")
			flags := []string{"--runtime-config-path", table}
			t.Run("T70 a container gets its GPU and its mask", func(t *testing.T) {
				h.sees(t, testenv.RunOptions{Env: []string{one}, Extra: flags}, 0)
				h.sees(t, testenv.RunOptions{Env: []string{one}, ReadOnly: true, Mounts: []string{"type=tmpfs,src=tmpfs,dst=/tmp,options=rw"}, Extra: flags}, 0)
			})
			for _, a := range slices.Concat(sources(h.Driver.Version), destinations(), loaderFiles(), places()) {
				// Behind a link at /dev these releases make the links of /dev on the host, with any
				// shim: the floors are above them.
				if strings.HasPrefix(a.name, "T12 dev a") {
					continue
				}
				t.Run("T70 "+a.name, func(t *testing.T) {
					r, ran := h.attempt(t, testenv.RunOptions{RootfsDir: h.image(t, a), Env: []string{one, everything}, Extra: flags, Args: []string{"/bin/busybox", "sh", "-c", look}})
					if !ran && a.starts {
						t.Errorf("it did not start: %s", r.Error)
					} else if !ran {
						t.Logf("refused: %s", strings.TrimSpace(r.Error))
					}
				})
			}
		})
	}
}
