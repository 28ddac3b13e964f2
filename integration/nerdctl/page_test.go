package nerdctl

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// A new user of containerd types what README.md and docs/nerdctl.md say. ctr does what nerdctl would.
func TestTheCommandsOfThePages(t *testing.T) {
	tree := simhost.NewTree(t)
	h := simhost.New(t, simhost.Options{Env: testenv.Options{Wrapper: tree.Enter}})
	h.Options.ShimDir = ""
	h.Restart(t)
	log := filepath.Join(h.Dir, "page.log") // ctr may lose what a container prints
	ctr := "ctr --address " + h.Address + " --namespace " + h.ID + " run --cpu-shares 0 --cgroup /" + h.ID + "/page --log-uri file://" + log
	as := strings.NewReplacer("nerdctl run", ctr, " -e ", " --env ", "--gpus device=", "--device nvidia.com/gpu=", "IMAGE", h.Image+" page")
	env := []string{"PATH=" + h.Options.ToolsDir + ":/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "NVIDIA_SHIM_CONFIG=" + h.Driver.ConfigPath}
	list := slices.Concat(simhost.Commands(t, "README.md", "**ctr and nerdctl**", "**Docker**"), simhost.Commands(t, "docs/nerdctl.md", "# nerdctl", "\x00"))
	ran := 0
	for _, line := range list {
		tree.Type(t, env, as.Replace(line))
		if strings.HasPrefix(line, "nerdctl run") {
			ran++
			out, err := os.ReadFile(log)
			if err != nil || !strings.Contains(string(out), h.Driver.GPUs[0].UUID) || strings.Count(string(out), "GPU-") != 1 {
				t.Errorf("%s: %s, %v", line, out, err)
			}
			os.Remove(log)
		}
	}
	if len(list) != 4 || ran != 2 {
		t.Errorf("commands of the pages: %q", list)
	}
}
