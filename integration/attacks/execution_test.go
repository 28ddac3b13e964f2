package attacks

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// compile compiles C.
func compile(t testing.TB, h *host, name, source string, flags ...string) string {
	t.Helper()
	file := filepath.Join(h.Dir, name)
	if err := os.WriteFile(file+".c", []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", append(flags, "-o", file, file+".c")...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v: %s", err, out)
	}
	return file
}

// runcWrapper replaces runc by a script that records its environment and descriptors, and returns
// the flags for ctr.
func (h *host) runcWrapper(t testing.TB) (flags []string, log string) {
	t.Helper()
	log = filepath.Join(h.Dir, "runc.log")
	script := filepath.Join(h.Dir, "runc-wrapper")
	config := filepath.Join(h.Dir, "runtime.toml")
	simhost.Script(t, script, fmt.Sprintf("{ tr '\\0' '\\n' </proc/$$/environ | sed 's/^/env /'; for f in /proc/$$/fd/*; do echo \"fd ${f##*/} $(readlink $f)\"; done; } >>%s\nexec %s \"$@\"\n", log, filepath.Join(h.Options.ToolsDir, "runc")))
	simhost.WriteFile(t, config, "BinaryName = \""+script+"\"\n")
	return []string{"--runtime-config-path", config}, log
}

// CVE-2025-23266, CVE-2024-0135, CVE-2024-0136, CVE-2024-0137.
func TestT19T20T23NothingOfAnImageIsExecutedOnTheHost(t *testing.T) {
	h := newHost(t, simhost.Options{})
	wrote := filepath.Join(h.canary, "executed")
	evil := compile(t, h, "evil.so", fmt.Sprintf("#include <fcntl.h>\n__attribute__((constructor)) static void go(void) { creat(%q, 0644); creat(\"/executed\", 0644); }\n", wrote), "-shared", "-fPIC")
	poison := compile(t, h, "poison", fmt.Sprintf("#include <fcntl.h>\nint main(void) { creat(%q, 0644); creat(\"/executed\", 0644); return 0; }\n", wrote), "-static")
	lib := simhost.Multiarch[1:]
	flags, log := h.runcWrapper(t)
	hostile := []string{
		"LD_PRELOAD=/proc/self/cwd/evil.so", "LD_AUDIT=/proc/self/cwd/evil.so", "LD_LIBRARY_PATH=/proc/self/cwd", "GLIBC_TUNABLES=glibc.malloc.check=3",
		"GCONV_PATH=/proc/self/cwd", "TMPDIR=/proc/self/cwd", "PATH=/evil:/usr/bin:/bin", "GODEBUG=http2debug=2", "GOTRACEBACK=crash",
		"SSL_CERT_FILE=/evil", "NVIDIA_CTK_CONFIG_FILE_PATH=/evil", "NVIDIA_SHIM_CONFIG=/evil.toml", "NOTIFY_SOCKET=/evil", "_LIBCONTAINER_INITPIPE=7",
	}
	dir := h.Tree(t, "glibc-hwcaps", images.FromHost("evil.so", 0o755, evil), images.Text("evil.toml", 0o644, "[host]\nstate-dir = \"/\"\n"))
	for _, name := range []string{"usr/sbin/ldconfig", "usr/sbin/ldconfig.real", lib + "/ld-linux-x86-64.so.2", "usr/bin/nvidia-smi", "usr/bin/nvidia-modprobe", "usr/bin/modprobe", "evil/runc", "evil/nvidia-shimctl", "evil/ldconfig"} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if err := images.Populate(dir, []images.File{images.FromHost(name, 0o755, poison)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := images.Populate(dir, []images.File{images.Text("etc/ld.so.preload", 0o644, "/evil.so\n")}); err != nil {
		t.Fatal(err)
	}
	h.unharmed(t, func() {
		// Static, so that the container itself does not load evil.so either.
		out := h.MustRun(t, testenv.RunOptions{RootfsDir: dir, Env: append([]string{one, everything}, hostile...), Args: []string{"/bin/busybox", "sh", "-c", look + "; ls -l /proc/self/fd"}, Extra: flags})
		h.noHostDirectory(t, out)
		// In the container: standard streams, and the directory that ls reads.
		_, fds, _ := strings.Cut(out, "done\n")
		var numbers []string
		for _, m := range regexp.MustCompile(`(?m)\s(\d+)(?: -> .*)?$`).FindAllStringSubmatch(fds, -1) {
			numbers = append(numbers, m[1])
		}
		if got := strings.Join(numbers, " "); got != "0 0 1 2 3" { // the first is ls's total
			t.Errorf("descriptors in the container: %s\n%s", got, fds)
		}
	})
	if _, err := os.Lstat(filepath.Join(dir, "executed")); err == nil {
		t.Error("a program of the image was executed")
	}
	data, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), "env PATH=") || !strings.Contains(string(data), "fd 0 ") {
		t.Fatalf("runc was not called through the script:\n%s", data)
	}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if value, ok := strings.CutPrefix(line, "env "); ok {
			if slices.Contains(hostile, value) {
				t.Errorf("runc has the container's %s", value)
			}
			for _, name := range []string{"LD_PRELOAD", "LD_AUDIT", "GCONV", "GLIBC", "GOTRACE", "NVIDIA_VISIBLE", "NVIDIA_DRIVER", "NOTIFY", "SSL_", "_LIBCONTAINER"} {
				if strings.HasPrefix(value, name) {
					t.Errorf("runc's environment has %s", value)
				}
			}
			continue
		}
		f := strings.Fields(line)
		if len(f) < 3 || f[0] != "fd" {
			continue
		}
		// In runc: nothing that leads to a root, the driver, or the state.
		if info, err := os.Stat(f[2]); err == nil && info.IsDir() || strings.HasPrefix(f[2], dir) || strings.HasPrefix(f[2], h.Driver.Dir) {
			t.Errorf("runc has descriptor %s of %s", f[1], f[2])
		}
	}
}

