package daemons

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// usualBinDir is where nvidia-shimctl puts the programs unless told otherwise.
const usualBinDir = "/usr/local/bin"

// nvidiaTOML is what NVIDIA's toolkit puts into a directory of imports.
const nvidiaTOML = `version = 3
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]
  runtime_type = 'io.containerd.runc.v2'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]
    BinaryName = '/usr/bin/nvidia-container-runtime'
    SystemdCgroup = false
`

// installation is one way to set a node up.
type installation struct {
	// root is put before the paths that nvidia-shimctl is given; binDir and config
	// are below it.
	root, binDir, config string
	// dropIn is true if the configuration imports a directory. NVIDIA's toolkit has a file there,
	// and its runtime is replaced.
	dropIn bool
}

// Whatever containerd a node has, what `nvidia-shimctl install` makes of its configuration gives
// pods of the handler exactly their GPUs, and leaves the other pods to runc; `uninstall` restores
// the file byte for byte, and the node works.
func TestInstallMakesANodeThatRunsGPUPodsAndUninstallGivesItBack(t *testing.T) {
	eachRelease(t, func(t *testing.T, r release) {
		// The default configuration of containerd 2 imports a directory, and since 2.1
		// what it holds is merged.
		t.Run("in the usual directory", func(t *testing.T) {
			n := plainNode(t, r)
			n.installed(t, r, installation{root: n.Dir, binDir: usualBinDir, config: "/config.toml", dropIn: r.config > 2})
		})
		t.Run("in a directory out of PATH", func(t *testing.T) {
			n := plainNode(t, r)
			n.installed(t, r, installation{root: "/", binDir: filepath.Join(n.Dir, "bin"), config: filepath.Join(n.Dir, "config.toml")})
		})
	})
}

// plainNode is a node that knows nothing of the shim: neither containerd's
// configuration nor its PATH has it.
func plainNode(t *testing.T, r release) *node {
	t.Helper()
	dir := tempDir(t)
	n := newNodeOf(t, r, dir, testenv.Options{Config: plainConfig(r, dir)})
	n.Options.ShimDir = ""
	return n
}

// reload starts containerd again, as the operator does after the installation.
func (n *node) reload(t *testing.T) {
	t.Helper()
	n.Restart(t)
	n.await(t)
}

