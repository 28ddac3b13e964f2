package main

import (
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/install"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// installation is the JSON output of install and uninstall.
type installation = install.Report

// write makes a file that only root can change.
func write(t *testing.T, name, text string) {
	t.Helper()
	testtree.Root{TB: t, Dir: "/"}.Write(name, text)
}

// installTree makes a root directory with a configuration, a containerd that prints its version,
// and programs to install.
func installTree(t *testing.T, version, config string) (root, daemon, from string) {
	t.Helper()
	other := testtree.NewRoot(t)
	daemon = other.Write("containerd", "#!/bin/sh\n[ \"$4\" = dump ] && exec cat \"$2\"\n[ \"$2\" = default ] || echo containerd github.com/containerd/containerd/v2 "+version+"\n")
	for _, name := range runtimeclass.Programs {
		from = filepath.Dir(other.Write("programs/"+name, "a program"))
	}
	root = t.TempDir()
	if config != "" {
		write(t, filepath.Join(root, runtimeclass.DefaultContainerdConfig), config)
	}
	return root, daemon, from
}

const containerdTOML = `version = 3
# mine
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
`

func TestInstallCommand(t *testing.T) {
	root, _, from := installTree(t, "", containerdTOML)
	file := filepath.Join(root, runtimeclass.DefaultContainerdConfig)
	testtree.Check(t, errors.Join(os.Chown(file, 7, 8), os.Chmod(file, 0o640)))
	before := testtree.Tree(t, root)
	args := []string{"install", "--root", root, "--containerd-version", "v2.3.7", "--from", from}

	status, diff, errs := ctl(t, append(args, "--dry-run", "--set-default")...)
	if status != 0 || errs != "" || !strings.Contains(diff, "\n--- /etc/containerd/config.toml\n+++ ") || !reflect.DeepEqual(testtree.Tree(t, root), before) {
		t.Errorf("a dry run: status %d, %s", status, diff)
	}
	contains(t, diff, `+  default_runtime_name = "nvidia"`, "containerd 2.3.7", "hostUsers: false", "would write /usr/local/bin/"+version.Shim)

	status, out, _ := ctl(t, args...)
	if status != 0 || !strings.Contains(out, "systemctl restart containerd") {
		t.Errorf("status %d, %s", status, out)
	}
	installed := testtree.Tree(t, root)
	status, out, _ = ctl(t, append([]string{"--json"}, args...)...)
	var o installation
	decode(t, out, &o)
	if status != 0 || o.Changed || len(o.Written)+len(o.Removed) != 0 || o.Restart != "" || o.Handler != "nvidia" || !reflect.DeepEqual(testtree.Tree(t, root), installed) {
		t.Errorf("a second installation: status %d, %+v", status, o)
	}

	if status, out, errs := ctl(t, "uninstall", "--root", root, "--dry-run"); status != 0 || !strings.Contains(out, "-# >>> nvidia-shim") || !reflect.DeepEqual(testtree.Tree(t, root), installed) {
		t.Errorf("uninstall --dry-run: %d %s %s", status, out, errs)
	}
	if status, _, errs := ctl(t, "uninstall", "--root", root); status != 0 || !reflect.DeepEqual(testtree.Tree(t, root), before) {
		t.Errorf("uninstall: %d %s, left %v", status, errs, testtree.Tree(t, root))
	}
}

// An upgrade keeps the default runtime of the first installation; --set-default=false takes it away.
func TestInstallKeepsTheDefault(t *testing.T) {
	for target, file := range map[string]string{"containerd": runtimeclass.DefaultContainerdConfig, "docker": runtimeclass.DefaultDockerConfig} {
		root, _, from := installTree(t, "", "")
		write(t, filepath.Join(root, "usr/bin", map[string]string{"containerd": "containerd", "docker": "dockerd"}[target]), "")
		before := testtree.Tree(t, root)
		install := []string{"install", "--root", root, "--from", from}
		for _, s := range []struct {
			args []string
			kept bool
			want string
		}{
			{[]string{"--set-default"}, true, "systemctl re"},
			{nil, true, "the configuration stays as it is"},
			{[]string{"--handler", "other"}, true, "systemctl re"},
			{[]string{"--set-default=false"}, false, "systemctl restart " + target},
		} {
			contains(t, fine(t, append(install, s.args...)...), s.want)
			if text := testtree.Tree(t, root)[file]; strings.Contains(text, "default") != s.kept {
				t.Errorf("%s %q: %s", target, s.args, text)
			}
		}
		fine(t, "uninstall", "--root", root)
		if now := testtree.Tree(t, root); !reflect.DeepEqual(now, before) {
			t.Errorf("%s: left %v", target, now)
		}
	}
}

// A dry run prints everything to a pipe, and patch(1) finds the difference in it.
func TestADryRunIsAPatch(t *testing.T) {
	if _, err := exec.LookPath("patch"); err != nil {
		t.Skipf("NOT TESTED: patch(1) is missing: %v", err)
	}
	root, _, from := installTree(t, "", containerdTOML)
	patch := exec.Command("patch", "-d", root, "-p1", "--fuzz=0")
	patch.Stdin = strings.NewReader(fine(t, "install", "--root", root, "--from", from, "--dry-run"))
	if out, err := patch.CombinedOutput(); err != nil || !strings.Contains(testtree.Tree(t, root)[runtimeclass.DefaultContainerdConfig], version.Shim) {
		t.Errorf("%v %s", err, out)
	}
}

func TestInstallOtherTargets(t *testing.T) {
	root, _, from := installTree(t, "v2.4.2", "")
	const tmpl = "/config-v3.toml.tmpl"
	k3s, rke2 := filepath.Dir(runtimeclass.DaemonOf("k3s").Config), filepath.Dir(runtimeclass.DaemonOf("rke2").Config)
	testtree.Check(t, errors.Join(os.MkdirAll(root+k3s, 0o755), os.MkdirAll(root+rke2, 0o755)))
	write(t, filepath.Join(root, "usr/bin/dockerd"), "")
	before := testtree.Tree(t, root)
	for target, file := range map[string]string{"k3s": k3s + tmpl, "rke2": rke2 + tmpl, "docker": runtimeclass.DefaultDockerConfig} {
		status, _, errs := ctl(t, "install", "--root", root, "--from", from, "--target", target)
		if text := testtree.Tree(t, root)[file]; status != 0 || !strings.Contains(text, "nvidia") {
			t.Errorf("%s: %d %s %s", target, status, errs, text)
		}
		if status, _, errs := ctl(t, "uninstall", "--root", root, "--target", target); status != 0 || !reflect.DeepEqual(testtree.Tree(t, root), before) {
			t.Errorf("%s: uninstall: %d %s, left %v", target, status, errs, testtree.Tree(t, root))
		}
	}
	if status, out, _ := ctl(t, "install", "--target", "kind"); status != 0 || !strings.Contains(out, "containerdConfigPatches:\n") {
		t.Errorf("kind: %d %s", status, out)
	}
}

// In a tree the operator gives the version of dockerd; an old version is refused as on a live host.
func TestInstallDockerOfAVersion(t *testing.T) {
	root, _, from := installTree(t, "", "")
	write(t, filepath.Join(root, "usr/bin/dockerd"), "")
	before := testtree.Tree(t, root)
	for version, want := range map[string]string{
		"23.0.6": "dockerd 23.0.6 ignores runtimeType", "Docker version 20.10.24+dfsg1, build 297e128": "dockerd 20.10.24+dfsg1 ignores runtimeType",
		"new": "--docker-version: no version in", "24.0.0": "",
	} {
		args := []string{"install", "--root", root, "--from", from, "--docker-version", version}
		status, out, errs := ctl(t, args...)
		if (status == 0) != (want == "") || !strings.Contains(errs, want) || strings.Contains(out, "is not known") {
			t.Errorf("%s: %d %s%s", version, status, out, errs)
		}
		if now := testtree.Tree(t, root); reflect.DeepEqual(now, before) != (want != "") {
			t.Errorf("%s: changed %v", version, want == "")
		}
		fine(t, "uninstall", "--root", root)
	}
	if status, _, errs := ctl(t, "install", "--root", root, "--from", from, "--containerd-version", "2.1.4"); status != 2 || !strings.Contains(errs, "--containerd-version cannot be combined with --target docker") {
		t.Errorf("containerd's: %d %s", status, errs)
	}
}

// The link for dockerd is a change like any other: it needs a restart even if nothing else changes.
func TestInstallTheGPUsFlag(t *testing.T) {
	const link = "/usr/local/bin/nvidia-cdi-hook"
	root, _, from := installTree(t, "", "")
	write(t, filepath.Join(root, runtimeclass.DefaultDockerConfig), "{}")
	before := testtree.Tree(t, root)
	install := []string{"install", "--root", root, "--from", from}
	fine(t, install...)
	var o installation
	decode(t, fine(t, append([]string{"--json"}, append(install, "--gpus-flag", "--dry-run")...)...), &o)
	if !o.Changed || o.Restart != "systemctl restart docker" || !slices.Equal(o.Written, []string{runtimeclass.RecordPath, link}) {
		t.Errorf("%+v", o)
	}
	contains(t, fine(t, append(install, "--gpus-flag")...), "write "+link, "run `systemctl restart docker` when it suits; containers stop, unless Docker has live-restore")
	decode(t, fine(t, append([]string{"--json"}, append(install, "--gpus-flag")...)...), &o)
	if o.Changed || o.Restart != "" || len(o.Written) > 0 {
		t.Errorf("again: %+v", o)
	}
	contains(t, fine(t, "uninstall", "--root", root), "remove "+link)
	if now := testtree.Tree(t, root); !reflect.DeepEqual(now, before) {
		t.Errorf("left %v", now)
	}
}

// uninstall that leaves the programs says what needs them, and is no success.
func TestUninstallSaysWhatStillStartsThePrograms(t *testing.T) {
	root, _, from := installTree(t, "", containerdTOML)
	write(t, filepath.Join(root, runtimeclass.DefaultDockerConfig), `{"runtimes": {"gpu": {"runtimeType": "io.containerd.nvidia.v2"}}}`)
	fine(t, "install", "--root", root, "--from", from, "--target", "containerd")
	status, _, errs := ctl(t, "uninstall", "--root", root, "--target", "containerd")
	if status != 1 || !strings.Contains(errs, "the programs stay") || !strings.Contains(errs, runtimeclass.DefaultDockerConfig+": gpu") {
		t.Errorf("status %d, %s", status, errs)
	}
	if _, err := os.Stat(filepath.Join(root, runtimeclass.DefaultBinDir, version.Shim)); err != nil {
		t.Error(err)
	}
}

func TestInstallRefuses(t *testing.T) {
	root, daemon, from := installTree(t, "nonsense", containerdTOML)
	write(t, filepath.Join(root, "usr/bin/containerd"), "")
	for name, c := range map[string]struct {
		args   []string
		status int
		want   string
	}{
		"an unknown target":                 {[]string{"install", "--target", "podman"}, 2, "podman"},
		"a handler that is no label":        {[]string{"install", "--handler", "a_b"}, 2, "DNS label"},
		"a relative directory":              {[]string{"install", "--bin-dir", "bin"}, 2, "plain absolute path"},
		"a flag of another target":          {[]string{"install", "--target", "docker", "--containerd-config", "/x"}, 2, "--containerd-config"},
		"a containerd with Docker":          {[]string{"install", "--target", "docker", "--containerd", daemon}, 2, "--containerd"},
		"Docker's version with containerd":  {[]string{"install", "--root", root, "--from", from, "--docker-version", "29.0.1"}, 2, "--docker-version cannot be combined with --target containerd"},
		"a relative configuration":          {[]string{"install", "--containerd-config", "x"}, 2, "absolute"},
		"a relative file of the toolkit":    {[]string{"install", "--root", root, "--toolkit-config", "x"}, 2, "absolute"},
		"no file of the toolkit":            {[]string{"install", "--root", root, "--from", from, "--toolkit-config", "/x"}, 1, "no configuration"},
		"a restart of another root":         {[]string{"install", "--root", root, "--restart"}, 2, "--restart"},
		"an argument":                       {[]string{"uninstall", "now"}, 2, "now"},
		"a daemon that says nonsense":       {[]string{"install", "--containerd", daemon, "--from", from}, 1, "no version"},
		"a daemon of this host for a tree":  {[]string{"install", "--root", root, "--containerd", daemon, "--from", from}, 2, "--containerd-version"},
		"a version that is none":            {[]string{"install", "--root", root, "--containerd-version", "two", "--from", from}, 2, "no version"},
		"an unknown architecture":           {[]string{"install", "--root", root, "--arch", "x86_64", "--from", from}, 2, "amd64 or arm64"},
		"a tree that does not exist":        {[]string{"install", "--root", root + "x", "--from", from}, 2, "absolute path of a directory"},
		"a relative tree":                   {[]string{"uninstall", "--root", "."}, 2, "absolute path of a directory"},
		"JSON of kind's YAML":               {[]string{"--json", "install", "--target", "kind"}, 2, "is YAML"},
		"programs that are not there":       {[]string{"install", "--root", root, "--from", root}, 1, version.Shim},
		"rke2 where there is none":          {[]string{"install", "--root", root, "--from", from, "--target", "rke2"}, 2, "no rke2 here; found containerd (/usr/bin/containerd): name one with --target, or install or start rke2 first"},
		"Docker where there is none":        {[]string{"install", "--root", root, "--from", from, "--target", "docker"}, 2, "no docker here"},
		"the daemons' own runtime":          {[]string{"install", "--root", root, "--from", from, "--handler", "runc", "--replace"}, 2, `handler "runc" is the runtime that containerd and Docker have built in`},
		"the daemons' own runtime in kind":  {[]string{"install", "--target", "kind", "--handler", "runc"}, 2, `handler "runc"`},
		"a manifest of a handler with dots": {[]string{"manifest", "--handler", "a.b"}, 2, "DNS label"},
		"a manifest with half a label":      {[]string{"manifest", "--node-selector", "gpu"}, 2, `item "gpu" is missing separator "="`},
		"Docker's --gpus of containerd":     {[]string{"install", "--root", root, "--from", from, "--gpus-flag"}, 2, "--gpus-flag goes with --target docker only"},
		"Docker's --gpus of kind":           {[]string{"install", "--target", "kind", "--gpus-flag"}, 2, "--gpus-flag goes with --target docker only"},
		"uninstall of a kind cluster":       {[]string{"uninstall", "--target", "kind"}, 2, "kind delete"},
	} {
		status, _, errs := ctl(t, c.args...)
		if status != c.status || !strings.Contains(errs, c.want) {
			t.Errorf("%s: status %d, %s", name, status, errs)
		}
	}
}

func TestManifestCommand(t *testing.T) {
	const plain = "apiVersion: node.k8s.io/v1\nhandler: nvidia\nkind: RuntimeClass\nmetadata:\n  name: \"12\"\n"
	if got := fine(t, "manifest", "--name", "12"); got != plain {
		t.Errorf("%s", got)
	}
	const want = `apiVersion: node.k8s.io/v1
handler: gpu
kind: RuntimeClass
metadata:
  name: gpu
scheduling:
  nodeSelector:
    a: "1"
    nvidia.com/gpu.present: "true"
  tolerations:
    - effect: NoSchedule
      key: nvidia.com/gpu
      operator: Exists
    - key: pool
      operator: Equal
      value: gpu
`
	got := fine(t, "manifest", "--handler", "gpu", "--node-selector", "nvidia.com/gpu.present=true",
		"--node-selector", "a=1", "--toleration", "nvidia.com/gpu:NoSchedule", "--toleration", "pool=gpu")
	if got != want {
		t.Errorf("%s", got)
	}
	var class map[string]any
	decode(t, fine(t, "--json", "manifest", "--toleration", "pool=gpu"), &class)
	if class["apiVersion"] != "node.k8s.io/v1" || class["scheduling"] == nil {
		t.Errorf("%v", class)
	}
}

// A user who is not root is told so, and nothing is changed.
func TestInstallNotAsRoot(t *testing.T) {
	root, _, from := installTree(t, "", containerdTOML)
	fine(t, "install", "--root", root, "--from", from)
	testtree.Check(t, errors.Join(os.Chmod(filepath.Dir(root), 0o755), syscall.Seteuid(65534)))
	defer func() { testtree.Check(t, syscall.Seteuid(0)) }()
	for _, args := range [][]string{{"install", "--root", root, "--from", from}, {"uninstall", "--root", root}} {
		if status, _, errs := ctl(t, args...); status != 1 || !strings.Contains(errs, "only root can install and uninstall") {
			t.Errorf("%q: %d %s", args, status, errs)
		}
		if status, _, errs := ctl(t, append(args, "--dry-run")...); status != 1 || !strings.Contains(errs, "nvidia-shimctl: not run as root: ") {
			t.Errorf("%q: %d %s", args, status, errs)
		}
	}
}

// Uninstall removes the registration if there is one, requires --target if there are several, and
// never removes programs that another daemon uses.
func TestUninstallFindsTheRegistration(t *testing.T) {
	root, _, from := installTree(t, "", containerdTOML)
	write(t, filepath.Join(root, "usr/bin/containerd"), "")
	write(t, filepath.Join(root, "usr/bin/dockerd"), "")
	before := testtree.Tree(t, root)
	install := []string{"install", "--root", root, "--from", from}
	// Two configurations of the shim do not lead to two records.
	fine(t, append(install, "--target", "docker", "--set-default", "--config", "/etc/other/config.toml")...)
	fine(t, append(install, "--target", "containerd")...)
	if status, _, errs := ctl(t, "uninstall", "--root", root); status != 2 || !strings.Contains(errs, "docker /etc/docker/daemon.json: name one with --target") {
		t.Errorf("two registrations: %d %s", status, errs)
	}
	fine(t, "uninstall", "--root", root, "--target", "containerd")
	if testtree.Tree(t, root)["/usr/local/bin/"+version.Shim] == "" {
		t.Error("Docker's shim was removed")
	}
	var o installation
	decode(t, fine(t, "--json", "uninstall", "--root", root, "--dry-run"), &o)
	if len(o.Written) > 0 || !slices.Contains(o.Removed, runtimeclass.RecordPath) || !slices.Contains(o.Removed, "/usr/local/bin/"+version.Shim) || !slices.Contains(o.Removed, runtimeclass.DefaultDockerConfig) {
		t.Errorf("the dry run does not list all that is removed: %+v", o)
	}
	fine(t, "uninstall", "--root", root)
	if now := testtree.Tree(t, root); !reflect.DeepEqual(now, before) {
		t.Errorf("left %v", now)
	}
}

// Removing a package undoes everything that was installed with it.
func TestUninstallAll(t *testing.T) {
	root, _, from := installTree(t, "", containerdTOML)
	write(t, filepath.Join(root, "usr/bin/containerd"), "")
	write(t, filepath.Join(root, "usr/bin/dockerd"), "")
	before := testtree.Tree(t, root)
	for _, target := range []string{"docker", "containerd"} {
		fine(t, "install", "--root", root, "--from", from, "--target", target)
	}
	fine(t, "uninstall", "--root", root, "--all")
	if now := testtree.Tree(t, root); !reflect.DeepEqual(now, before) {
		t.Errorf("left %v", now)
	}
	fine(t, "uninstall", "--root", root, "--all")
}

// A tree is data: its programs are not executed, and no path leads out of it.
func TestInstallTreatsATreeAsData(t *testing.T) {
	root, _, from := installTree(t, "", containerdTOML)
	outside := t.TempDir()
	write(t, filepath.Join(root, "usr/bin/containerd"), "#!/bin/sh\ntouch '"+outside+"/executed'\n")
	link := func(to, name string) {
		testtree.Check(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
		testtree.Check(t, os.Symlink(to, filepath.Join(root, name)))
	}
	link(outside, "usr/local/bin")
	link(outside+"/unit", runtimeclass.UnitPath)
	link("../../../../../../../../.."+outside, "etc/nvidia-shim")
	before := testtree.Tree(t, root)
	fine(t, "install", "--root", root, "--from", from, "--target", "containerd", "--prepare-unit")
	if got := testtree.Contents(t, outside); len(got) > 0 {
		t.Errorf("written outside the tree: %v", got)
	}
	for _, name := range []string{version.Shim, "installed.json"} {
		if testtree.Tree(t, root)[filepath.Join(outside, name)] == "" {
			t.Errorf("%s is not where the link leads within the tree", name)
		}
	}
	fine(t, "uninstall", "--root", root)
	if now := testtree.Tree(t, root); !reflect.DeepEqual(now, before) {
		t.Errorf("left %v", now)
	}
	self := filepath.Join(t.TempDir(), "arm64")
	for _, name := range runtimeclass.Programs {
		write(t, filepath.Join(self, name), testtree.Library(elf.ELFCLASS64, elf.EM_AARCH64, ""))
	}
	if status, _, errs := ctl(t, "install", "--root", root, "--from", self, "--arch", "amd64"); status != 1 || !strings.Contains(errs, "is for arm64, and the host is amd64") {
		t.Errorf("%d %s", status, errs)
	}
}

// Install registers with the daemon if there is one, and requires --target if there are several or
// none.
func TestInstallFindsTheDaemon(t *testing.T) {
	root, _, from := installTree(t, "", "")
	install := []string{"--json", "install", "--root", root, "--from", from, "--dry-run"}
	if status, _, errs := ctl(t, install...); status != 2 || !strings.Contains(errs, "no containerd, k3s, RKE2 or Docker below "+root) {
		t.Errorf("nothing: %d %s", status, errs)
	}
	snap := filepath.Join(root, "var/snap/docker")
	testtree.Check(t, os.MkdirAll(snap, 0o755))
	if status, _, errs := ctl(t, install...); status != 1 || !strings.Contains(errs, "Docker is a snap") {
		t.Errorf("a snap: %d %s", status, errs)
	}
	testtree.Check(t, os.Remove(snap))
	var o installation
	testtree.Check(t, os.MkdirAll(filepath.Join(root, "var/lib/rancher/k3s"), 0o755))
	if decode(t, fine(t, append(install, "--target", "k3s")...), &o); o.Restart != "" || !o.Changed {
		t.Errorf("k3s before its first start: %+v", o)
	}
	k3s := filepath.Join(root, filepath.Dir(runtimeclass.DaemonOf("k3s").Config))
	testtree.Check(t, os.MkdirAll(k3s, 0o755))
	decode(t, fine(t, install...), &o)
	if !slices.Contains(o.Written, strings.TrimPrefix(k3s, root)+"/config-v3.toml.tmpl") || o.Restart != "systemctl restart k3s-agent" ||
		o.Notes[0] != "found k3s (/var/lib/rancher/k3s/agent)" {
		t.Errorf("k3s: %+v", o)
	}
	write(t, filepath.Join(root, runtimeclass.DefaultDockerConfig), "{}")
	if status, _, errs := ctl(t, install...); status != 2 || !strings.Contains(errs, "found k3s (/var/lib/rancher/k3s/agent) and docker (/etc/docker/daemon.json): name one") {
		t.Errorf("two: %d %s", status, errs)
	}
	testtree.Check(t, os.RemoveAll(filepath.Join(root, "var")))
	decode(t, fine(t, install...), &o)
	if !slices.Contains(o.Written, runtimeclass.DefaultDockerConfig) || o.Restart != "systemctl reload docker" {
		t.Errorf("Docker: %+v", o)
	}
}

// A file that no daemon reads is refused: one that does not exist, and one that is the only trace
// of its target while there is another daemon.
func TestInstallRefusesAFileThatNoDaemonReads(t *testing.T) {
	const k3s, rke2, containerd, docker = "/var/lib/rancher/k3s/agent", "/var/lib/rancher/rke2/server/tls", "/usr/bin/containerd", "/usr/bin/dockerd"
	const toml, json, other = runtimeclass.DefaultContainerdConfig, runtimeclass.DefaultDockerConfig, "/srv/x.toml"
	for _, c := range []struct {
		files, args, want string // want is the refusal
	}{
		{k3s, "--containerd-config " + toml, toml + " does not exist, and no daemon here reads it: found k3s (" + k3s + ")"},
		{k3s, "--containerd-config " + other, other + " does not exist, and no daemon here reads it: found k3s (" + k3s + ")"},
		{k3s, "--docker-config " + json, json + " does not exist, and no daemon here reads it: found k3s (" + k3s + ")"},
		{k3s + " " + other, "--containerd-config " + other, "no containerd here but the file " + other + "; found k3s (" + k3s + "): name one with --target, or install or start containerd first"},
		{rke2 + " " + toml, "--containerd-config " + toml, "no containerd here but the file " + toml + "; found rke2 (" + rke2 + "): name one"},
		{rke2 + " " + toml, "--target containerd", "no containerd here but the file " + toml + "; found rke2 (" + rke2 + "): name one"},
		{containerd + " " + json, "--target docker", "no docker here but the file " + json + "; found containerd (" + containerd + "): name one"},
		{containerd + " " + json, "--docker-config " + json, "no docker here but the file " + json},
		{json, "--target containerd", "no containerd here; found docker (" + json + "): name one"},
		{toml, "--target docker", "no docker here; found containerd (" + toml + "): name one"},
		{k3s, "--target rke2", "no rke2 here; found k3s (" + k3s + "): name one"},
		{"", "--target containerd", ""},
		{"", "--target docker", ""},
		{"", "--containerd-config " + other, ""},
		{toml, "--target containerd", ""},
		{toml, "--containerd-config " + toml, ""},
		{other, "--containerd-config " + other, ""},
		{toml + " " + other, "--containerd-config " + other, ""},
		{toml + " " + json, "--target containerd", ""},
		{toml + " " + json, "--target docker", ""},
		{rke2 + " " + containerd, "--containerd-config " + toml, ""},
		{rke2 + " " + containerd + " " + other, "--containerd-config " + other, ""},
		{rke2 + " " + docker, "--docker-config " + json, ""},
		{rke2 + " " + toml, "--target rke2", ""},
		{rke2 + " " + containerd, "--target containerd", ""},
		{"/kind/version " + docker, "--target containerd", ""},
		{toml + " " + runtimeclass.RecordPath, "--target docker", ""},
		{containerd + " " + runtimeclass.RecordPath, "--target docker", "no docker here; found containerd"},
	} {
		root, _, from := installTree(t, "", "")
		for _, name := range strings.Fields(c.files) {
			text := ""
			if name == runtimeclass.RecordPath {
				text = "[]"
			}
			write(t, filepath.Join(root, name), text)
		}
		before := testtree.Tree(t, root)
		status, _, errs := ctl(t, slices.Concat([]string{"install", "--root", root, "--from", from}, strings.Fields(c.args))...)
		if (status == 2) != (c.want != "") || status != 2 && status != 0 || !strings.Contains(errs, c.want) {
			t.Errorf("%q with %q: %d %s", c.args, c.files, status, errs)
		}
		if changed := !reflect.DeepEqual(testtree.Tree(t, root), before); changed != (c.want == "") {
			t.Errorf("%q with %q: changed %v", c.args, c.files, changed)
		}
	}
}

// The socket of a kubelet with its own root directory goes into the shim's configuration, and
// uninstall removes it.
func TestInstallFollowsTheKubelet(t *testing.T) {
	root, _, from := installTree(t, "", containerdTOML)
	const socket = "kubelet-socket = '/srv/k/pod-resources/kubelet.sock'\n"
	file := filepath.Join(root, config.DefaultPath)
	args := []string{"install", "--root", root, "--from", from}
	write(t, filepath.Join(root, "etc/default/kubelet"), "A=--root-dir=/srv/k\n")
	before := testtree.Tree(t, root)
	fine(t, args...)
	first := testtree.Tree(t, root)
	if text := read(t, file); !strings.HasSuffix(text, "[policy]\n"+socket) {
		t.Errorf("%s", text)
	}
	if fine(t, args...); !reflect.DeepEqual(testtree.Tree(t, root), first) {
		t.Error("installing twice changes something")
	}
	fine(t, "uninstall", "--root", root)
	if now := testtree.Tree(t, root); !reflect.DeepEqual(now, before) {
		t.Errorf("left %v", now)
	}
	// Together with the settings from the toolkit, but never in an operator's file.
	write(t, filepath.Join(root, "toolkit.toml"), "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n")
	fine(t, append(args, "--toolkit-config", "/toolkit.toml")...)
	contains(t, read(t, file), socket, "accept-env-when-unprivileged = false\n")
	write(t, filepath.Join(root, "etc/default/kubelet"), "A=--root-dir=/srv/new\n")
	fine(t, args...)
	contains(t, read(t, file), "'/srv/new/pod-", "accept-env-when-unprivileged = false\n")
	fine(t, "uninstall", "--root", root)
	write(t, file, "# mine\n[policy]\ndisable-require = true\n")
	contains(t, fine(t, args...), `set policy.kubelet-socket = "/srv/new/pod-resources/kubelet.sock" in `+config.DefaultPath)
	if text := read(t, file); !strings.HasPrefix(text, "# mine\n") {
		t.Errorf("%s", text)
	}
	write(t, file, "x = 1\n")
	contains(t, fine(t, args...), "set policy.kubelet-socket")
	write(t, file, "\n[x\n")
	if status, _, errs := ctl(t, args...); status != 1 || !strings.Contains(errs, config.DefaultPath+": line 2: toml: ") {
		t.Errorf("%d %s", status, errs)
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	testtree.Check(t, err)
	return string(text)
}

func TestInstallKnowsTheFlagsOfNVIDIAsToolkit(t *testing.T) {
	root, _, from := installTree(t, "", containerdTOML)
	write(t, filepath.Join(root, "usr/bin/dockerd"), "")
	args := []string{"install", "--root", root, "--from", from, "--dry-run"}
	want := fine(t, append(args, "--target", "docker", "--set-default")...)
	if got := fine(t, append(args, "--runtime=docker", "--set-as-default")...); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