func TestT21T22HooksOfNVIDIAsStackAreRemovedAndOthersKeptInOrder(t *testing.T) {
	h := newHost(t, simhost.Options{})
	dir := h.Tree(t, "glibc-hwcaps")
	log := filepath.Join(h.Dir, "hooks.log")
	hook := func(base, word string) map[string]any {
		file := simhost.Script(t, filepath.Join(h.Dir, base), "echo "+word+" >>"+log+"\n")
		return map[string]any{"path": file, "args": []any{base, word}, "env": []any{"PATH=/usr/bin:/bin", "KEPT=" + word}}
	}
	spec := h.Spec(t, testenv.RunOptions{RootfsDir: dir, Env: []string{one}, Args: []string{"/test/dlopen", "-s", "cuDriverGetVersion", "libcuda.so.1"}})
	spec["hooks"] = map[string]any{
		"prestart":        []any{hook("first", "1"), hook("nvidia-container-runtime-hook", "NVIDIA"), hook("second", "2")},
		"createRuntime":   []any{hook("nvidia-container-toolkit", "NVIDIA"), hook("third", "3"), hook("fourth", "4")},
		"createContainer": []any{hook("nvidia-cdi-hook", "NVIDIA"), hook("nvidia-ctk", "NVIDIA")},
		"poststop":        []any{hook("fifth", "5")},
	}
	h.unharmed(t, func() {
		r := h.RunSpec(t, spec)
		if r.ExitCode != 0 {
			t.Fatal(r.Error)
		}
		simhost.Want(t, r.Output, driverValue)
	})
	data, err := os.ReadFile(log)
	if err != nil || string(data) != "1\n2\n3\n4\n5\n" {
		t.Errorf("hooks that ran: %q, %v", data, err)
	}
	t.Run("or the container is refused", func(t *testing.T) {
		h := newHost(t, simhost.Options{Config: "[policy]\nforeign-hooks = \"refuse\"\n"})
		spec["root"].(map[string]any)["path"] = dir
		h.unharmed(t, func() {
			r := h.RunSpec(t, spec)
			if r.ExitCode == 0 || !strings.Contains(r.Error, "foreign-hooks") || !strings.Contains(r.Error, "nvidia-container") {
				t.Errorf("%d %s", r.ExitCode, r.Error)
			}
		})
	})
	if again, _ := os.ReadFile(log); string(again) != string(data) {
		t.Errorf("hooks that ran: %q", again)
	}
	t.Run("in a pod that was given nothing", func(t *testing.T) {
		h := newCluster(t, "")
		none := h.Spec(t, testenv.RunOptions{RootfsDir: dir, Annotations: simhost.PodAnnotations("team", "none", "main"), Env: []string{"NVIDIA_VISIBLE_DEVICES=all"}, Args: []string{"/bin/true"}})
		none["hooks"] = spec["hooks"]
		h.unharmed(t, func() {
			if r := h.RunSpec(t, none); r.ExitCode != 0 {
				t.Error(r.Error)
			}
		})
		if again, _ := os.ReadFile(log); string(again) != string(data)+string(data) {
			t.Errorf("hooks that ran: %q", again)
		}
	})
}

