package hosts

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

const keepNode, removeNode = "node --once --host-root /", "node --once --host-root / --uninstall"

// kill runs nvidia-shimctl, and kills it just before it renames a file into place or removes it.
func (n *nodeTree) kill(t *testing.T, d daemonOfNode, args, file string) {
	t.Helper()
	command := "strace -f -b execve -o strace -e trace=renameat,unlinkat -e inject=renameat,unlinkat:signal=KILL -P /run/" + file + " -P " + file
	for fd := range 40 { // of the directory
		command += fmt.Sprintf(" -P /proc/self/fd/%d/%s", fd, file)
	}
	out, status, _ := n.run(t, d.process, command+" "+filepath.Join(testenv.ShimDir(), version.Ctl)+" "+args)
	if status != "137" {
		t.Fatalf("%s is not killed at %s: exit status %s\n%s", args, file, status, out)
	}
}

// then runs nvidia-shimctl after a kill, and compares the files.
func (n *nodeTree) then(t *testing.T, d daemonOfNode, args, what string, want []string) {
	t.Helper()
	if out, status, _ := n.run(t, d.process, filepath.Join(testenv.ShimDir(), version.Ctl)+" "+args); status != "0" {
		t.Fatalf("%s: exit status %s\n%s", args, status, out)
	}
	simhost.Same(t, what, want, n.files(t))
}

// A node command that was killed between two files completes its work when it is started again, and
// can be undone.
func TestTheNodeCommandIsKilledBetweenTwoFiles(t *testing.T) {
	d := daemonsOfNodes(t)[0]
	n := newNodeTree(t, d.bin)
	for name, text := range d.files {
		n.write(t, name, text)
	}
	simhost.Script(t, filepath.Join(n.Root, runtimeclass.DefaultBinDir, version.Ctl), "# an older one")
	before := n.files(t)
	n.ctl(t, d.process, keepNode, 0, d.install...)
	installed := n.files(t)
	n.then(t, d, removeNode, "removed", before)
	for i, file := range append([]string{
		version.Ctl + hosttree.BackupSuffix, "nvidia-shim-node.restart", "installed.json",
		"daemon.json" + hosttree.BackupSuffix, "daemon.json",
	}, runtimeclass.Programs[1:]...) {
		n.kill(t, d, keepNode, file)
		if i%3 == 0 {
			n.then(t, d, keepNode, "installed after "+file, installed)
			n.kill(t, d, removeNode, file)
		}
		n.then(t, d, removeNode, "removed after "+file, before)
	}
	left, err := filepath.Glob(n.Root + "/run/.nvidia*")
	if testtree.Check(t, err); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// An upgrade to a shim that does not start leaves the older programs, which containers run with.
func TestTheOlderProgramsReturnIfTheNewerFail(t *testing.T) {
	d := daemonsOfNodes(t)[0]
	n := newNodeTree(t, d.bin)
	n.ctl(t, d.process, keepNode, 0, d.install...)
	installed := n.files(t)
	n.Type(t, os.Environ(), "mkdir /run/newer && cp "+testenv.ShimDir()+"/nvidia-* /run/newer && echo >>/run/newer/"+version.Ctl)
	simhost.Script(t, filepath.Join(n.Root, "/run/newer", version.Shim), "echo broken >&2; exit 3\n")
	for range 2 {
		out, status, asked := n.run(t, d.process, "/run/newer/nvidia-shimctl "+keepNode+" 2>&1")
		if status != "1" || asked != "" {
			t.Errorf("exit status %s, systemctl was asked for %q", status, asked)
		}
		simhost.Want(t, out, "check after the installation: shim: ", "broken", "restoring the files")
		simhost.Same(t, "the older programs did not return", installed, n.files(t))
	}
	n.ctl(t, d.process, keepNode, 0)
}
