package systemd

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/api"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cdispec"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

const (
	installedShim = runtimeclass.DefaultBinDir + "/" + version.Shim
	installedCtl  = runtimeclass.DefaultBinDir + "/" + version.Ctl
	// inAccount is a pod's service account.
	inAccount   = "/srv/account"
	removeLabel = "nvidia-shim.io/remove"
)

// node is a machine with the node image, and the API server of its cluster.
type node struct {
	*machine
	api            *simhost.NodeAPI
	image, version string
	pod            []string // the command that runs the image, without its flags at the end
}

func startNode(t *testing.T) *node {
	t.Helper()
	return newNode(t, startMachine(t))
}

// newNode makes a machine a node.
func newNode(t *testing.T, m *machine) *node {
	t.Helper()
	n := &node{machine: m}
	n.run(t, "mkdir", inAccount)
	n.run(t, "touch", "/etc/hosts", "/etc/resolv.conf") // ctr mounts them
	testtree.Check(t, m.inNetwork(func() error {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err == nil {
			n.api = simhost.NewNodeAPI(t, filepath.Join(n.dir, inAccount), listener)
		}
		return err
	}))
	n.pod = []string{
		// A privileged container has the capabilities of ctr.
		"setpriv", bounded, "ctr", "run", "--privileged", "--net-host", "--with-ns", "pid:/proc/1/ns/pid", "--cpu-shares", "0", "--cgroup", "system.slice:node:node",
		"--mount", "type=bind,src=/,dst=/host,options=rbind:rslave",
		"--mount", "type=bind,src=" + inAccount + ",dst=/var/run/secrets/kubernetes.io/serviceaccount,options=rbind:ro",
	}
	for _, variable := range n.api.Env {
		n.pod = append(n.pod, "--env", variable)
	}
	file := filepath.Base(n.packageFile(t, "nvidia-shim-node_*.tar"))
	n.run(t, "ctr", "images", "import", "/srv/"+file)
	n.version = strings.TrimSuffix(strings.TrimPrefix(file, "nvidia-shim-node_"), ".tar")
	n.image = "localhost/nvidia-shim-node:" + n.version
	return n
}

// inLog is what the pod prints.
const inLog = "/srv/node.log"

// start runs the image as a pod does: containerd's restart does not end it.
func (n *node) start(t *testing.T, args ...string) {
	t.Helper()
	n.run(t, append(slices.Concat(n.pod, []string{"--detach", "--log-uri", "file://" + inLog, n.image, "node", "/usr/bin/nvidia-shimctl", "node"}), args...)...)
}

// serve runs the pod's second container until the test ends.
func (n *node) serve(t *testing.T) {
	t.Helper()
	args := slices.Clone(n.pod)
	for i, arg := range args {
		args[i] = strings.Replace(arg, "system.slice:node:node", "system.slice:node:serve", 1)
	}
	n.run(t, append(args, "--detach", n.image, "serve", "/usr/bin/nvidia-shimctl", "serve", "--host-root", "/host", "--listen", serveAddress)...)
	t.Cleanup(func() { n.run(t, "ctr", "tasks", "delete", "--force", "serve") })
}

// wait waits for the end of the pod, and returns its output and exit status.
func (n *node) wait(t *testing.T) (output string, status int) {
	t.Helper()
	// Wait at the shim, which survives a restart of containerd.
	bootstrap := n.run(t, "cat", "/run/containerd/io.containerd.runtime.v2.task/"+namespace+"/node/bootstrap.json")
	service, ctx := api.TaskService(t, []byte(bootstrap), fmt.Sprintf("/proc/%d/root", n.systemd.PID()), namespace)
	exit, err := service.Wait(ctx, &taskapi.WaitRequest{ID: "node"})
	if err != nil {
		t.Fatal(err)
	}
	n.run(t, "ctr", "tasks", "delete", "node")
	n.run(t, "ctr", "containers", "delete", "node")
	return n.run(t, "sh", "-c", "cat "+inLog+"; rm "+inLog), int(exit.ExitStatus)
}

// stop ends the pod as the kubelet does.
func (n *node) stop(t *testing.T) {
	t.Helper()
	n.run(t, "ctr", "tasks", "kill", "--signal", "SIGTERM", "node")
	if output, status := n.wait(t); status != 0 {
		t.Errorf("the pod's exit status is %d:\n%s", status, output)
	}
}

// ready returns a function that reports whether the label has this value.
func (n *node) ready(want string) func() bool {
	return func() bool { return n.api.Ready() == want }
}

// awaitRounds waits for two whole rounds of the pod: each restores a label, and the first that does
// so may have begun before.
func (n *node) awaitRounds(t *testing.T) {
	t.Helper()
	for range 3 {
		n.api.SetReady("unknown")
		testenv.Await(t, "a round of the pod", func() bool { return n.api.Ready() != "unknown" })
	}
}