func (n *node) installed(t *testing.T, r release, in installation) {
	config := filepath.Join(n.Dir, "config.toml")
	plain, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	if in.dropIn {
		imports := bytes.Replace(plain, []byte("imports = []"), []byte(`imports = ["conf.d/*.toml"]`), 1)
		if bytes.Equal(imports, plain) {
			t.Fatal("the configuration of the test has no line for imports")
		}
		plain = imports
		if err := os.WriteFile(config, plain, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n.reload(t)
	n.plainPod(t)
	n.noHandler(t, "before the installation", `"nvidia"`)

	daemon := r.daemonDir()
	if daemon == "" {
		daemon = n.Options.ToolsDir
	}
	args := []string{"--root", in.root, "--bin-dir", in.binDir, "--containerd-config", in.config}
	if in.root == "/" { // the record goes to /etc
		upper, work := filepath.Join(n.Dir, "etc"), filepath.Join(n.Dir, "etc-work")
		if err := errors.Join(os.Mkdir(upper, 0o755), os.Mkdir(work, 0o755)); err != nil {
			t.Fatal(err)
		}
		n.mount(t, "mount", "-t", "overlay", "-o", "lowerdir=/etc,upperdir="+upper+",workdir="+work, "overlay", "/etc")
	}
	ask := []string{"--containerd", filepath.Join(daemon, "containerd")}
	if in.root != "/" {
		version, err := exec.Command(ask[1], "--version").Output()
		if err != nil {
			t.Fatal(err)
		}
		ask = []string{"--containerd-version", string(version)}
	}
	theirs := filepath.Join(n.Dir, "conf.d", "99-nvidia.toml")
	if in.dropIn {
		if err := errors.Join(os.Mkdir(filepath.Dir(theirs), 0o755), os.WriteFile(theirs, []byte(nvidiaTOML), 0o600)); err != nil {
			t.Fatal(err)
		}
		ask = append(ask, "--replace")
	}
	out := n.shimctl(t, slices.Concat([]string{"install"}, ask, args)...)
	t.Logf("%s", out)
	now, err := os.ReadFile(config)
	if err != nil || bytes.Equal(now, plain) != in.dropIn {
		t.Errorf("edited in place: %v, want %v (%v)", !bytes.Equal(now, plain), !in.dropIn, err)
	}
	programs := filepath.Join(in.root, in.binDir)
	if in.root != "/" {
		n.mount(t, "mount", "--bind", programs, in.binDir)
	}
	n.reload(t)
	if in.root == "/" && !r.runtimePath {
		// Such a daemon starts pods by the runtime's name alone, and so finds the
		// shim in its own PATH only; the installation says so.
		if want := "pods fail until " + in.binDir + " is in the PATH"; !strings.Contains(out, want) {
			t.Errorf("install does not say %q:\n%s", want, out)
		}
		n.noHandler(t, "with the shim out of PATH", "io.containerd.nvidia.v2")
		n.Options.ShimDir = programs
		n.reload(t)
	}
	n.gpuPod(t, filepath.Join(programs, "containerd-shim-nvidia-v2"))
	n.plainPod(t)

	out = n.shimctl(t, append([]string{"uninstall"}, args...)...)
	if now, err := os.ReadFile(config); err != nil || !bytes.Equal(now, plain) {
		t.Errorf("uninstall did not bring the configuration back: %v\n%s", err, now)
	}
	if in.dropIn {
		if text, err := os.ReadFile(theirs); err != nil || string(text) != nvidiaTOML {
			t.Errorf("%s: %v\n%s", theirs, err, text)
		}
		if err := os.Remove(theirs); err != nil {
			t.Fatal(err)
		}
	}
	for _, pattern := range []string{config + "?*", filepath.Join(n.Dir, "conf.d", "*"), filepath.Join(programs, "*")} {
		if left, err := filepath.Glob(pattern); err != nil || len(left) > 0 {
			t.Errorf("uninstall left %v (%v)\n%s", left, err, out)
		}
	}
	if in.root != "/" {
		n.mount(t, "umount", in.binDir)
	}
	n.Options.ShimDir = ""
	n.reload(t)
	n.plainPod(t)
	n.noHandler(t, "after uninstall", `"nvidia"`)
}

// shimctl runs nvidia-shimctl where the node is; it must succeed.
func (n *node) shimctl(t *testing.T, args ...string) string {
	t.Helper()
	argv := slices.Concat(n.Options.Wrapper, []string{filepath.Join(testenv.ShimDir(), "nvidia-shimctl")}, args)
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("nvidia-shimctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// mount changes what only containerd sees of the host.
func (n *node) mount(t *testing.T, command ...string) {
	t.Helper()
	argv := append(append([]string{}, n.Options.Wrapper...), command...)
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, out)
	}
}

// noHandler expects that pods of the handler are refused, for a reason.
func (n *node) noHandler(t *testing.T, when, reason string) {
	t.Helper()
	config := n.sandbox("refused")
	r, err := n.runtime.RunPodSandbox(n.ctx, &cri.RunPodSandboxRequest{Config: config, RuntimeHandler: "nvidia"})
	if err == nil {
		t.Errorf("%s a pod of the handler runs", when)
		n.remove(t, r.PodSandboxId)
	} else if !strings.Contains(err.Error(), reason) {
		t.Errorf("%s: got %v, want it to name %s", when, err, reason)
	}
}

// gpuPod runs a pod of the handler, whose shim must be the program given.
func (n *node) gpuPod(t *testing.T, program string) {
	t.Helper()
	config := n.sandbox("gpu")
	pod := n.run(t, "nvidia", config)
	for name, index := range map[string]int{"first": 1, "second": 2} {
		id := n.mustStart(t, pod, config, name, strconv.Itoa(index))
		n.check(t, n.exec(t, id, n.ProbeArgs()), index)
	}
	shims := n.ShimPIDs(pod)
	if len(shims) != 1 {
		t.Fatalf("shims of the pod: %v, want one", shims)
	}
	want, err := os.Stat(program)
	if err != nil {
		t.Fatal(err)
	}
	// By the file: the shim is in a mount namespace in which it may have another name.
	exe := filepath.Join("/proc", strconv.Itoa(shims[0]), "exe")
	if got, err := os.Stat(exe); err != nil || !os.SameFile(got, want) {
		t.Errorf("the pod's shim is not %s: %v", program, err)
	}
	n.remove(t, pod)
	// uninstall keeps the programs while one of them runs.
	testenv.Await(t, "the shim of the removed pod ends", func() bool {
		_, err := os.Stat(exe)
		return err != nil
	})
}

// plainPod runs a pod without a handler: runc starts it, and it gets no GPU although it asks for
// one.
func (n *node) plainPod(t *testing.T) {
	t.Helper()
	config := n.sandbox("plain")
	pod := n.run(t, "", config)
	id := n.mustStart(t, pod, config, "plain", "1")
	if got := n.exec(t, id, []string{"/bin/sh", "-c", "echo runs; ls /dev | grep nvidia"}); got != "runs\n" {
		t.Errorf("a container of no handler: got %q", got)
	}
	n.remove(t, pod)
}
