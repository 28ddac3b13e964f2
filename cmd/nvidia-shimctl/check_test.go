package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/kubelet/kubelettest"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/nvml"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// program makes the smallest file that is a program for this machine; interpreter
// gives it a dynamic linker.
func program(t *testing.T, name string, interpreter bool) {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	head := append([]byte{}, self[:64]...)
	put := func(at, size int, v uint64) {
		for i := range size {
			head[at+i] = byte(v >> (8 * i))
		}
	}
	put(32, 8, 64) // program headers behind the header
	put(40, 8, 0)  // no sections
	put(54, 2, 56)
	put(56, 2, 1)
	put(58, 2, 64)
	put(60, 2, 0)
	put(62, 2, 0)
	segment := make([]byte, 56)
	segment[0] = 1 // PT_LOAD
	if interpreter {
		segment[0] = 3 // PT_INTERP
	}
	write(t, name, string(append(head, segment...)), 0o755)
}

// healthy is a node on which everything is right, but for a driver: that is tested
// with the simulated one in package integration.
func healthy(t *testing.T) *node {
	t.Helper()
	root := t.TempDir()
	program(t, filepath.Join(root, "usr/local/bin", runtimeclass.ShimName), false)
	program(t, filepath.Join(root, "usr/local/bin", runtimeclass.CtlName), false)
	write(t, filepath.Join(root, "usr/bin/runc"), "runc", 0o755)
	write(t, filepath.Join(root, runtimeclass.DefaultContainerdConfig), `version = 3
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  SystemdCgroup = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]
  runtime_type = "io.containerd.nvidia.v2"
`, 0o644)
	write(t, filepath.Join(root, "run/systemd/system/x"), "", 0o644)
	write(t, filepath.Join(root, "proc/driver/nvidia/version"), "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Release Build\n", 0o644)
	write(t, filepath.Join(root, "proc/driver/nvidia/gpus/0000:65:00.0/information"),
		"Model: NVIDIA H200\nGPU UUID: GPU-5a1d4e3c-7e5f-4b6e-9d5c-3f2a1b0c9d8e\nBus Location: 0000:65:00.0\nDevice Minor: 0\nGPU Excluded: No\n", 0o644)
	write(t, filepath.Join(root, "proc/devices"), "Character devices:\n195 nvidia\n510 nvidia-uvm\n", 0o644)
	for name, dev := range map[string]uint64{"nvidiactl": unix.Mkdev(195, 255), "nvidia0": unix.Mkdev(195, 0), "nvidia-uvm": unix.Mkdev(510, 0), "nvidia-uvm-tools": unix.Mkdev(510, 1)} {
		p := filepath.Join(root, "dev", name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mknod(p, unix.S_IFCHR|0o666, int(dev)); err != nil {
			t.Skipf("device nodes cannot be made here: %v", err)
		}
	}
	return &node{
		root: root, proc: procfs(filepath.Join(root, "processes")), containerdConfig: runtimeclass.DefaultContainerdConfig,
		containerd: "/usr/bin/containerd", kubeletDir: "/var/lib/kubelet",
		load: func() (*config.Config, error) {
			c := config.Default()
			c.Host.ProcRoot, c.Host.DevRoot = filepath.Join(root, "proc"), root
			c.Host.SysRoot, c.Host.DriverRoot = filepath.Join(root, "sys"), root
			c.Host.StateDir = filepath.Join(root, "state")
			return c, nil
		},
		execute: versions("2.4.2", "1.5.2"),
	}
}

// versions answers --version of both programs.
func versions(containerd, runc string) func(context.Context, string, ...string) (string, error) {
	return func(_ context.Context, program string, args ...string) (string, error) {
		switch {
		case filepath.Base(program) == "containerd" && args[0] == "--version":
			return "containerd github.com/containerd/containerd/v2 " + containerd + " abc\n", nil
		case filepath.Base(program) == "runc":
			return "runc version " + runc + "\nspec: 1.3.0\n", nil
		case filepath.Base(program) == runtimeclass.CtlName && args[0] == "probe":
			return "{}", nil
		}
		return "", errors.New("executable file not found")
	}
}

// failing is versions with a probe that ends with an error.
func failing(probe error) func(context.Context, string, ...string) (string, error) {
	return func(ctx context.Context, program string, args ...string) (string, error) {
		if filepath.Base(program) == runtimeclass.CtlName {
			return "", probe
		}
		return versions("2.4.2", "1.5.2")(ctx, program, args...)
	}
}

// byPath answers --version of one program below the node's root, and of containerd.
func byPath(p, answer string) func(context.Context, string, ...string) (string, error) {
	return func(ctx context.Context, program string, args ...string) (string, error) {
		if strings.HasSuffix(program, p) {
			return answer, nil
		}
		return versions("2.4.2", "1.0.0")(ctx, program, args...)
	}
}

func TestCheck(t *testing.T) {
	toml := func(text string) func(*testing.T, *node) {
		return func(t *testing.T, n *node) {
			write(t, filepath.Join(n.root, n.containerdConfig), text, 0o644)
		}
	}
	const v3 = "version = 3\n[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.runc.options]\n  SystemdCgroup = true\n"
	handler := func(text string) func(*testing.T, *node) {
		return toml(v3 + "[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.nvidia]\n" + text)
	}
	for _, c := range []struct {
		name   string
		change func(*testing.T, *node)
		check  string
		level  string
		want   string
	}{
		{"a healthy node: configuration", nil, "configuration", levelOK, "enforce"},
		{"a healthy node: shim", nil, "shim", levelOK, "/usr/local/bin/"},
		{"a healthy node: containerd", nil, "containerd", levelOK, "2.4.2"},
		{"a healthy node: handler", nil, "handler", levelOK, `"nvidia"`},
		{"a healthy node: cgroup driver", nil, "cgroup-driver", levelOK, "systemd"},
		{"a healthy node: runc", nil, "runc", levelOK, "1.5.2"},
		{"a healthy node: driver", nil, "driver", levelOK, "580.159.04 with 1 GPUs"},
		{"a healthy node: device nodes", nil, "nodes", levelOK, "4 device nodes"},
		{"a healthy node: state", nil, "state", levelOK, "first GPU container"},
		{"a healthy node: no kubelet", nil, "kubelet", levelOK, "not a Kubernetes node"},
		{"a healthy node: MIG", nil, "mig", levelOK, "no GPU is divided"},
		{"a healthy node: the unit", nil, "prepare", levelOK, "left to the driver's own tools"},
		{"a healthy node: probe", nil, "probe", levelOK, "asks NVML"},
		{"a healthy node: sockets", nil, "sockets", levelOK, "no sockets"},
		{"a healthy node: no device plugin", nil, "device-plugin", levelOK, "does not run"},
		{"a broken configuration", func(_ *testing.T, n *node) {
			n.load = func() (*config.Config, error) { return nil, errors.New("unknown key \"x\"") }
		}, "configuration", levelProblem, `unknown key "x"`},
		{"no shim", func(t *testing.T, n *node) { os.RemoveAll(filepath.Join(n.root, "usr/local/bin")) }, "shim", levelProblem, "not in containerd's PATH"},
		{"a shim that cannot be executed", func(t *testing.T, n *node) {
			handler("  runtime_type = \"io.containerd.runc.v2\"\n  runtime_path = \"/opt/containerd-shim-nvidia-v2\"\n")(t, n)
			program(t, filepath.Join(n.root, "opt", runtimeclass.ShimName), false)
			os.Chmod(filepath.Join(n.root, "opt", runtimeclass.ShimName), 0o644)
		}, "handler", levelProblem, "not executable"},
		{"a shim that others can write", func(t *testing.T, n *node) {
			os.Chmod(filepath.Join(n.root, "usr/local/bin", runtimeclass.ShimName), 0o777)
		}, "shim", levelProblem, "written by others"},
		{"a shim with a dynamic linker", func(t *testing.T, n *node) {
			program(t, filepath.Join(n.root, "usr/local/bin", runtimeclass.ShimName), true)
		}, "shim", levelProblem, "not static"},
		{"a script as the shim", func(t *testing.T, n *node) {
			write(t, filepath.Join(n.root, "usr/local/bin", runtimeclass.ShimName), "#!/bin/sh\n", 0o755)
		}, "shim", levelProblem, "not a program"},
		{"a shim of another machine", func(t *testing.T, n *node) {
			p := filepath.Join(n.root, "usr/local/bin", runtimeclass.ShimName)
			data, err := os.ReadFile(p)
			if err != nil {
				t.Fatal(err)
			}
			data[18] = 243 // RISC-V
			write(t, p, string(data), 0o755)
		}, "shim", levelProblem, "EM_RISCV"},
		{"containerd below the floor", func(_ *testing.T, n *node) { n.execute = versions("v2.2.4", "1.5.2") }, "containerd", levelProblem, "2.2.5"},
		{"containerd of a distribution", func(_ *testing.T, n *node) { n.execute = versions("1.7.24~ds1", "1.5.2") }, "containerd", levelWarning, "1.7.33"},
		{"no containerd that answers", func(_ *testing.T, n *node) { n.containerd = "/usr/bin/nothing" }, "containerd", levelProblem, "not found"},
		{"runc below the floor", func(_ *testing.T, n *node) { n.execute = versions("2.4.2", "1.3.5") }, "runc", levelProblem, "1.3.6"},
		{"a pre-release of runc", func(_ *testing.T, n *node) { n.execute = versions("2.4.2", "1.5.0-rc.1") }, "runc", levelProblem, "1.5.0"},
		{"another runc of the handler, below the floor", func(t *testing.T, n *node) {
			handler("  runtime_type = \"io.containerd.nvidia.v2\"\n  options = {BinaryName = \"/opt/old/runc\"}\n")(t, n)
			n.execute = byPath("/opt/old/runc", "runc version 1.2.4\n")
		}, "runc", levelProblem, "runc 1.2.4"},
		{"another runc of the handler, by its name in containerd's PATH", func(t *testing.T, n *node) {
			handler("  runtime_type = \"io.containerd.nvidia.v2\"\n  options = {BinaryName = \"runc-old\"}\n")(t, n)
			write(t, filepath.Join(n.root, "usr/sbin/runc-old"), "", 0o755)
			n.execute = byPath("/usr/sbin/runc-old", "runc version 1.4.2\n")
		}, "runc", levelProblem, "runc 1.4.2"},
		{"a handler whose runc is safe where the one in PATH is not", func(t *testing.T, n *node) {
			handler("  runtime_type = \"io.containerd.nvidia.v2\"\n  options = {BinaryName = \"/opt/new/runc\"}\n")(t, n)
			n.execute = byPath("/opt/new/runc", "runc version 1.5.2\n")
		}, "runc", levelOK, "runc 1.5.2"},
		{"a handler with crun", func(t *testing.T, n *node) {
			handler("  runtime_type = \"io.containerd.nvidia.v2\"\n  options = {BinaryName = \"/usr/bin/crun\"}\n")(t, n)
			n.execute = byPath("/usr/bin/crun", "crun version 1.21\n")
		}, "runc", levelOK, "crun version 1.21"},
		{"no runc", func(_ *testing.T, n *node) { os.Remove(filepath.Join(n.root, "usr/bin/runc")) }, "runc", levelProblem, "no container can start"},
		{"no handler", toml(v3), "handler", levelProblem, "no runtime handler"},
		{"no file", func(_ *testing.T, n *node) { os.Remove(filepath.Join(n.root, n.containerdConfig)) }, "handler", levelProblem, "no runtime handler"},
		{"broken TOML", toml("version = "), "handler", levelProblem, "config.toml"},
		{"CRI is off", toml("disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n" + v3), "handler", levelWarning, "switched off"},
		{"options with runtime_type alone", handler("  runtime_type = \"io.containerd.nvidia.v2\"\n  options = {SystemdCgroup = true}\n"), "handler", levelWarning, "hostUsers"},
		{"a dump with every key of containerd 1.7", handler("  runtime_type = \"io.containerd.runc.v2\"\n  runtime_path = \"/usr/local/bin/containerd-shim-nvidia-v2\"\n  options = {CriuPath = \"\", IoUid = 0, NoPivotRoot = false}\n"), "handler", levelOK, `"nvidia"`},
		{"an unknown option", handler("  runtime_type = \"io.containerd.nvidia.v2\"\n  options = {Binary = \"x\"}\n"), "handler", levelProblem, `unknown key "Binary"`},
		{"a bad policy", handler("  runtime_type = \"io.containerd.nvidia.v2\"\n  options = {policy = {kubernetes = \"no\"}}\n"), "handler", levelProblem, "policy.kubernetes"},
		{"NVIDIA's runtime below", handler("  runtime_type = \"io.containerd.nvidia.v2\"\n  options = {BinaryName = \"/usr/bin/nvidia-container-runtime\"}\n"), "handler", levelProblem, "twice"},
		{"another cgroup driver", handler("  runtime_type = \"io.containerd.nvidia.v2\"\n  options = {SystemdCgroup = false}\n"), "handler", levelWarning, "SystemdCgroup = false"},
		{"runtime_type alone before 2.4", func(_ *testing.T, n *node) { n.execute = versions("2.3.7", "1.5.2") }, "handler", levelWarning, "2.3.7"},
		{"a runtime_path that is not there", handler("  runtime_type = \"io.containerd.runc.v2\"\n  runtime_path = \"/opt/containerd-shim-nvidia-v2\"\n"), "handler", levelProblem, "no such file"},
		{"systemd, and cgroupfs in containerd", toml("version = 3\n"), "cgroup-driver", levelWarning, "systemd runs"},
		{"no systemd, and its driver", func(_ *testing.T, n *node) { os.RemoveAll(filepath.Join(n.root, "run/systemd")) }, "cgroup-driver", levelProblem, "does not run"},
		{"no driver", func(_ *testing.T, n *node) { os.RemoveAll(filepath.Join(n.root, "proc/driver")) }, "driver", levelProblem, "no NVIDIA driver"},
		{"no GPU", func(_ *testing.T, n *node) { os.RemoveAll(filepath.Join(n.root, "proc/driver/nvidia/gpus")) }, "driver", levelProblem, "no usable GPU"},
		{"a node is missing", func(_ *testing.T, n *node) { os.Remove(filepath.Join(n.root, "dev/nvidia-uvm")) }, "nodes", levelProblem, "nvidia-uvm"},
		{"a node that few containers need is missing", func(_ *testing.T, n *node) { os.Remove(filepath.Join(n.root, "dev/nvidia-uvm-tools")) }, "nodes", levelWarning, "nvidia-uvm-tools is missing"},
		{"a node of another minor that few containers need", func(t *testing.T, n *node) {
			write(t, filepath.Join(n.root, "proc/driver/nvidia/capabilities/mig/config"), "DeviceFileMinor: 1\nDeviceFileMode: 256\n", 0o444)
			write(t, filepath.Join(n.root, "proc/devices"), "Character devices:\n195 nvidia\n510 nvidia-uvm\n511 nvidia-caps\n", 0o644)
			write(t, filepath.Join(n.root, "dev/nvidia-caps/nvidia-cap1"), "", 0o644)
		}, "nodes", levelWarning, "nvidia-cap1: it is no character device"},
		{"a MIG device without its nodes", func(t *testing.T, n *node) {
			const caps = "proc/driver/nvidia/capabilities/gpu0/mig/gi1/"
			write(t, filepath.Join(n.root, "proc/devices"), "Character devices:\n195 nvidia\n510 nvidia-uvm\n511 nvidia-caps\n", 0o644)
			write(t, filepath.Join(n.root, caps, "access"), "DeviceFileMinor: 12\nDeviceFileMode: 292\n", 0o444)
			write(t, filepath.Join(n.root, caps, "ci0/access"), "DeviceFileMinor: 13\nDeviceFileMode: 292\n", 0o444)
		}, "mig", levelProblem, "nvidia-cap12 is missing"},
		{"modules are to be loaded and nobody does", func(_ *testing.T, n *node) {
			load := n.load
			n.load = func() (*config.Config, error) {
				c, err := load()
				c.Host.LoadKernelModules = true
				return c, err
			}
		}, "prepare", levelWarning, "nothing runs that at boot"},
		{"the unit of a program that is gone", func(t *testing.T, n *node) {
			write(t, filepath.Join(n.root, runtimeclass.UnitPath), "[Service]\nExecStart=/opt/gone/nvidia-shimctl prepare\n", 0o644)
		}, "prepare", levelProblem, "not made at boot"},
		{"a unit that is not enabled", func(t *testing.T, n *node) {
			write(t, filepath.Join(n.root, runtimeclass.UnitPath), "[Service]\nExecStart=/usr/local/bin/nvidia-shimctl prepare\n", 0o644)
		}, "prepare", levelWarning, "not enabled"},
		{"a unit that runs", func(t *testing.T, n *node) {
			write(t, filepath.Join(n.root, runtimeclass.UnitPath), "[Service]\nExecStart=/usr/local/bin/nvidia-shimctl prepare\n", 0o644)
			write(t, filepath.Join(n.root, runtimeclass.UnitLink), "", 0o644)
		}, "prepare", levelOK, "runs at boot"},
		{"no probe beside the shim", func(_ *testing.T, n *node) { os.Remove(filepath.Join(n.root, "usr/local/bin", runtimeclass.CtlName)) }, "probe", levelProblem, "is not beside the shim"},
		{"a probe that others can write", func(_ *testing.T, n *node) {
			os.Chmod(filepath.Join(n.root, "usr/local/bin", runtimeclass.CtlName), 0o775)
		}, "probe", levelProblem, "changed by others"},
		{"a probe without cgo", func(_ *testing.T, n *node) { n.execute = failing(nvml.ErrNoCgo) }, "probe", levelWarning, "built without cgo"},
		{"a probe whose NVML fails", func(_ *testing.T, n *node) { n.execute = failing(errors.New("Driver/library\nversion mismatch")) }, "probe", levelWarning, "version mismatch"},
		{"sockets of a daemon that does not run", func(_ *testing.T, n *node) {
			load := n.load
			n.load = func() (*config.Config, error) {
				c, err := load()
				c.Container.Sockets = []string{config.FabricManager}
				return c, err
			}
		}, "sockets", levelWarning, "fabricmanager does not run"},
		{"no libraries", nil, "libraries", levelProblem, "libcuda"},
		{"state that others can write", func(t *testing.T, n *node) {
			os.Mkdir(filepath.Join(n.root, "state"), 0o700)
			os.Chmod(filepath.Join(n.root, "state"), 0o777)
		}, "state", levelProblem, "written by others"},
		{"a kubelet without its socket", func(t *testing.T, n *node) { os.MkdirAll(filepath.Join(n.root, n.kubeletDir), 0o755) }, "kubelet", levelWarning, "not held to"},
		{"a kubelet that does not answer", func(t *testing.T, n *node) {
			write(t, filepath.Join(n.root, "var/lib/kubelet/pod-resources/kubelet.sock"), "", 0o644)
		}, "kubelet", levelProblem, "does not answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := healthy(t)
			if c.change != nil {
				c.change(t, n)
			}
			all := n.check(t.Context())
			found := false
			for _, f := range all {
				if f.Check == c.check && f.Level == c.level && strings.Contains(f.Message, c.want) {
					found = true
				}
				if (f.Level != levelOK) != (f.Fix != "") {
					t.Errorf("a finding and its fix: %+v", f)
				}
				if strings.Contains(f.Message+f.Fix, "\n") {
					t.Errorf("more than one line: %+v", f)
				}
			}
			if !found {
				t.Errorf("no %s %s with %q in\n%s", c.level, c.check, c.want, text(all))
			}
		})
	}
}

