package hosts

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/node"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

const withSettings = keepNode + ` --settings "$(cat /run/settings)" 2>&1`

// settingsTree is a node that no variable configures. settings are those of its driver without
// host.driver-root, which is root.
func settingsTree(t *testing.T, d daemonOfNode) (n *nodeTree, settings, root string) {
	t.Helper()
	n = newNodeTree(t, d.bin)
	for name, text := range d.files {
		n.write(t, name, text)
	}
	i := slices.IndexFunc(n.env, func(v string) bool { return strings.HasPrefix(v, config.EnvFile+"=") })
	text, err := os.ReadFile(strings.TrimPrefix(n.env[i], config.EnvFile+"="))
	testtree.Check(t, err)
	n.env = slices.Delete(n.env, i, i+1)
	line := regexp.MustCompile(`driver-root = "(.*)"\n`)
	return n, line.ReplaceAllString(string(text), ""), line.FindStringSubmatch(string(text))[1]
}

// The settings of the chart are the shim's configuration on the node, and the root of a driver
// container is found.
func TestTheNodeCommandConfiguresTheShim(t *testing.T) {
	d := daemonsOfNodes(t)[0]
	n, settings, root := settingsTree(t, d)
	before := n.files(t)
	n.write(t, "/run/settings", settings+"[policy]\nkubernetes = \"audit\"\n")
	has := func(what string, driverRoot string) {
		t.Helper()
		c := config.Default()
		text, err := os.ReadFile(n.Root + config.DefaultPath)
		testtree.Check(t, errors.Join(err, config.Decode(text, c)))
		if c.Host.DriverRoot != driverRoot || c.Policy.Kubernetes != config.Audit {
			t.Errorf("%s: %+v", what, c)
		}
	}
	for what, prepare := range map[string]string{"no driver": ":", "a link": "mkdir -p /run/nvidia && ln -s " + root + " " + node.DriverContainer} {
		n.Type(t, os.Environ(), prepare)
		simhost.Want(t, n.ctl(t, d.process, withSettings, 1), "problem: libraries: ", "not installed: ")
		simhost.Same(t, what, before, n.files(t))
	}
	n.Type(t, os.Environ(), "rm "+node.DriverContainer)
	n.Type(t, os.Environ(), "mkdir -p "+node.DriverContainer+" && mount --bind "+root+" "+node.DriverContainer)
	n.ctl(t, d.process, withSettings, 0, d.install...)
	has("the driver container", node.DriverContainer)
	installed := n.files(t)
	n.ctl(t, d.process, withSettings, 0)
	simhost.Same(t, "a second round changed", installed, n.files(t))
	n.Type(t, os.Environ(), "umount "+node.DriverContainer)
	n.ctl(t, d.process, withSettings, 1)
	simhost.Same(t, "while the container restarts", installed, n.files(t))

	n.write(t, "/run/settings", strings.Replace(settings, "[host]\n", "[host]\ndriver-root = \""+root+"\"\n", 1)+"[policy]\nkubernetes = \"audit\"\n")
	n.ctl(t, d.process, withSettings, 0)
	has("the operator's value", root)
	n.write(t, "/run/settings", "[policy]\n\nkubernets = \"audit\"\n")
	now := n.files(t)
	simhost.Want(t, n.ctl(t, d.process, withSettings, 2), `--settings: line 3: unknown key "policy.kubernets"`)
	simhost.Same(t, "wrong settings", now, n.files(t))

	n.write(t, config.DefaultPath, string(runtimeclass.Marked(settings+"[policy]\nkubernetes = \"audit\"\n")))
	n.Type(t, os.Environ(), "mount --bind "+root+" "+node.DriverContainer)
	for range 2 {
		n.ctl(t, d.process, keepNode, 0)
		has("the settings of an earlier install", node.DriverContainer)
	}
	n.ctl(t, d.process, removeNode, 0, d.uninstall...)
	simhost.Same(t, "uninstall left", before, n.files(t))
}

func TestTheNodeCommandSetsAndDropsTheDefault(t *testing.T) {
	d := daemonsOfNodes(t)[0]
	n := newNodeTree(t, d.bin)
	for name, text := range d.files {
		n.write(t, name, text)
	}
	has := func() bool {
		text, err := os.ReadFile(n.Root + "/etc/docker/daemon.json")
		testtree.Check(t, err)
		return strings.Contains(string(text), `"default-runtime": "nvidia"`)
	}
	for _, step := range []struct {
		flags string
		want  bool
	}{{"", false}, {" --set-default", true}, {"", true}, {" --set-default=false", false}} {
		if out, status, _ := n.run(t, d.process, ctlPath()+" "+keepNode+step.flags); status != "0" || has() != step.want {
			t.Errorf("%q: %s %v\n%s", step.flags, status, has(), out)
		}
	}
}

func ctlPath() string { return filepath.Join(testenv.ShimDir(), version.Ctl) }
