package docs

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/containerd-shim-nvidia/containerd-shim-nvidia/"

// floors are those of docs/architecture.md, the highest first. A package imports packages of its own
// floor and of lower ones. A package that is not named is on the floor of the nearest directory above
// it that is.
var floors = [][]string{
	{"cmd"},
	{
		"internal/cdispec", "internal/check", "internal/healthwatch", "internal/hostinfo", "internal/idle", "internal/install", "internal/kubeapi",
		"internal/node", "internal/prepare", "internal/preview", "internal/report", "internal/runargs", "internal/serve",
		"internal/status", "internal/toolkit",
	},
	{"shim", "runtimeclass"},
	{"internal/gpumemory", "internal/nvml", "internal/podresources", "internal/probe"},
	{"gpuinject"},
	{"gpuinject/grant", "gpuinject/place"},
	{
		"gpuinject/host", "gpuinject/kubelet", "gpuinject/policy", "gpuinject/procmask", "gpuinject/question",
		"gpuinject/request", "gpuinject/require", "gpuinject/sockets",
	},
	{
		"gpuinject/bundle", "gpuinject/config", "gpuinject/devnode", "gpuinject/health", "gpuinject/image", "gpuinject/ldcache", "gpuinject/memlimit",
		"gpuinject/state",
		"gpuinject/verdict", "gpuinject/view",
	},
	{
		"internal/advisories", "internal/atomicfile", "internal/cmdline", "internal/criu", "internal/fault", "internal/hosttree", "internal/mountns",
		"internal/openat", "internal/procfs", "internal/rawio", "internal/semver", "internal/term", "internal/tomledit", "internal/trusted", "internal/version",
	},
}

func TestImportsPointDown(t *testing.T) {
	named := map[string]bool{}
	for from, imports := range imports(t) {
		below, name := floor(from)
		named[name] = true
		if below < 0 {
			t.Errorf("%s is on no floor: name it in floors", from)
		}
		for _, to := range imports {
			if above, _ := floor(to); above < below { // of no floor, too: a package of tests
				t.Errorf("%s imports %s, which is on a higher floor", from, to)
			}
		}
	}
	for _, name := range slices.Concat(floors...) {
		if !named[name] {
			t.Errorf("there is no package %s: remove it from floors", name)
		}
	}
}

// floor is the floor of a package, 0 for the highest and -1 for none, and the name in floors.
func floor(pkg string) (floor int, name string) {
	floor = -1
	for i, names := range floors {
		for _, n := range names {
			if (pkg == n || strings.HasPrefix(pkg, n+"/")) && len(n) > len(name) {
				floor, name = i, n
			}
		}
	}
	return floor, name
}

// imports are the packages of the product, and what each imports of the others.
func imports(t *testing.T) map[string][]string {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./cmd/...", "./internal/...", "./shim/...", "./runtimeclass/...", "./gpuinject/...")
	cmd.Dir, cmd.Env = "../..", append(os.Environ(), "CGO_ENABLED=1") // a package of cgo has files only with it
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	all := map[string][]string{}
	for decoder := json.NewDecoder(strings.NewReader(string(out))); decoder.More(); {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := decoder.Decode(&p); err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(p.ImportPath, module)
		all[name] = nil
		for _, imported := range p.Imports {
			if to, ours := strings.CutPrefix(imported, module); ours {
				all[name] = append(all[name], to)
			}
		}
	}
	return all
}