func text(all []finding) string {
	var b strings.Builder
	for _, f := range all {
		printFinding(term.New(&b), f)
	}
	return b.String()
}

// What the running daemon has in its environment and command line counts, and what it
// says about its configuration.
func TestCheckAsksTheRunningDaemon(t *testing.T) {
	n := healthy(t)
	n.containerd, n.containerdConfig, n.dump = "", "", true
	file := filepath.Join(n.root, "shim.toml")
	write(t, file, "nonsense = 1\n", 0o600)
	fixtureProcess(t, n, 77, "/opt/x/containerd", []string{"PATH=/opt/x:/usr/bin", "NVIDIA_SHIM_CONFIG=" + file}, "--config", "/etc/other.toml")
	n.load = nil
	n.execute = func(ctx context.Context, program string, args ...string) (string, error) {
		if program == "/opt/x/containerd" && args[0] == "--config" {
			if want := filepath.Join(n.root, "/etc/other.toml"); args[1] != want {
				return "", fmt.Errorf("asked for %s, want %s", args[1], want)
			}
			return "version = 4\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.dumped]\nruntime_type = 'io.containerd.nvidia.v2'\n", nil
		}
		return versions("2.4.2", "1.5.2")(ctx, program, args...)
	}
	got := text(n.check(t.Context()))
	for _, want := range []string{"unknown key \"nonsense\"", "not in containerd's PATH (/opt/x:/usr/bin)", `the handler "dumped" starts this shim`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

func TestCheckAsksTheKubelet(t *testing.T) {
	answer := func(b []byte, err error) func(*testing.T, string) {
		return func(t *testing.T, socket string) {
			kubelettest.Serve(t, socket, func(method string) ([]byte, error) {
				if method != "List" {
					return nil, status.Error(codes.Internal, method+" was called")
				}
				return b, err
			})
		}
	}
	pod := kubelettest.Pod{Namespace: "default", Name: "p", Containers: map[string]kubelettest.Devices{"c": nil}}
	for _, c := range []struct {
		name  string
		serve func(*testing.T, string)
		level string
		want  string
	}{
		{"a kubelet that answers", answer(kubelettest.List(pod, pod), nil), levelOK, "with 2 pods"},
		{"a kubelet that refuses", answer(nil, status.Error(codes.ResourceExhausted, "rejected\nby rate limit")), levelProblem, "rejected by rate limit"},
		{"something else that answers", answer([]byte("HTTP/1.1 200"), nil), levelProblem, "malformed"},
		{"a socket that takes connections and says nothing", listen, levelProblem, "DeadlineExceeded"},
		{"a socket that a dead kubelet left", func(t *testing.T, socket string) { write(t, socket, "", 0o600) }, levelProblem, "connection refused"},
		{"no socket", func(*testing.T, string) {}, levelWarning, "not held to"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, socket := kubeletSocket(t)
			c.serve(t, socket)
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			f := checkKubelet(ctx, n)
			if len(f) != 1 || f[0].Level != c.level || !strings.Contains(f[0].Message, c.want) || strings.Contains(f[0].Message, "\n") ||
				(f[0].Level != levelOK) != strings.Contains(f[0].Fix, "policy.kubelet-socket") {
				t.Errorf("%+v", f)
			}
		})
	}
}

func TestCheckWaitsForTheKubeletNoLongerThanTheProbeDoes(t *testing.T) {
	n, socket := kubeletSocket(t)
	listen(t, socket)
	ctx, cancel := context.WithTimeout(t.Context(), 3*probeTimeout)
	defer cancel()
	start := time.Now()
	if f := checkKubelet(ctx, n); len(f) != 1 || f[0].Level != levelProblem || ctx.Err() != nil {
		t.Errorf("after %v: %+v", time.Since(start), f)
	}
}

func TestCheckCommand(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "none.toml")
	status, out, errs := ctl(t, "--json", "check", "--containerd-config", empty, "--containerd", "/nonexistent/containerd")
	var got struct {
		OK       bool
		Findings []finding
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v\n%s%s", err, out, errs)
	}
	if status != 1 || got.OK || len(got.Findings) < 5 {
		t.Errorf("status %d, %+v", status, got)
	}
	status, out, _ = ctl(t, "check", "--containerd-config", empty)
	if status != 1 || !strings.Contains(out, "fix: nvidia-shimctl install") {
		t.Errorf("status %d\n%s", status, out)
	}
}

func TestFloors(t *testing.T) {
	floors := []floor{{1, 7, 33}, {2, 0, 10}, {2, 3, 2}}
	for v, level := range map[string]string{
		"1.6.40": levelProblem, "1.7.32": levelProblem, "1.7.33": levelOK, "1.7.40": levelOK, "1.8.0": levelProblem,
		"2.0.9": levelProblem, "2.0.10": levelOK, "2.1.99": levelProblem, "2.3.1": levelProblem, "2.3.2": levelOK, "2.3.2-rc.1": levelProblem,
		"2.4.0-rc.1": levelProblem, "2.4.0": levelOK, "3.0.0": levelOK,
	} {
		parsed, err := runtimeclass.ParseVersion(v)
		if err != nil {
			t.Fatal(err)
		}
		if f := belowFloor("x", parsed, floors); f.Level != level {
			t.Errorf("%s: %+v, want %s", v, f, level)
		}
	}
}
