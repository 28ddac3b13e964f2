package hosts

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// nodeTree is the tree of a node, with the API server of its cluster.
type nodeTree struct {
	simhost.Tree
	api *simhost.NodeAPI
	env []string
}

// newNodeTree makes a tree with containerd, runc, and a systemctl that fails for the unit X if there
// is a file /run/broken-X.
func newNodeTree(t *testing.T, bin string) *nodeTree {
	t.Helper()
	n := &nodeTree{Tree: simhost.NewTree(t)}
	const account = "/run/secrets/kubernetes.io/serviceaccount"
	n.Type(t, os.Environ(), "mount -t tmpfs tmpfs /run && mkdir -p "+account+" /usr/local/sbin /var/lib/rancher "+bin)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testtree.Check(t, err)
	n.api = simhost.NewNodeAPI(t, n.Root+account, listener)
	d := sim.New(t, sim.Options{GPUs: 2})
	n.env = append(slices.Clone(n.api.Env), "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "NVIDIA_SHIM_CONFIG="+d.ConfigPath)
	tools, err := testenv.ToolsDir()
	testtree.Check(t, err)
	for _, name := range []string{"containerd", "runc"} {
		testtree.Check(t, exec.Command("cp", "-L", filepath.Join(tools, name), n.Root+bin).Run())
	}
	simhost.Script(t, n.Root+"/usr/local/sbin/systemctl", "echo \"$*\" >>/run/asked\n[ ! -e /run/broken-$2 ]\n")
	return n
}

// write writes a file of the tree.
func (n *nodeTree) write(t *testing.T, name, text string) {
	t.Helper()
	testtree.Check(t, os.MkdirAll(filepath.Dir(n.Root+name), 0o755))
	testtree.Check(t, os.WriteFile(n.Root+name, []byte(text), 0o644))
}

// run runs a command beside a process of a daemon, with the other processes of this machine hidden.
// It returns the output, the exit status, and what systemctl was asked to do.
func (n *nodeTree) run(t *testing.T, daemon, command string) (out, status, asked string) {
	t.Helper()
	script := fmt.Sprintf(`cd /run && : >asked
%s >/dev/null 2>&1 &
until [ "$(readlink /proc/$!/exe)" != "$(readlink /proc/$$/exe)" ]; do :; done
%s
echo $? >status`, daemon, command)
	out = n.Type(t, n.env, "unshare --pid --fork --kill-child --mount-proc /bin/sh -c '"+script+"'")
	text, err1 := os.ReadFile(n.Root + "/run/asked")
	code, err2 := os.ReadFile(n.Root + "/run/status")
	testtree.Check(t, errors.Join(err1, err2))
	return out, strings.TrimSpace(string(code)), string(text)
}

// ctl runs nvidia-shimctl, and checks its exit status and what systemctl is asked to do.
func (n *nodeTree) ctl(t *testing.T, daemon, args string, status int, asked ...string) string {
	t.Helper()
	out, got, text := n.run(t, daemon, filepath.Join(testenv.ShimDir(), version.Ctl)+" "+args)
	if got != fmt.Sprint(status) {
		t.Fatalf("%s: exit status %s, want %d\n%s", args, got, status, out)
	}
	if want := strings.Join(slices.Concat(asked, []string{""}), "\n"); text != want {
		t.Errorf("%s: systemctl was asked for %q, want %q", args, text, want)
	}
	return out
}

// files are those that an installation may change.
func (n *nodeTree) files(t *testing.T) (lines []string) {
	t.Helper()
	for _, dir := range []string{"/etc", "/usr/local/bin", "/usr/local/sbin", "/var/lib/rancher"} {
		for name, text := range testtree.Contents(t, n.Root+dir) {
			lines = append(lines, fmt.Sprintf("%s%s %x", dir, name, sha256.Sum256([]byte(text))))
		}
	}
	return lines
}

// daemonOfNode is a daemon with its files and process.
type daemonOfNode struct {
	target, name, bin, process string
	files                      map[string]string
	// install and uninstall are what systemctl is asked to do.
	install, uninstall []string
}

func daemonsOfNodes(t *testing.T) []daemonOfNode {
	t.Helper()
	generated, err := os.ReadFile("../../runtimeclass/testdata/k3s-v3.toml")
	testtree.Check(t, err)
	// It waits for its configuration.
	dockerd := "mkfifo -m 600 fifo; " + testenv.ShimDir() + "/docker/dockerd --validate --config-file=fifo"
	daemons := []daemonOfNode{{
		target: runtimeclass.Docker, name: "Docker", bin: "/usr/local/bin", process: dockerd,
		files:   map[string]string{runtimeclass.DefaultDockerConfig: "{\"log-driver\":   \"local\"}"},
		install: []string{"reload docker"}, uninstall: []string{"restart docker"},
	}}
	for target, bin := range map[string]string{"k3s": "/data/current/bin", "rke2": "/bin"} {
		home := "/var/lib/rancher/" + target
		for i, unit := range map[string][]string{"k3s": {"k3s", "k3s-agent"}, "rke2": {"rke2-server", "rke2-agent"}}[target] {
			files := map[string]string{runtimeclass.DaemonOf(target).Config: strings.ReplaceAll(string(generated), "/k3s/", "/"+target+"/")}
			if i == 0 {
				files[home+"/server/tls/ca.crt"] = ""
			}
			restart := []string{"is-active --quiet " + unit, "restart " + unit}
			daemons = append(daemons, daemonOfNode{
				target: target, name: unit, bin: home + bin, process: "cp -L /bin/sleep /run/" + target + "; ./" + target + " 86400",
				files: files, install: restart, uninstall: restart,
			})
		}
	}
	return daemons
}

// The node command knows the daemon by its process, and registers in its files.
func TestTheNodeCommandWithEachDaemon(t *testing.T) {
	version, err := exec.Command(filepath.Join(testenv.ShimDir(), version.Ctl), "version").Output()
	testtree.Check(t, err)
	v, _, _ := strings.Cut(string(version), " ")
	for _, d := range daemonsOfNodes(t) {
		t.Run(d.name, func(t *testing.T) {
			n := newNodeTree(t, d.bin)
			for name, text := range d.files {
				n.write(t, name, text)
			}
			before := n.files(t)
			const node = "node --once --host-root /"
			simhost.Want(t, n.ctl(t, d.process, node, 0, d.install...), "found "+d.target+" (", " runs)")
			n.api.Want(t, "true", v, 1)
			installed := n.files(t)
			if slices.Equal(slices.Sorted(slices.Values(installed)), slices.Sorted(slices.Values(before))) {
				t.Error("nothing was installed")
			}
			n.ctl(t, d.process, node, 0)
			simhost.Same(t, "a second round changed", installed, n.files(t))
			n.ctl(t, d.process, node+" --uninstall", 0, d.uninstall...)
			n.api.Want(t, "", "", 3)
			simhost.Same(t, "uninstall left", before, n.files(t))
		})
	}
}

// A daemon keeps its old configuration, and so needs the programs, until it is restarted.
func TestANodeIsRemovedWhenEachDaemonIsRestarted(t *testing.T) {
	const containerd, docker = "restart containerd", "restart docker"
	for _, c := range []struct {
		broken        string
		first, second []string
	}{
		{"containerd", []string{containerd}, []string{containerd, docker}},
		{"docker", []string{containerd, docker}, []string{docker}},
	} {
		t.Run(c.broken, func(t *testing.T) {
			n := newNodeTree(t, "/usr/local/bin")
			n.write(t, runtimeclass.DefaultContainerdConfig, "version = 3\n")
			n.write(t, runtimeclass.DefaultDockerConfig, "{}")
			n.write(t, "/usr/local/bin/dockerd", "")
			before := n.files(t)
			const process, remove = "sleep 86400", "node --once --host-root / --uninstall"
			n.ctl(t, process, "install --target containerd", 0)
			n.ctl(t, process, "install --target docker", 0)
			n.write(t, "/run/broken-"+c.broken, "")
			n.ctl(t, process, remove, 1, c.first...)
			n.ctl(t, process, remove, 1, c.second[:1]...)
			for _, name := range runtimeclass.Programs {
				if _, err := os.Stat(n.Root + "/usr/local/bin/" + name); err != nil {
					t.Errorf("%s was not restarted: %v", c.broken, err)
				}
			}
			testtree.Check(t, os.Remove(n.Root+"/run/broken-"+c.broken))
			n.ctl(t, process, remove, 0, c.second...)
			simhost.Same(t, "it left", before, n.files(t))
			n.ctl(t, process, remove, 0)
		})
	}
}
