package hosts

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

// A new user of k3s types what README.md says on a node with its files and programs.
func TestTheCommandsOnANodeOfK3s(t *testing.T) {
	d, tree := sim.New(t, sim.Options{GPUs: 2}), simhost.NewTree(t)
	const home = "/var/lib/rancher/k3s/"
	bin, config := tree.Root+home+"data/current/bin", tree.Root+home+"agent/etc/containerd/config.toml"
	for _, dir := range []string{bin, filepath.Dir(config), tree.Root + home + "server/tls", tree.Root + "/usr/local/sbin"} {
		testtree.Check(t, os.MkdirAll(dir, 0o755))
	}
	tools, err := testenv.ToolsDir()
	testtree.Check(t, err)
	for _, name := range []string{"containerd", "runc"} {
		testtree.Check(t, exec.Command("cp", "-L", filepath.Join(tools, name), bin).Run())
	}
	testtree.Check(t, exec.Command("cp", "../../runtimeclass/testdata/k3s-v3.toml", config).Run())
	simhost.Script(t, tree.Root+"/usr/local/sbin/systemctl", "echo \"$*\" >>/usr/local/sbin/asked\n")
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "NVIDIA_SHIM_CONFIG=" + d.ConfigPath}
	list := simhost.Commands(t, "README.md", "**Kubernetes**", "## Documentation")
	if len(list) != 2 || list[1] != "nvidia-shimctl check" {
		t.Fatalf("commands of the page: %q", list)
	}
	written := func() []string {
		files, err := filepath.Glob(filepath.Dir(config) + "/*/*")
		testtree.Check(t, err)
		return files
	}
	tree.Type(t, env, list[0]+" --dry-run")
	if files := written(); len(files) > 0 {
		t.Errorf("the dry run wrote %q", files)
	}
	tree.Type(t, env, list[0])
	if asked, err := os.ReadFile(tree.Root + "/usr/local/sbin/asked"); err != nil || string(asked) != "is-active --quiet k3s\nrestart k3s\n" {
		t.Errorf("systemctl was asked for %q, %v", asked, err)
	}
	if files := written(); len(files) != 1 {
		t.Errorf("files of the installation: %q", files)
	}
	// This machine may run a containerd, too.
	out := tree.Type(t, env, list[1]+" --target k3s")
	simhost.Want(t, out, `the handler "nvidia" in `+home+"agent/etc/containerd/config.toml starts this shim", "driver 580.159.04 with 2 GPUs")
	if strings.Contains(out, "problem ") {
		t.Error(out)
	}
	tree.Type(t, env, "nvidia-shimctl uninstall")
	if files := written(); len(files) > 0 {
		t.Errorf("uninstall left %q", files)
	}
}