// once runs one round, and checks the exit status and whether the daemon was restarted.
func (n *node) once(t *testing.T, status int, restarted bool, args ...string) string {
	t.Helper()
	before := n.daemon(t)
	n.run(t, "systemctl", "reset-failed", "containerd") // five starts within ten seconds are its limit
	n.start(t, append(args, "--once")...)
	output, got := n.wait(t)
	if got != status {
		t.Fatalf("%q: exit status %d, want %d:\n%s", args, got, status, output)
	}
	if got := n.daemon(t) != before; got != restarted {
		t.Fatalf("%q: containerd was restarted: %t, want %t\n%s", args, got, restarted, output)
	}
	return output
}

// daemon names this run of containerd.
func (n *node) daemon(t *testing.T) string {
	t.Helper()
	return n.run(t, "systemctl", "show", "--property", "InvocationID", "containerd")
}

// state is what an installation changes.
func (n *node) state(t *testing.T) string {
	t.Helper()
	return n.etc(t) + n.run(t, "sh", "-c", "find /usr/local/bin /opt /etc/nvidia-shim -printf '%M %u:%g %p %l\\n' -type f -exec sha256sum {} + | sort")
}

// stateGone checks that the shim left neither views nor its state directory.
func (m *machine) stateGone(t *testing.T) {
	t.Helper()
	const dir = inDriver + "/state"
	if r := m.try(t, nil, "sh", "-c", "ls -ld "+dir+"; grep -F '"+dir+"' /proc/1/mountinfo"); r.Output != "" {
		t.Errorf("the state directory is still there: %s", r.Output)
	}
}

func (n *node) useGPU(t *testing.T) {
	t.Helper()
	c := n.sleep(t, 1, containerOptions{runtime: installedShim})
	c.check(t)
	c.remove(t)
}

func TestTheNodeImageInstallsRepairsAndRemoves(t *testing.T) {
	n := startNode(t)
	before := n.state(t)
	dev := filepath.Join(n.Driver.DevRoot, "dev")
	if err := os.RemoveAll(filepath.Join(dev, "nvidia1")); err != nil {
		t.Fatal(err)
	}
	simhost.Want(t, n.once(t, 0, true), "found containerd (", "write "+installedShim)
	simhost.Want(t, n.run(t, "cat", runtimeclass.DefaultContainerdConfig), "runtimes.nvidia]")
	n.api.Want(t, "true", n.version, 1)
	n.useGPU(t)
	installed := n.state(t)

	if out := n.once(t, 0, false); strings.Contains(out, "write") {
		t.Errorf("a second round: %s", out)
	}
	n.run(t, "sh", "-c", "rm "+installedCtl+"; echo >>"+installedShim+"; chmod 700 "+installedShim)
	n.once(t, 0, false)
	if after := n.state(t); after != installed {
		t.Errorf("changed programs are not repaired: %s", changed(installed, after))
	}
	n.run(t, "cp", runtimeclass.DefaultContainerdConfig+hosttree.BackupSuffix, runtimeclass.DefaultContainerdConfig)
	n.once(t, 0, true)
	if after := n.state(t); after != installed {
		t.Errorf("the configuration is not repaired: %s", changed(installed, after))
	}
	// A process that ended between the two.
	n.run(t, "sh", "-c", "echo containerd "+runtimeclass.DefaultContainerdConfig+" >/run/nvidia-shim-node.restart")
	n.once(t, 0, true)
	n.once(t, 0, false)
	n.api.Want(t, "true", n.version, 1)

	c := n.sleep(t, 1, containerOptions{runtime: installedShim})
	simhost.Want(t, n.once(t, 1, true, "--uninstall"), installedShim+" stays, because containers run with it")
	c.check(t)
	c.remove(t)
	n.once(t, 0, false, "--uninstall")
	if after := n.state(t); after != before {
		t.Errorf("uninstall left: %s", changed(before, after))
	}
	n.stateGone(t)
	n.api.Want(t, "", "", 3) // ready before, version after the removal
	n.once(t, 0, false, "--uninstall")
}

// A program that cannot be run after it was installed is a problem that check finds.
func TestTheOldStateReturnsIfCheckFails(t *testing.T) {
	n := startNode(t)
	n.run(t, "sh", "-c", "mkdir /opt/noexec && mount -t tmpfs -o noexec tmpfs /opt/noexec")
	before := n.state(t)
	noexec := []string{"--bin-dir", "/opt/noexec"}
	simhost.Want(t, n.once(t, 1, true, noexec...), "check after the installation: shim: ", "permission denied", "restoring the files")
	if after := n.state(t); after != before {
		t.Errorf("the old state did not return: %s", changed(before, after))
	}
	n.api.Want(t, "false", "", 1)

	// The same with an older installation, which stays in use.
	n.once(t, 0, true)
	installed := n.state(t)
	n.once(t, 1, true, noexec...)
	if after := n.state(t); after != installed {
		t.Errorf("the older installation did not return: %s", changed(installed, after))
	}
	n.useGPU(t)
	n.api.Want(t, "true", n.version, 2)
}

