package ctl

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// CDI files that NVIDIA's toolkit makes later run the link of `install --gpus-flag`: it executes
// the toolkit's program.
func TestTheCDIHookStepsAsideForNVIDIAs(t *testing.T) {
	const theirs = "/usr/bin/" + runtimeclass.CDIHookName
	tree, dir := simhost.NewTree(t), t.TempDir()
	tree.Type(t, nil, fmt.Sprintf("mkdir -p /etc/docker %[1]s/upper %[1]s/work && mount -t overlay -o lowerdir=/usr/bin,upperdir=%[1]s/upper,workdir=%[1]s/work overlay /usr/bin && rm -f /usr/local/bin/nvidia-*-hook /usr/bin/nvidia-*-hook", dir))
	simhost.WriteFile(t, tree.Root+runtimeclass.DefaultDockerConfig, "{}")
	simhost.WriteFile(t, tree.Root+"/usr/local/bin/dockerd", "")
	ctl := filepath.Join(testenv.ShimDir(), version.Ctl)
	tree.Type(t, nil, ctl+" install --target docker --docker-config "+runtimeclass.DefaultDockerConfig+" --gpus-flag")

	const hook = "env -i A=1 B= timeout 20 /usr/local/bin/nvidia-cdi-hook update-ldcache --folder 'a b'"
	run := func(line, status string, words ...string) {
		t.Helper()
		out := tree.Type(t, nil, line+" 2>&1; echo status $?")
		simhost.Want(t, out, append(words, "status "+status)...)
		if strings.Count(out, "\n") != 2 {
			t.Errorf("more than one line: %s", out)
		}
	}
	const none = "nvidia-cdi-hook: NVIDIA's toolkit is not installed, and this is a link to nvidia-shimctl"
	run(hook, "1", none)
	// Two copies of this program do not execute each other.
	tree.Type(t, nil, fmt.Sprintf("cp %s /usr/local/sbin/nvidia-cdi-hook && cp %[1]s %[2]s", ctl, theirs))
	run(hook, "1", none)
	run(strings.Replace(hook, "local/bin", "local/sbin", 1), "1", none)
	tree.Type(t, nil, "rm /usr/local/sbin/nvidia-cdi-hook "+theirs)

	script := simhost.Script(t, filepath.Join(dir, "script"), `echo "$0|$1|$2|$3|$#|$A|${B-unset}|"; exit 7`+"\n")
	tree.Type(t, nil, "cp "+script+" "+theirs)
	const passed = theirs + "|update-ldcache|--folder|a b|3|1||"
	run(hook, "7", passed)
	// There, root's files appear to have another owner.
	run("unshare --user "+hook, "7", passed)
	tree.Type(t, nil, "chmod 775 "+theirs)
	run(hook, "1", theirs+" is writable by users other than root")
	tree.Type(t, nil, "chmod 755 "+theirs+" && chown 1000 "+theirs)
	run(hook, "1", theirs+" is owned by uid 1000")
	tree.Type(t, nil, ctl+" uninstall && ! test -e /usr/local/bin/nvidia-cdi-hook && test -e "+theirs)
}