// Invariant I1: runc, and the probe if it is asked.
func TestT67TheShimExecutesRuncAndItsProbe(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Fatal("strace is missing: install Debian's strace (integration/tools/apt.sh)")
	}
	trace := filepath.Join(t.TempDir(), "trace")
	h := simhost.New(t, simhost.Options{Config: "\n[container]\non-pause = \"suspend-gpu\"\n", Env: testenv.Options{Wrapper: []string{strace, "-D", "-f", "-qq", "-s", "256", "-e", "trace=execve,execveat", "-e", "signal=none", "-o", trace}}})
	image := h.Load(t, "glibc-hwcaps")
	h.MustRun(t, testenv.RunOptions{Image: image, Env: []string{one, everything}, Args: []string{"/usr/bin/true"}})
	h.MustRun(t, testenv.RunOptions{Image: image, Env: []string{one}, ReadOnly: true, Args: []string{"/usr/bin/true"}})
	if r := h.Run(t, testenv.RunOptions{Image: image, Env: []string{"NVIDIA_VISIBLE_DEVICES=99"}, Args: []string{"/usr/bin/true"}}); r.ExitCode == 0 {
		t.Error("GPU 99 was given")
	}
	// NVML is asked for the requirement, and at the pause for what uses the GPU.
	id := h.Run(t, testenv.RunOptions{Env: []string{one, "NVIDIA_REQUIRE_CUDA=cuda>=12.8"}, Args: []string{"/bin/sleep", "1000000"}, Detach: true}).ID
	h.Ctr(t, "tasks", "pause", id)
	h.Ctr(t, "tasks", "resume", id)
	h.Exec(t, id, "/usr/bin/true")
	h.Remove(t, id)
	h.Stop(t)
	data, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	shim := filepath.Join(h.Options.ShimDir, "containerd-shim-nvidia-v2")
	runc := filepath.Join(h.Options.ToolsDir, "runc")
	ctl, nvml := filepath.Join(h.Options.ShimDir, "nvidia-shimctl"), filepath.Join(h.Options.ShimDir, "nvidia-shim-nvml")
	allowed := map[string]bool{shim: true, runc: true, ctl: true, nvml: true, filepath.Join(h.Options.ToolsDir, "containerd"): true, "/usr/bin/true": true, "/bin/sleep": true}
	call := regexp.MustCompile(`execve(?:at)?\((?:\d+, )?"([^"]*)", \["?([^"\],]*)`)
	count := map[string]int{}
	for line := range strings.Lines(string(data)) {
		m := call.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		count[m[1]]++
		self := m[1] == "" || strings.HasPrefix(m[1], "/proc/self/") || strings.HasPrefix(m[1], "/proc/thread-self/")
		switch {
		case allowed[m[1]]:
		case self && filepath.Base(m[2]) == "runc": // runc init, from a sealed copy
		case strings.Contains(line, "ENOENT") && strings.HasSuffix(m[1], "/containerd-shim-nvidia-v2"):
		case strings.HasPrefix(m[1], h.Options.ToolsDir+"/"):
			t.Errorf("a tool was executed: %s", line)
		default:
			t.Errorf("executed: %s", line)
		}
	}
	if count[runc] < 4 || count[shim] < 3 || count["/usr/bin/true"] < 3 || count[ctl] < 3 || count[nvml] != count[ctl] {
		t.Errorf("the trace is not of four containers and their probes: %v", count)
	}
	t.Logf("%v", count)
}
