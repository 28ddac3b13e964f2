package hosts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// ctkNode is a tree in which the real nvidia-ctk and this tool edit containerd's configuration.
type ctkNode struct {
	*nodeTree
	ctk, containerd string
}

func newCTKNode(t *testing.T, containerd string) ctkNode {
	t.Helper()
	n := ctkNode{newNodeTree(t, "/usr/local/bin"), filepath.Join(t.TempDir(), "nvidia-ctk"), "/usr/local/bin/containerd"}
	build := exec.Command("go", "build", "-trimpath", "-o", n.ctk, "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk")
	build.Dir = "../tools/nvidia-ctk"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	testtree.Check(t, exec.Command("cp", "-L", containerd, n.Root+n.containerd).Run())
	return n
}

// try runs a command in the tree.
func (n ctkNode) try(t *testing.T, command string) (out string, ok bool) {
	t.Helper()
	out, status, _ := n.run(t, "sleep 86400", command+" 2>&1")
	return out, status == "0"
}

// runtimes returns those that containerd says it will run, and its default.
func (n ctkNode) runtimes(t *testing.T) (list map[string]any, byDefault string) {
	t.Helper()
	out, ok := n.try(t, "("+n.containerd+" config dump 2>/dev/null)")
	var dump struct {
		Plugins map[string]struct {
			Containerd struct {
				Default  string         `toml:"default_runtime_name"`
				Runtimes map[string]any `toml:"runtimes"`
			} `toml:"containerd"`
		} `toml:"plugins"`
	}
	err := toml.Unmarshal([]byte(out), &dump)
	if !ok || err != nil {
		t.Fatalf("containerd config dump: %v\n%s", err, out)
	}
	for _, section := range []string{"io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri"} {
		if p, ok := dump.Plugins[section]; ok && p.Containerd.Runtimes != nil {
			return p.Containerd.Runtimes, p.Containerd.Default
		}
	}
	t.Fatalf("no runtimes in\n%s", out)
	return nil, ""
}

// isOurs reports whether a runtime of a dump starts this shim, and nothing of NVIDIA's toolkit.
func isOurs(runtime any) bool {
	text := fmt.Sprint(runtime)
	return (strings.Contains(text, "io.containerd.nvidia.v2") || strings.Contains(text, runtimeclass.ShimName)) && !strings.Contains(text, "nvidia-container-runtime")
}

// ctkConfig names runc: nvidia-ctk 1.20.2 would take the built-in one from containerd 1.7.
const ctkConfig = `version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
`

// N is nvidia-ctk, I is install, each as a user types it. After I the handler is ours, and stays so
// if it is in a file of its own. A second time changes nothing, and uninstall leaves what the toolkit
// wrote, or says which file nvidia-ctk wrote again with our handler in it.
func TestNVIDIAsToolAndInstallInEveryOrder(t *testing.T) {
	tools, err := testenv.ToolsDir()
	testtree.Check(t, err)
	for _, containerd := range []string{filepath.Join(tools, "containerd"), testenv.ShimDir() + "/daemons/containerd-1.7/containerd"} {
		for _, order := range []string{"NNII", "IINN", "NINI", "ININII"} {
			t.Run(filepath.Base(filepath.Dir(containerd))+" "+order, func(t *testing.T) {
				n := newCTKNode(t, containerd)
				n.write(t, runtimeclass.DefaultContainerdConfig, ctkConfig)
				others, byDefault := n.runtimes(t)
				var before []string
				for i, step := range order {
					command := n.ctk + " --quiet runtime configure --runtime=containerd"
					if step == 'I' {
						command = ctlPath() + " install --target containerd --replace"
					}
					if out, ok := n.try(t, command); !ok {
						t.Fatalf("%s[%d]: %s\n%s", order, i, command, out)
					}
					list, now := n.runtimes(t)
					_, err := os.Stat(n.Root + "/etc/containerd/conf.d/nvidia-shim.toml")
					if ours := isOurs(list["nvidia"]); ours != (step == 'I' || err == nil) || now != byDefault || fmt.Sprint(list["runc"]) != fmt.Sprint(others["runc"]) {
						t.Errorf("%s[%d]: ours: %v, default %q, was %q\n%v, was\n%v", order, i, ours, now, byDefault, list, others)
					}
					files := n.files(t)
					if i > 0 && order[i-1] == order[i] {
						simhost.Same(t, order+": the second time changed", before, files)
					}
					before = files
				}
				out, ok := n.try(t, ctlPath()+" uninstall --target containerd")
				if written := strings.Contains(out, "("+runtimeclass.DefaultContainerdConfig+": nvidia)"); ok == written || written && order != "IINN" {
					t.Errorf("uninstall: %v %s", ok, out)
				}
				list, _ := n.runtimes(t)
				for name, runtime := range list {
					if isOurs(runtime) {
						t.Errorf("uninstall left %s: %v", name, runtime)
					}
				}
				if !strings.Contains(fmt.Sprint(list["nvidia"]), "nvidia-container-runtime") {
					t.Errorf("the toolkit's runtime is gone: %v", list)
				}
			})
		}
	}
}