// The handler has the form for the running containerd.
func TestTheNodeFollowsAnUpgradeOfContainerd(t *testing.T) {
	n := startNode(t)
	const dropIn = "/etc/systemd/system/containerd.service.d"
	// The version is asked of a program in a directory of services only.
	installed := func(program string) {
		n.run(t, "sh", "-c", "mkdir -p /opt/bin && ln -sfn "+inBin+"/"+program+" /opt/bin/containerd")
	}
	installed("daemons/containerd-2.3/containerd")
	n.run(t, "sh", "-c", "mkdir "+dropIn+" && printf '[Service]\nExecStart=\nExecStart="+inBin+"/daemons/containerd-2.3/containerd\n' >"+dropIn+"/older.conf")
	n.run(t, "sh", "-c", "systemctl daemon-reload && systemctl restart containerd")
	n.once(t, 0, true)
	simhost.Want(t, n.run(t, "cat", runtimeclass.DefaultContainerdConfig), `runtime_path = "`+installedShim+`"`)
	n.useGPU(t)
	installed("tools/containerd")
	n.run(t, "sh", "-c", "rm -r "+dropIn+" && systemctl daemon-reload && systemctl restart containerd")
	n.once(t, 0, true)
	simhost.Want(t, n.run(t, "cat", runtimeclass.DefaultContainerdConfig), `runtime_type = "`+runtimeclass.RuntimeType+`"`)
	n.once(t, 0, false)
	n.useGPU(t)
}

// Without a driver nothing is changed.
func TestANodeWithoutDriverStaysAsItIs(t *testing.T) {
	n := startNode(t)
	if err := os.RemoveAll(filepath.Join(n.Driver.ProcRoot, "driver")); err != nil {
		t.Fatal(err)
	}
	before := n.state(t)
	simhost.Want(t, n.once(t, 1, false), "not installed: driver: ")
	if after := n.state(t); after != before {
		t.Errorf("it was changed: %s", changed(before, after))
	}
	n.api.Want(t, "false", "", 1)
}

// The pod follows files and labels, and leaves the node installed when it ends.
func TestTheNodePodFollowsTheNode(t *testing.T) {
	n := startNode(t)
	before := n.state(t)
	n.start(t, "--interval", "100ms")
	testenv.Await(t, "the node is ready", n.ready("true"))
	n.serve(t) // when containerd has been restarted
	installed := n.state(t)
	n.useGPU(t)
	simhost.Want(t, n.metrics(t), "nvidia_shim_nvml_up 1", `nvidia_shim_creations_total{gpu="true"} 1`)
	// The pod may be running it.
	n.run(t, "sh", "-c", "cp "+installedCtl+" /srv/changed && echo >>/srv/changed && mv /srv/changed "+installedCtl)
	testenv.Await(t, "a changed program is repaired", func() bool { return n.state(t) == installed })

	n.api.SetLabel(removeLabel, "true")
	testenv.Await(t, "the node is as it was", func() bool { return n.ready("")() && n.state(t) == before })
	n.api.SetLabel(removeLabel, "false")
	testenv.Await(t, "the node is ready again", n.ready("true"))

	n.stop(t)
	if after := n.state(t); after != installed {
		t.Errorf("the node did not stay installed: %s", changed(installed, after))
	}
}

// A new version of the driver is installed while the pod runs, with other nodes and files.
func TestTheNodePodFollowsAnUpgradeOfTheDriver(t *testing.T) {
	n := startNode(t)
	n.start(t, "--interval", "100ms")
	testenv.Await(t, "the node is ready", n.ready("true"))
	installed := n.state(t)
	n.run(t, installedCtl, "cdi", "--output", cdispec.Path)
	old := n.run(t, "cat", cdispec.Path)

	// The new module can be loaded only after the old one is unloaded.
	testtree.Check(t, os.RemoveAll(filepath.Join(n.Driver.ProcRoot, "driver")))
	testenv.Await(t, "the node is not ready", n.ready("false"))
	for _, name := range []string{"nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1", "nvidia2"} {
		testtree.Check(t, os.Remove(filepath.Join(n.Driver.DevRoot, "dev", name)))
	}
	n.awaitRounds(t)
	if n.run(t, "cat", cdispec.Path) != old {
		t.Errorf("%s changed without a driver", cdispec.Path)
	}
	testtree.Check(t, n.Driver.Upgrade("999.1.2"))
	testenv.Await(t, "the node is ready again", n.ready("true"))
	testenv.Await(t, cdispec.Path+" is that of the new driver", func() bool {
		now := n.run(t, "cat", cdispec.Path)
		return strings.Contains(now, "999.1.2") && now == n.run(t, installedCtl, "cdi")
	})
	n.useGPU(t)
	n.run(t, "rm", "-r", filepath.Dir(cdispec.Path))
	if after := n.state(t); after != installed {
		t.Errorf("the installation changed: %s", changed(installed, after))
	}
	n.stop(t)
}
