package systemd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// unit adds lines to containerd's unit; without any they are as before.
func (m *machine) unit(t *testing.T, lines string) {
	t.Helper()
	const dir = "/run/systemd/system/containerd.service.d"
	script := "mkdir -p " + dir + " && printf '" + lines + "' >" + dir + "/test.conf && systemctl daemon-reload && systemctl reset-failed"
	m.run(t, "sh", "-c", script)
}

// loseRegistration restores containerd's configuration from before the installation.
func (m *machine) loseRegistration(t *testing.T) {
	t.Helper()
	m.run(t, "cp", runtimeclass.DefaultContainerdConfig+hosttree.BackupSuffix, runtimeclass.DefaultContainerdConfig)
}

// awaitLog waits until the pod has printed a text.
func (n *node) awaitLog(t *testing.T, text string) {
	t.Helper()
	testenv.Await(t, "the pod says "+text, func() bool {
		log, _ := os.ReadFile(filepath.Join(n.dir, inLog))
		return strings.Contains(string(log), text)
	})
}

// containerd keeps its old configuration until a restart succeeds.
func TestARestartThatFailsIsRepeated(t *testing.T) {
	n := startNode(t)
	before := n.state(t)
	const refuse = "[Unit]\\nRefuseManualStop=yes\\n"
	n.once(t, 0, true)
	n.unit(t, refuse)
	simhost.Want(t, n.once(t, 1, false, "--uninstall"), "uninstall again to remove the programs")
	if !n.exists(t, installedShim) {
		t.Error("the programs are gone before containerd has read its configuration")
	}
	n.unit(t, "")
	n.once(t, 0, true, "--uninstall")
	if after := n.state(t); after != before {
		t.Errorf("uninstall left: %s", changed(before, after))
	}

	n.once(t, 0, true)
	n.loseRegistration(t)
	lost, daemon := n.state(t), n.daemon(t)
	n.unit(t, refuse)
	n.start(t, "--interval", "100ms")
	n.awaitLog(t, "restoring the files")
	n.awaitRounds(t)
	if after := n.state(t); after != lost || n.daemon(t) != daemon {
		t.Errorf("containerd was restarted, or files did not come back: %s", changed(lost, after))
	}
	n.unit(t, "")
	testenv.Await(t, "containerd is restarted", func() bool { return n.daemon(t) != daemon })
	n.run(t, "systemctl", "start", "containerd") // waits for the end of its start
	n.stop(t)
}

// An administrator may have stopped it.
func TestNothingIsInstalledForADaemonThatDoesNotRun(t *testing.T) {
	n := startNode(t)
	n.start(t, "--interval", "100ms")
	testenv.Await(t, "the node is ready", n.ready("true"))
	installed := n.state(t)
	n.run(t, "systemctl", "stop", "containerd")
	n.loseRegistration(t)
	lost := n.state(t)
	testenv.Await(t, "the node is not ready", n.ready("false"))
	n.awaitLog(t, "problem: install: containerd does not run; fix: start it")
	n.awaitRounds(t)
	if after := n.state(t); after != lost {
		t.Errorf("it was changed: %s", changed(lost, after))
	}
	if n.try(t, nil, "systemctl", "is-active", "containerd").ExitCode == 0 {
		t.Error("containerd was started")
	}
	n.run(t, "systemctl", "start", "containerd")
	testenv.Await(t, "the node is ready again", n.ready("true"))
	if after := n.state(t); after != installed {
		t.Errorf("the node is not as it was: %s", changed(installed, after))
	}
	n.stop(t)
}

// containerd is restarted for the installation and for its undoing, and then left to the
// administrator.
func TestADaemonThatDoesNotComeBackIsNotStartedAgain(t *testing.T) {
	n := startNode(t)
	before := n.etc(t)
	n.unit(t, "[Service]\\nExecStartPre=/bin/sh -c \"echo >>/run/starts; test ! -e /run/broken\"\\n")
	n.run(t, "touch", "/run/broken")
	n.start(t, "--interval", "100ms")
	n.awaitLog(t, "containerd does not run")
	n.awaitRounds(t)
	if starts := n.run(t, "cat", "/run/starts"); starts != "\n\n" {
		t.Errorf("containerd was started %d times", len(starts))
	}
	if after := n.etc(t); after != before {
		t.Errorf("the configuration did not come back: %s", changed(before, after))
	}
	n.run(t, "rm", "/run/broken")
	n.run(t, "systemctl", "start", "containerd")
	testenv.Await(t, "the node is ready", n.ready("true"))
	n.useGPU(t)
	n.stop(t)
}
