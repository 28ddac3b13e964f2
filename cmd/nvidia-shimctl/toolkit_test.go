package main

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/toolkit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// toolkitTree makes a host with NVIDIA's toolkit configured by one of the fixtures.
func toolkitTree(t *testing.T, fixture, path string) (root string, install []string) {
	t.Helper()
	root, _, from := installTree(t, "v2.4.2", containerdTOML)
	text, err := os.ReadFile(filepath.Join("../../internal/toolkit/testdata", fixture))
	testtree.Check(t, err)
	write(t, filepath.Join(root, path), string(text))
	return root, []string{"install", "--root", root, "--containerd-version", "2.4.2", "--from", from}
}

func TestInstallFromToolkitAndBack(t *testing.T) {
	for _, path := range toolkit.Paths {
		root, install := toolkitTree(t, "operator.toml", path)
		before := testtree.Tree(t, root)
		file := filepath.Join(root, config.DefaultPath)
		status, diff, _ := ctl(t, append(install, "--from-toolkit", "--dry-run")...)
		if status != 0 || !strings.Contains(diff, "+driver-root = '/run/nvidia/driver'\n") || !reflect.DeepEqual(testtree.Tree(t, root), before) {
			t.Errorf("a dry run: %d %s", status, diff)
		}
		contains(t, diff, path+", for "+config.DefaultPath, "carried over      nvidia-container-cli.root = '/run/nvidia/driver', here host.driver-root: device nodes are looked up in /dev", "note: in Kubernetes", "to be stricter")
		if status, out, errs := ctl(t, append(install, "--from-toolkit")...); status != 0 || strings.Count(out, "carried over") == 0 {
			t.Fatalf("%d %s %s", status, out, errs)
		}
		if c, err := config.Load(file); err != nil || c.Host.DriverRoot != "/run/nvidia/driver" || c.Policy.AcceptEnvWhenUnprivileged {
			t.Errorf("%+v %v", c, err)
		}
		installed := testtree.Tree(t, root)
		// Installing again changes nothing; with another file of the toolkit, our file changes.
		status, out, _ := ctl(t, append([]string{"--json"}, append(install, "--toolkit-config="+path)...)...)
		var o installation
		decode(t, out, &o)
		if status != 0 || o.Changed || len(o.Written) != 0 || o.Toolkit == nil || o.Toolkit.From != path || len(o.Toolkit.Options) < 15 || !reflect.DeepEqual(testtree.Tree(t, root), installed) {
			t.Errorf("again: %d %+v", status, o)
		}
		other := filepath.Join(root, "other.toml")
		write(t, other, "disable-require = true\n[nvidia-container-runtime]\nmode = \"legacy\"\n")
		status, _, errs := ctl(t, append(install, "--toolkit-config=/other.toml")...)
		if c, err := config.Load(file); status != 0 || err != nil || !c.Policy.DisableRequire || c.Host.DriverRoot != "/" {
			t.Errorf("%d %s %+v %v", status, errs, c, err)
		}
		os.Remove(other)
		if status, _, errs := ctl(t, "uninstall", "--root", root); status != 0 || !reflect.DeepEqual(testtree.Tree(t, root), before) {
			t.Errorf("uninstall: %d %s %v", status, errs, testtree.Tree(t, root))
		}
	}
}

