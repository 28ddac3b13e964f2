package hosts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// ctkNode is a tree in which the real nvidia-ctk and this tool edit containerd's configuration.
type ctkNode struct {
	*nodeTree
	ctk, containerd string
}

func newCTKNode(t *testing.T, ctk, containerd string) ctkNode {
	t.Helper()
	n := ctkNode{newNodeTree(t, "/usr/local/bin"), ctk, "/usr/local/bin/containerd"}
	testtree.Check(t, exec.Command("cp", "-L", containerd, n.Root+n.containerd).Run())
	n.write(t, runtimeclass.DefaultContainerdConfig, ctkConfig)
	return n
}

// buildCTK builds the real nvidia-ctk.
func buildCTK(t *testing.T) string {
	t.Helper()
	ctk := filepath.Join(t.TempDir(), "nvidia-ctk")
	build := exec.Command("go", "build", "-trimpath", "-o", ctk, "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk")
	build.Dir = "../tools/nvidia-ctk"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return ctk
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
	return (strings.Contains(text, "io.containerd.nvidia.v2") || strings.Contains(text, version.Shim)) && !strings.Contains(text, "nvidia-container-runtime")
}

// ctkConfig names runc: nvidia-ctk 1.20.2 would take the built-in one from containerd 1.7.
const ctkConfig = `version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
`

// The commands of the orders below, as a user types them: N is nvidia-ctk, I install, and U uninstall.
// A small letter sets the default runtime, too, and H is install with a handler of another name.
func (n ctkNode) step(t *testing.T, letter byte) {
	t.Helper()
	command := map[byte]string{
		'N': n.ctk + " --quiet runtime configure --runtime=containerd",
		'n': n.ctk + " --quiet runtime configure --runtime=containerd --set-as-default",
		'I': ctlPath() + " install --target containerd --replace",
		'i': ctlPath() + " install --target containerd --replace --set-default",
		'H': ctlPath() + " install --target containerd --handler nvidia-shim",
		'U': ctlPath() + " uninstall --target containerd",
	}[letter]
	if out, ok := n.try(t, command); !ok {
		t.Fatalf("%s\n%s", command, out)
	}
}

// After install the handler is ours, and stays so if it is in a file of its own. A second time changes
// nothing. After uninstall containerd runs what it would run if only nvidia-ctk had been used.
func TestNVIDIAsToolAndInstallInEveryOrder(t *testing.T) {
	tools, err := testenv.ToolsDir()
	testtree.Check(t, err)
	ctk := buildCTK(t)
	for _, containerd := range []string{filepath.Join(tools, "containerd"), testenv.ShimDir() + "/daemons/containerd-1.7/containerd"} {
		for _, order := range []string{"NNII", "IINN", "NINI", "ININII", "iiNN", "IInn", "nnii", "HHNN", "HNHN"} {
			t.Run(filepath.Base(filepath.Dir(containerd))+" "+order, func(t *testing.T) {
				alone, n := newCTKNode(t, ctk, containerd), newCTKNode(t, ctk, containerd)
				others, _ := n.runtimes(t)
				var before []string
				for i := range len(order) {
					if strings.Contains("Nn", order[i:i+1]) {
						alone.step(t, order[i])
					}
					n.step(t, order[i])
					list, _ := n.runtimes(t)
					_, err := os.Stat(n.Root + "/etc/containerd/conf.d/nvidia-shim.toml")
					kept := strings.Contains("IiH", order[i:i+1]) || err == nil
					if ours := isOurs(list["nvidia"]) || isOurs(list["nvidia-shim"]); kept && !ours || fmt.Sprint(list["runc"]) != fmt.Sprint(others["runc"]) {
						t.Errorf("%s[%d]: ours: %v\n%v, was\n%v", order, i, ours, list, others)
					}
					files := n.files(t)
					if i > 0 && order[i-1] == order[i] {
						simhost.Same(t, order+": the second time changed", before, files)
					}
					before = files
				}
				n.step(t, 'U')
				got, gotDefault := n.runtimes(t)
				want, wantDefault := alone.runtimes(t)
				if !reflect.DeepEqual(got, want) || gotDefault != wantDefault {
					t.Errorf("default %q, want %q; runtimes\n%v, want\n%v", gotDefault, wantDefault, got, want)
				}
				for _, name := range runtimeclass.Programs {
					if _, err := os.Stat(n.Root + "/usr/local/bin/" + name); err == nil {
						t.Errorf("%s is left", name)
					}
				}
				if text, _ := n.try(t, "grep -r nvidia-shim /etc/containerd --include=*.toml"); text != "" {
					t.Errorf("left: %s", text)
				}
			})
		}
	}
}
