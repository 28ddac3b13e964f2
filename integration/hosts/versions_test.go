package hosts

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

// The bundle has the versions that real programs print, whether they run or are only installed.
func TestTheBundleHasTheVersionsOfRealPrograms(t *testing.T) {
	d := daemonsOfNodes(t)[0]
	n := newNodeTree(t, d.bin)
	n.write(t, "/etc/docker/daemon.json", `{"runtimes": {"gpu": {"runtimeType": "io.containerd.nvidia.v2"}}}`)
	want := map[string]string{}
	for name, from := range map[string]string{
		"containerd": n.Root + d.bin + "/containerd", "runc": n.Root + d.bin + "/runc",
		"kubelet": testenv.ShimDir() + "/kubernetes/kubelet",
	} {
		out, err := exec.Command(from, "--version").Output()
		testtree.Check(t, err)
		want[name], _, _ = strings.Cut(string(out), "\n")
	}
	// A program that only a process names is not executed.
	testtree.Check(t, os.Symlink(testenv.ShimDir()+"/kubernetes/kubelet", n.Root+"/usr/local/bin/kubelet"))
	n.ctl(t, d.process, "bundle --output /run/bundle.tar.gz", 0)
	out, err := exec.Command("tar", "-xzOf", filepath.Join(n.Root, "run/bundle.tar.gz"), "nvidia-shim/versions.json").Output()
	testtree.Check(t, err)
	var have map[string]any
	testtree.Check(t, json.Unmarshal(out, &have))
	for name, line := range want {
		if got, _ := have[name].(string); line == "" || !strings.HasSuffix(got, "/"+name+": "+line) {
			t.Errorf("%s: %q, want %q", name, got, line)
		}
	}
	for _, text := range []string{`"gpu": "io.containerd.nvidia.v2"`, `"driver": "driver 5`, `"k3s": "not found"`, `"dockerd": "dockerd is ` + testenv.ShimDir() + `/docker/dockerd, which is not executed`} {
		if !strings.Contains(string(out), text) {
			t.Errorf("no %s in %s", text, out)
		}
	}
}