func TestAConfigurationOfTheOperatorsIsNotOverwritten(t *testing.T) {
	root, install := toolkitTree(t, "package.toml", toolkit.Paths[0])
	install = append(install, "--from-toolkit")
	file := filepath.Join(root, config.DefaultPath)
	write(t, file, "[log]\nlevel = \"debug\"\n")
	before := testtree.Tree(t, root)
	for _, args := range [][]string{install, append(install, "--dry-run")} {
		status, _, errs := ctl(t, args...)
		if status != 1 || !reflect.DeepEqual(testtree.Tree(t, root), before) {
			t.Errorf("%q: %d", args, status)
		}
		contains(t, errs, config.DefaultPath+" exists and is not overwritten", "\nload-kernel-modules = true\n")
	}
	// A file with the same settings is accepted, and stays after uninstall.
	write(t, file, "# mine\npolicy.disable-require = true\n[host]\nload-kernel-modules = true\n[container]\n"+
		`default-capabilities = ["compute", "compat32", "graphics", "utility", "video", "display", "ngx"]`)
	before = testtree.Tree(t, root)
	for _, args := range [][]string{install, {"uninstall", "--root", root}} {
		if status, _, errs := ctl(t, args...); status != 0 || testtree.Tree(t, root)[config.DefaultPath] != before[config.DefaultPath] {
			t.Errorf("%q: %d %s", args, status, errs)
		}
	}
	if now := testtree.Tree(t, root); !reflect.DeepEqual(now, before) {
		t.Errorf("not as before: %v", now)
	}
	// A file that install wrote and the operator has changed since belongs to the operator.
	os.Remove(file)
	if status, _, errs := ctl(t, install...); status != 0 {
		t.Fatal(errs)
	}
	text, err := os.ReadFile(file)
	testtree.Check(t, err)
	write(t, file, string(text)+"\n[log]\nlevel = \"debug\"\n")
	before = testtree.Tree(t, root)
	if status, _, errs := ctl(t, install...); status != 1 || !strings.Contains(errs, "is not overwritten") {
		t.Errorf("%d %s", status, errs)
	}
	status, out, _ := ctl(t, "uninstall", "--root", root)
	if status != 0 || testtree.Tree(t, root)[config.DefaultPath] != before[config.DefaultPath] || !strings.Contains(out, config.DefaultPath+" stays: it was changed") {
		t.Errorf("uninstall: %d %s", status, out)
	}
}

// The steps of docs/from-nvidia-toolkit.md on a node of the GPU operator, and back. When the
// toolkit stops, it removes its runtime and its file.
func TestTheStepsFromTheOperatorsToolkit(t *testing.T) {
	const theirs = "etc/containerd/conf.d/99-nvidia.toml"
	const runtime = "[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.nvidia]\n  runtime_type = \"io.containerd.runc.v2\"\n" +
		"  [plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.nvidia.options]\n    BinaryName = \"/usr/local/nvidia/toolkit/nvidia-container-runtime\"\n"
	for _, version := range []string{"2.4.2", "2.0.10"} {
		root, _ := toolkitTree(t, "operator.toml", toolkit.Paths[1])
		_, _, from := installTree(t, "", "")
		main := strings.Replace(containerdTOML, "# mine\n", "imports = [\"/etc/containerd/conf.d/*.toml\"]\n", 1)
		write(t, filepath.Join(root, runtimeclass.DefaultContainerdConfig), main)
		write(t, filepath.Join(root, theirs), "version = 3\n"+runtime)
		before := testtree.Tree(t, root)
		handler := func(when string) runtimeclass.Runtime {
			c, err := runtimeclass.ReadConfiguration(runtimeclass.Host{Tree: hosttree.Tree{Root: root}}, runtimeclass.DefaultContainerdConfig)
			if r := c.Runtimes["nvidia"]; err != nil || !r.Ours() {
				t.Errorf("%s, %s: %+v %v", version, when, r, err)
			}
			return c.Runtimes["nvidia"]
		}
		install := []string{"install", "--root", root, "--containerd-version", version, "--from", from}
		if status, _, errs := ctl(t, append(install, "--from-toolkit")...); status != 1 || !strings.Contains(errs, "--replace to override it") {
			t.Errorf("%s, without --replace: %d %s", version, status, errs)
		}
		fine(t, append(install, "--from-toolkit", "--replace")...)
		if r := handler("replaced"); strings.Contains(fmt.Sprint(r.Options["BinaryName"]), "nvidia") {
			t.Errorf("%s: %+v", version, r)
		}
		fine(t, "uninstall", "--root", root)
		if now := testtree.Tree(t, root); !reflect.DeepEqual(now, before) {
			t.Errorf("%s: uninstall left %v", version, now)
		}
		fine(t, append(install, "--from-toolkit", "--replace")...)
		testtree.Check(t, os.Remove(filepath.Join(root, theirs)))
		fine(t, install...)
		handler("without the toolkit")
		fine(t, "uninstall", "--root", root)
		delete(before, "/"+theirs)
		if now := testtree.Tree(t, root); !reflect.DeepEqual(now, before) {
			t.Errorf("%s: left %v", version, now)
		}
	}
}
