package check

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/health"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/kubelettest"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/advisories"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cdispec"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

const (
	shimPath = "usr/local/bin/" + version.Shim
	ctlPath  = "usr/local/bin/" + version.Ctl
	tomlV3   = "version = 3\n[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.runc.options]\n  SystemdCgroup = true\n"
	nvidia   = "[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.nvidia]\n"
	byType   = "runtime_type = \"io.containerd.nvidia.v2\"\n"
)

// fixture is a node in a directory.
type fixture struct {
	Options
	tree testtree.Root
}

// healthy is a node without a problem, except that the driver's libraries are missing: the tests of
// nvidia-shimctl have those.
func healthy(t *testing.T) *fixture {
	t.Helper()
	tree := testtree.NewRoot(t)
	f := &fixture{tree: tree, Options: Options{Root: tree.Dir, Proc: procfs.FS(filepath.Join(tree.Dir, "processes"))}}
	f.configure("", "")
	f.script(shimPath, "echo '  Version:  1.2.3'")
	f.script(ctlPath, "echo {}")
	f.version("containerd", "containerd github.com/containerd/containerd/v2 2.4.2 abc")
	f.version("runc", "runc version 1.5.3")
	f.write("proc/sys/kernel/osrelease", "6.18.0-1-amd64\n")
	f.containerd(tomlV3 + nvidia + byType)
	f.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Release Build\n")
	f.write("proc/driver/nvidia/gpus/0000:65:00.0/information",
		"Model: NVIDIA H200\nGPU UUID: GPU-5a1d4e3c-7e5f-4b6e-9d5c-3f2a1b0c9d8e\nBus Location: 0000:65:00.0\nDevice Minor: 0\nGPU Excluded: No\n")
	f.write("proc/devices", "Character devices:\n195 nvidia\n510 nvidia-uvm\n511 nvidia-caps\n")
	f.write("sys/bus/pci/devices/0000:65:00.0/vendor", "0x10de\n")
	f.write("sys/bus/pci/devices/0000:65:00.0/class", "0x030200\n")
	tree.Node("nvidiactl", 195, 255, 0o666)
	tree.Node("nvidia0", 195, 0, 0o666)
	tree.Node("nvidia-uvm", 510, 0, 0o666)
	tree.Node("nvidia-uvm-tools", 510, 1, 0o666)
	return f
}

// sickGPU makes the node's watcher say that its GPU is sick.
func sickGPU(f *fixture) {
	f.write("state/x", "")
	f.tree.Check(health.Write(filepath.Join(f.tree.Dir, "state"), health.File{
		Boot: health.BootID(), Driver: "580.159.04", Time: time.Now(),
		GPUs: []health.GPU{{PCI: "0000:65:00.0", State: health.Refuse, Reason: "Xid 79", Fix: "reboot", Since: time.Now()}},
	}))
}

func (f *fixture) write(name, text string) { f.tree.Write(name, text) }

func (f *fixture) remove(name string) {
	f.tree.Helper()
	f.tree.Check(os.RemoveAll(filepath.Join(f.Root, name)))
}

func (f *fixture) chmod(name string, mode os.FileMode) {
	f.tree.Helper()
	f.tree.Check(os.Chmod(filepath.Join(f.Root, name), mode))
}

func (f *fixture) script(name, body string) { f.write(name, "#!/bin/sh\n"+body+"\n") }

// version makes a program that prints its version.
func (f *fixture) version(name, text string) {
	if !filepath.IsAbs(name) {
		name = filepath.Join("usr/bin", name)
	}
	f.script(name, "echo '"+text+"'")
}

// containerd writes containerd's configuration.
func (f *fixture) containerd(text string) { f.write(runtimeclass.DefaultContainerdConfig, text) }

// configure writes the shim's configuration: further keys of [host], and other tables.
func (f *fixture) configure(host, tables string) {
	text := fmt.Sprintf("[host]\nproc-root = %q\ndev-root = %q\nsys-root = %q\ndriver-root = %q\nstate-dir = %q\n%s\n%s",
		f.Root+"/proc", f.Root, f.Root+"/sys", f.Root, f.Root+"/state", host, tables)
	f.write("shim.toml", text)
	f.Config = filepath.Join(f.Root, "shim.toml")
}

// process adds a process to the procfs.
func (f *fixture) process(pid int, program string, environ []string, args ...string) {
	f.tree.Helper()
	f.tree.Process("processes", pid, program, environ, args...)
}

// check runs all checks, and returns the findings of one of them, or of all.
func (f *fixture) check(name string) []Finding {
	f.tree.Helper()
	var list []Finding
	for _, g := range Node(f.tree.Context(), f.Options) {
		if (g.Level != OK) != (g.Fix != "") || strings.Contains(g.Message+g.Fix, "\n") {
			f.tree.Errorf("a finding has to be one line, and a fix has to go with what is wrong: %+v", g)
		}
		if name == "" || g.Check == name {
			list = append(list, g)
		}
	}
	return list
}

// want looks for a finding of a level with a text.
func want(t *testing.T, list []Finding, level, text string) {
	t.Helper()
	for _, f := range list {
		if f.Level == level && strings.Contains(f.Message+"; fix: "+f.Fix, text) {
			return
		}
	}
	t.Errorf("no %s with %q in\n%+v", level, text, list)
}

func TestAHealthyNode(t *testing.T) {
	f := healthy(t)
	for name, text := range map[string]string{
		"configuration": "enforce", "shim": "/usr/local/bin/" + version.Shim + " 1.2.3", "containerd": "2.4.2", "handler": `"nvidia"`,
		"runc": "1.5.3", "driver": "580.159.04 with 1 GPUs", "nodes": "4 device nodes, 0 MIG devices",
		"prepare": "the driver's own tools", "probe": "asks NVML", "sockets": "no sockets", "health": "nothing watches", "state": "first GPU container",
		"kubelet": "not a Kubernetes node", "criu": "criu is not installed",
	} {
		want(t, f.check(name), OK, text)
	}
}

func TestProblems(t *testing.T) {
	handler := func(text string) func(*fixture) {
		return func(f *fixture) { f.containerd(tomlV3 + nvidia + text) }
	}
	containerd := func(text string) func(*fixture) { return func(f *fixture) { f.containerd(text) } }
	prints := func(program, text string) func(*fixture) { return func(f *fixture) { f.version(program, text) } }
	unit := func(f *fixture) { f.write(runtimeclass.UnitPath, "[Service]\nExecStart=/"+ctlPath+" prepare\n") }
	const atPath = "runtime_type = \"io.containerd.runc.v2\"\nruntime_path = \"/opt/containerd-shim-nvidia-v2\"\n"
	for _, c := range []struct {
		name   string
		change func(*fixture)
		check  string
		level  string
		want   string
	}{
		{"a broken configuration", func(f *fixture) { f.configure("x = 1", "") }, "configuration", Problem, `unknown key "host.x"`},
		{"a policy that believes the environment", func(f *fixture) { f.configure("", "[policy]\nkubernetes = \"trust-env\"\n") }, "configuration", Warning, "whatever was allocated"},
		{"no shim", func(f *fixture) { f.remove("usr/local/bin") }, "shim", Problem, "not in containerd's PATH"},
		{"a shim at a handler's runtime_path only", func(f *fixture) {
			handler(atPath)(f)
			f.remove("usr/local/bin")
			f.script("opt/"+version.Shim, "echo version")
		}, "shim", OK, "/opt/"},
		{"a runtime_path that cannot be executed", func(f *fixture) {
			handler(atPath)(f)
			f.script("opt/"+version.Shim, "echo version")
			f.chmod("opt/"+version.Shim, 0o644)
		}, "shim", Problem, "permission denied"},
		{"a runtime_path that does not exist", handler(atPath), "shim", Problem, "no such file"},
		{"a shim that others can write", func(f *fixture) { f.chmod(shimPath, 0o777) }, "shim", Problem, "writable by users other than root"},
		{"a shim that does not start", func(f *fixture) { f.write(shimPath, "\x7fELF") }, "shim", Problem, "exec format error"},
		{"containerd with an advisory", prints("containerd", "containerd x v2.4.0 abc"), "containerd", Warning,
			"containerd 2.4.0 is affected by CVE-2026-53493 (an image with endless references exhausts the daemon's memory), CVE-2026-95839 "},
		{"containerd with its fix", prints("containerd", "containerd x v2.3.2 abc"), "containerd", Warning, "fix: update containerd to 2.3.7, 2.4.2 or later, or check that its package has the fixes"},
		{"containerd of a distribution", prints("containerd", "containerd x 1.7.24~ds1 abc"), "containerd", Warning, "CVE-2026-53488"},
		{"a driver with an advisory", func(f *fixture) {
			f.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.126.09  Release Build\n")
		}, "driver", Warning, "NVIDIA driver 580.126.9 is affected by CVE-2026-24187 and others (a process with a GPU runs code in the kernel); fix: update NVIDIA driver to 535.309.01, 580.159.03, 595.71.05"},
		{"no containerd that answers", func(f *fixture) { f.script("usr/bin/containerd", "exit 3") }, "containerd", Problem, "exit status 3"},
		{"no containerd", func(f *fixture) { f.remove("usr/bin/containerd") }, "containerd", Warning, "--containerd"},
		{"runc with an advisory", prints("runc", "runc version 1.3.5"), "runc", Warning, "CVE-2026-41579"},
		{"runc whose kernel matters", prints("runc", "runc version 1.4.3"), "runc", Warning, "corrupts runc's memory"},
		{"runc of Debian, which does not keep a node from being installed", prints("runc", "runc version 1.1.15+ds1\ncommit: 1.1.15+ds1-2+b4"), "runc", Warning, "runc 1.1.15+ds1"},
		{"runc of Ubuntu", prints("runc", "runc version 1.4.4-0ubuntu1"), "runc", OK, "runc 1.4.4-0ubuntu1"},
		{"a runc without a version", prints("runc", "runc version main"), "runc", Warning, "install a released runc"},
		{"a pre-release of runc", prints("runc", "runc version 1.6.0-rc.1"), "runc", Warning, "CVE-2026-119101"},
		{"a handler with another runc", func(f *fixture) {
			handler(byType + "options = {BinaryName = \"/opt/old/runc\"}\n")(f)
			f.version("/opt/old/runc", "runc version 1.2.4")
		}, "runc", Warning, "runc 1.2.4"},
		{"a handler with a runc by name", func(f *fixture) {
			handler(byType + "options = {BinaryName = \"runc-old\"}\n")(f)
			f.version("/usr/sbin/runc-old", "runc version 1.4.2")
		}, "runc", Warning, "runc 1.4.2"},
		{"a handler with a safe runc, and one in PATH that is not", func(f *fixture) {
			handler(byType + "options = {BinaryName = \"/opt/new/runc\"}\n")(f)
			f.version("runc", "runc version 1.0.0")
			f.version("/opt/new/runc", "runc version 1.5.3")
		}, "runc", OK, "runc 1.5.3"},
		{"a handler with crun", func(f *fixture) {
			handler(byType + "options = {BinaryName = \"/usr/bin/crun\"}\n")(f)
			f.version("crun", "crun version 1.30")
		}, "runc", Warning, "crun 1.30.0 is affected by CVE-2026-115520"},
		{"a handler with another runtime", func(f *fixture) {
			handler(byType + "options = {BinaryName = \"/usr/bin/youki\"}\n")(f)
			f.version("youki", "youki 0.5.0")
		}, "runc", OK, "/usr/bin/youki is neither runc nor crun"},
		{"a CRIU", prints("criu", "Version: 4.3.1"), "criu", OK, "CRIU 4.3.1"},
		{"an old CRIU", prints("criu", "Version: 4.2\nGitID: v4.2"), "criu", OK, `cannot be checkpointed: /usr/bin/criu: CRIU "Version: 4.2" has CVE-2026-119614: update CRIU to 4.3.1`},
		{"a CRIU that fails", func(f *fixture) { f.script("usr/bin/criu", "exit 3") }, "criu", OK, "exit status 3"},
		{"no runc", func(f *fixture) { f.remove("usr/bin/runc") }, "runc", Problem, "no container can start"},
		{"no handler", containerd(tomlV3), "handler", Problem, "no runtime handler"},
		{"no containerd configuration", func(f *fixture) { f.remove(runtimeclass.DefaultContainerdConfig) }, "handler", Problem, "no runtime handler"},
		{"that of k3s", func(f *fixture) {
			f.remove(runtimeclass.DefaultContainerdConfig)
			f.write(runtimeclass.DaemonOf("k3s").Config, tomlV3+nvidia+byType)
		}, "handler", OK, `"nvidia"`},
		{"broken TOML", containerd("version = "), "handler", Problem, "config.toml"},
		{"CRI is off", containerd("disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n" + tomlV3), "handler", Warning, "disabled"},
		{"options with runtime_type alone", handler(byType + "options = {SystemdCgroup = true}\n"), "handler", Warning, "hostUsers"},
		{"an unknown option", handler(byType + "options = {Binary = \"x\"}\n"), "handler", Problem, `unknown key "Binary"`},
		{"a bad policy", handler(byType + "options = {policy = {kubernetes = \"no\"}}\n"), "handler", Problem, "policy.kubernetes"},
		{"NVIDIA's runtime below", handler(byType + "options = {BinaryName = \"/usr/bin/nvidia-container-runtime\"}\n"), "handler", Problem, "twice"},
		{"runtime_type alone before 2.4", prints("containerd", "containerd x 2.3.7 abc"), "handler", Warning, "2.3.7"},
		{"no driver", func(f *fixture) { f.remove("proc/driver") }, "driver", Problem, "prepare --load-modules"},
		{"no driver, and no GPU", func(f *fixture) { f.remove("proc/driver"); f.remove("sys/bus") }, "driver", Problem, "no NVIDIA GPU on its PCI bus"},
		{"a driver without a GPU", func(f *fixture) { f.remove("proc/driver/nvidia/gpus") }, "driver", Problem, "no usable GPU"},
		{"a node is missing", func(f *fixture) { f.remove("dev/nvidia-uvm") }, "nodes", Problem, "nvidia-uvm"},
		{"a node that few containers need is missing", func(f *fixture) { f.remove("dev/nvidia-uvm-tools") }, "nodes", Warning, "nvidia-uvm-tools is missing"},
		{"a file in place of such a node", func(f *fixture) {
			f.write("proc/driver/nvidia/capabilities/mig/config", "DeviceFileMinor: 1\nDeviceFileMode: 256\n")
			f.write("dev/nvidia-caps/nvidia-cap1", "")
		}, "nodes", Warning, "nvidia-cap1: it is not a character device"},
		{"a MIG device without its nodes", func(f *fixture) {
			for name, minor := range map[string]int{"access": 12, "ci0/access": 13} {
				f.write("proc/driver/nvidia/capabilities/gpu0/mig/gi1/"+name, fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 292\n", minor))
			}
		}, "nodes", Problem, "nvidia-cap12 is missing"},
		{"modules are to be loaded, and nothing does it", func(f *fixture) { f.configure("load-kernel-modules = true", "") }, "prepare", Warning, "nothing runs that at boot"},
		{"a unit that is not enabled", unit, "prepare", Warning, "not enabled"},
		{"the package's unit, enabled", func(f *fixture) {
			f.configure("load-kernel-modules = true", "")
			f.write("usr/lib/systemd/system/"+runtimeclass.UnitName, "")
			f.write(runtimeclass.UnitLink, "")
		}, "prepare", OK, "runs at boot"},
		{"a unit that runs", func(f *fixture) { unit(f); f.write(runtimeclass.UnitLink, "") }, "prepare", OK, "runs at boot"},
		{"no probe beside the shim", func(f *fixture) { f.remove(ctlPath) }, "probe", Problem, "pods whose allocation has to be read from the kubelet"},
		{"a probe that others can write", func(f *fixture) { f.chmod(ctlPath, 0o775) }, "probe", Problem, "writable by users other than root"},
		{"a probe whose NVML fails", func(f *fixture) { f.script(ctlPath, "echo version mismatch >&2; exit 1") }, "probe", Warning, "version mismatch"},
		{"a GPU of which NVML does not say everything", func(f *fixture) {
			f.script(ctlPath, `echo '{"facts":{"gpus":[{"error":"GPU 0: lost"},{"instances":[{"error":"MIG device 1:0: lost"}]}]}}'`)
		}, "probe", Warning, "GPU 0: lost"},
		{"a MIG device of which NVML does not say everything", func(f *fixture) {
			f.script(ctlPath, `echo '{"facts":{"gpus":[{"instances":[{"error":"MIG device 1:0: lost"}]}]}}'`)
		}, "probe", Warning, "MIG device 1:0: lost"},
		{"sockets of a daemon that does not run", func(f *fixture) {
			f.configure("", "[container]\nsockets = [\""+config.FabricManager+"\"]\n")
		}, "sockets", Warning, "fabricmanager does not run"},
		{"a refusal of sick GPUs that nothing watches", func(f *fixture) { f.configure("", "[policy]\nhealth = \"refuse\"\n") }, "health", Warning, "but nothing watches"},
		{"health that is off", func(f *fixture) { f.configure("", "[policy]\nhealth = \"off\"\n") }, "health", OK, "off"},
		{"a damaged health file", func(f *fixture) { f.write("state/"+health.Name, "{") }, "health", Warning, "unexpected end of JSON"},
		{"a sick GPU", sickGPU, "health", Warning, "GPU 0 (0000:65:00.0) is unhealthy since 20"},
		{"what to do about a sick GPU", sickGPU, "health", Warning, ": Xid 79; fix: reboot"},
		{"no libraries", func(*fixture) {}, "libraries", Problem, "libcuda"},
		{"state that others can write", func(f *fixture) { f.write("state/x", ""); f.chmod("state", 0o777) }, "state", Problem, "writable by users other than root"},
		{"a kubelet without its socket", func(f *fixture) { f.write("var/lib/kubelet/x", "") }, "kubelet", Warning, "are refused"},
		{"a kubelet that answers", func(f *fixture) {
			f.configure("", "[policy]\nkubelet-socket = \"/k.sock\"\n")
			kubelettest.Serve(f.tree, f.Root+"/k.sock", kubelettest.Pod("default", "p"))
		}, "kubelet", OK, "with 1 pods"},
		{"a kubelet with another root directory", func(f *fixture) {
			f.write("var/lib/kubelet/x", "")
			f.process(77, "/usr/bin/kubelet", nil, "--root-dir=/srv/kubelet")
		}, "kubelet", Problem, "the kubelet's socket is /srv/kubelet/pod-resources/kubelet.sock, but policy.kubelet-socket is /var/lib/"},
		{"a socket that nothing listens on", func(f *fixture) { f.write(config.Default().Policy.KubeletSocket, "") }, "kubelet", Problem, "does not answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := healthy(t)
			c.change(f)
			want(t, f.check(c.check), c.level, c.want)
		})
	}
}

func TestTheRunningDaemonCounts(t *testing.T) {
	f := healthy(t)
	f.write("other.toml", "nonsense = 1\n")
	environ := []string{"PATH=/opt/x:/usr/bin", "NVIDIA_SHIM_CONFIG=" + filepath.Join(f.Root, "other.toml")}
	f.process(77, "/usr/bin/containerd", environ, "--config", "/etc/its.toml")
	f.version("containerd", "containerd x 2.3.9 abc")
	f.write("etc/its.toml", tomlV3+strings.Replace(nvidia, "nvidia", "its", 1)+byType)
	f.Config = ""
	list := f.check("")
	want(t, list, Problem, `unknown key "nonsense"`)
	want(t, list, Problem, "not in containerd's PATH (/opt/x:/usr/bin)")
	want(t, list, OK, "containerd 2.3.9")
	want(t, list, Warning, `handler "its"`)
}

// Programs that only a process or its environment names are found, and not executed.
func TestT74AProgramIsNotExecutedBecauseAProcessNamesIt(t *testing.T) {
	f := healthy(t)
	f.process(77, "/opt/x/containerd", []string{"PATH=/opt/x:/usr/local/bin:/usr/bin"})
	f.process(78, "/opt/x/dockerd", nil)
	f.process(79, "/opt/x/kubelet", nil)
	f.write("etc/docker/daemon.json", `{"runtimes": {"gpu": {"runtimeType": "io.containerd.nvidia.v2"}}}`)
	for _, name := range []string{"containerd", "dockerd", "kubelet", "runc", "criu", version.Shim, version.Ctl} {
		f.script("opt/x/"+name, "touch "+f.Root+"/executed")
	}
	const why = ", which is not executed, because only a process or its PATH names it: its version is not checked"
	want(t, f.check("containerd"), Warning, "containerd is /opt/x/containerd"+why+"; fix: set it with --containerd")
	want(t, f.check("runc"), Warning, "runc is /opt/x/runc"+why+"; fix: name its path in the handler's BinaryName")
	want(t, f.check("criu"), OK, "criu is /opt/x/criu"+why)
	want(t, f.check("shim"), Warning, version.Shim+" is /opt/x/"+version.Shim+why)
	if list := f.check("probe"); len(list) > 0 {
		t.Errorf("%+v", list)
	}
	f.Target = runtimeclass.Docker
	want(t, f.check("docker"), Warning, "dockerd is /opt/x/dockerd"+why)
	have := Versions(t.Context(), f.Options)
	for _, name := range []string{"containerd", "dockerd", "kubelet", "runc"} {
		if text := fmt.Sprint(have[name]); text != name+" is /opt/x/"+name+why {
			t.Errorf("%s: %s", name, text)
		}
	}
	if _, err := os.Stat(filepath.Join(f.Root, "executed")); err == nil {
		t.Error("a program was executed")
	}
}

// What others can replace is not executed, even if the operator names it.
func TestAProgramThatOthersCanReplaceIsNotExecuted(t *testing.T) {
	for name, change := range map[string]func(*fixture){
		"criu": func(f *fixture) {
			f.script("usr/sbin/criu", "touch "+f.Root+"/executed")
			f.chmod("usr/sbin", 0o777)
		},
		"containerd": func(f *fixture) { f.Containerd = filepath.Join(f.Root, "open/containerd") },
		"runc": func(f *fixture) {
			f.containerd(tomlV3 + nvidia + byType + strings.Replace(nvidia, "]", ".options]", 1) + `BinaryName = "/open/runc"`)
		},
		"shim": func(f *fixture) {
			f.containerd(tomlV3 + nvidia + `runtime_type = "/open/` + version.Shim + `"`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := healthy(t)
			for _, program := range []string{"containerd", "runc", version.Shim} {
				f.script("open/"+program, "touch "+f.Root+"/executed")
			}
			f.chmod("open", 0o777)
			change(f)
			list := f.check(name)
			want(t, list, list[0].Level, " is writable by users other than root")
			if _, err := os.Stat(filepath.Join(f.Root, "executed")); err == nil {
				t.Error("it was executed")
			}
		})
	}
}

func TestTheDaemonToCheckCanBeNamed(t *testing.T) {
	f := healthy(t)
	const k3s = "/var/lib/rancher/k3s/data/current/bin/containerd"
	f.process(7, k3s, nil, "-c", "/var/lib/rancher/k3s/agent/etc/containerd/config.toml")
	f.process(8, "/usr/bin/containerd", nil)
	f.version(k3s, "containerd x 2.3.8 abc")
	f.write("var/lib/rancher/k3s/agent/etc/containerd/config.toml", tomlV3+strings.Replace(nvidia, "nvidia", "its", 1)+byType)
	f.Containerd, f.Configs, f.Target = "", nil, "k3s"
	want(t, f.check(""), OK, "containerd 2.3.8")
	want(t, f.check("handler"), Warning, `handler "its"`)
	f.Target = runtimeclass.Containerd
	want(t, f.check("handler"), OK, `the handler "nvidia"`)
	f.Target = "rke2"
	want(t, f.check("handler"), Problem, "no runtime handler in /var/lib/rancher/rke2/agent/")
	f.Target = runtimeclass.Docker
	want(t, f.check("handler"), Problem, "no runtime handler in /etc/docker/daemon.json")
	f.write("etc/docker/daemon.json", `{"runtimes": {"gpu": {"runtimeType": "/usr/local/bin/`+version.Shim+`"}}}`)
	want(t, f.check("handler"), OK, `the handler "gpu" in /etc/docker/daemon.json`)
	f.write("etc/docker/daemon.json", "{")
	want(t, f.check("handler"), Problem, "/etc/docker/daemon.json: line 1: unexpected EOF")
}

// A workstation has Docker's runtime and no handler.
func TestAHostOfDockerAlone(t *testing.T) {
	f := healthy(t)
	f.write("etc/docker/daemon.json", `{"runtimes": {"gpu": {"runtimeType": "io.containerd.nvidia.v2"}, "crun": {"path": "/usr/bin/crun"}}}`)
	want(t, f.check("handler"), OK, `the handler "nvidia" in /etc/containerd/config.toml`)
	f.containerd(`disabled_plugins = ["cri"]`)
	want(t, f.check("docker"), Warning, "no dockerd is running or in PATH")
	f.version("dockerd", "Docker version 29.1.0, build abc")
	f.version("containerd", "containerd github.com/containerd/containerd/v2 2.3.7 abc")
	for _, g := range f.check("") {
		if g.Level != OK && g.Check != "libraries" && g.Check != "advisories" {
			t.Errorf("%+v", g)
		}
	}
	want(t, f.check("handler"), OK, `the handler "gpu" in /etc/docker/daemon.json`)
	f.Configs = map[string]string{runtimeclass.Containerd: "/etc/containerd/config.toml"}
	want(t, f.check("handler"), Problem, "no runtime handler in /etc/containerd/config.toml")
	f.Configs = map[string]string{runtimeclass.Docker: "/opt/docker.json"}
	want(t, f.check("handler"), Problem, "no runtime handler in /opt/docker.json")
	f.Configs = nil
	f.process(8, "/usr/bin/containerd", nil)
	f.version("containerd", "containerd x 2.4.9 abc")
	f.Target = runtimeclass.Docker
	want(t, f.check("containerd"), OK, "containerd 2.4.9")
}

func TestWhatDockerNeedsBesides(t *testing.T) {
	f := healthy(t)
	f.Target, f.Configs = runtimeclass.Docker, map[string]string{runtimeclass.Docker: "/opt/docker.json"}
	f.write("opt/docker.json", `{"runtimes": {"nvidia": {"runtimeType": "io.containerd.nvidia.v2"}}}`)
	want(t, f.check("handler"), OK, "/opt/docker.json")
	f.process(9, "/opt/bin/dockerd", []string{"PATH=/opt:/usr/bin"})
	f.version("/opt/bin/dockerd", "Docker version 23.0.6, build abc")
	want(t, f.check("docker"), Problem, "dockerd 23.0.6 ignores runtimeType")
	f.version("/opt/bin/dockerd", "Docker version 29.1.0, build abc")
	want(t, f.check("docker"), OK, "dockerd 29.1.0 reads the runtimes of /opt/docker.json")
	f.write(cdispec.Path, string(runtimeclass.Marked("devices: []\n")))
	f.CDI = func() ([]byte, error) { return nil, os.ErrNotExist }
	want(t, f.check("docker"), Warning, "docker run --gpus fails")
	if fix := f.check("docker")[0].Fix; fix != "nvidia-shimctl install --target docker --gpus-flag, then systemctl restart docker" {
		t.Error(fix)
	}
	f.script("usr/local/bin/nvidia-cdi-hook", "") // not in dockerd's PATH
	want(t, f.check("docker"), Warning, "(/opt:/usr/bin)")
	f.script("opt/nvidia-cdi-hook", "")
	want(t, f.check("docker"), OK, "29.1.0")
	f.version("/opt/bin/dockerd", "Docker version 28.5.2, build abc")
	want(t, f.check("docker"), Warning, "docker run --gpus fails: dockerd 28.5.2 does not resolve it by CDI")
	f.remove("opt/nvidia-cdi-hook")
	want(t, f.check("docker"), OK, "28.5.2")
	f.version("/opt/bin/dockerd", "Docker version 26.1.5, build abc")
	want(t, f.check("docker"), Warning, "docker run --device nvidia.com/gpu=0 fails")
	f.write("opt/docker.json", `{"features": {"cdi": true}, "runtimes": {"nvidia": {"runtimeType": "io.containerd.nvidia.v2"}}}`)
	want(t, f.check("docker"), OK, "26.1.5")
	f.version("/opt/bin/dockerd", "Docker version 29.1.0, build abc")
	testtree.Check(t, os.Symlink("/bin/false", filepath.Join(f.Root, "opt/nvidia-cdi-hook"))) // earlier advice
	want(t, f.check("docker"), Warning, "the link /opt/nvidia-cdi-hook to /bin/false hides")
	if fix := f.check("docker")[0].Fix; !strings.HasPrefix(fix, "rm /opt/nvidia-cdi-hook, then nvidia-shimctl install ") {
		t.Error(fix)
	}
	f.script("opt/bin/dockerd", "exit 3")
	want(t, f.check("docker"), Problem, "exit status 3")
}

func TestVersions(t *testing.T) {
	f := healthy(t)
	wanted := func(wants map[string]string) {
		t.Helper()
		have := Versions(t.Context(), f.Options)
		for name, want := range wants {
			if got := fmt.Sprint(have[name]); got != strings.ReplaceAll(want, "ROOT", f.Root) {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
	}
	wanted(map[string]string{
		"driver": "driver 580.159.04", "containerd": "ROOT/usr/bin/containerd: containerd github.com/containerd/containerd/v2 2.4.2 abc",
		"runc": "ROOT/usr/bin/runc: runc version 1.5.3", "dockerd": "not found", "docker_runtimes": "not found", "kubelet": "not found", "k3s": "not found",
	})
	f.containerd(tomlV3 + nvidia + byType + strings.Replace(nvidia, "]", ".options]", 1) + `BinaryName = "/opt/crun"`)
	f.script("opt/crun", "echo crun version 1.2; echo commit: x")
	f.process(9, "/opt/bin/dockerd", nil, "--config-file", "/opt/docker.json")
	f.script("opt/bin/dockerd", "exit 3")
	f.write("opt/docker.json", `{"runtimes": {"gpu": {"runtimeType": "io.containerd.nvidia.v2"}, "other": {"path": "/secret"}}, "labels": ["secret"]}`)
	f.process(10, "/opt/bin/kubelet", nil)
	f.version("/opt/bin/kubelet", "Kubernetes v1.36.3")
	f.version("kubelet", "Kubernetes v1.33.0") // it does not run
	f.remove("proc/driver")
	wanted(map[string]string{
		"driver": "not found", "runc": "ROOT/usr/bin/runc: runc version 1.5.3", "/opt/crun": "ROOT/opt/crun: crun version 1.2",
		"dockerd": "ROOT/opt/bin/dockerd --version: exit status 3", "docker_runtimes": "map[gpu:io.containerd.nvidia.v2]",
		"kubelet": "ROOT/opt/bin/kubelet: Kubernetes v1.36.3",
	})
	f.tree.ReplaceLink("processes/10/ns/mnt", "mnt:[2]") // a kubelet in a container
	f.write("opt/docker.json", "{")
	wanted(map[string]string{"kubelet": "ROOT/usr/bin/kubelet: Kubernetes v1.33.0", "docker_runtimes": "/opt/docker.json: line 1: unexpected EOF"})
}

// k3s brings runc and containerd, which are not in the PATH of this host.
func TestADistributionThatDoesNotRun(t *testing.T) {
	f := healthy(t)
	for _, name := range []string{runtimeclass.DefaultContainerdConfig, "usr/bin/runc", "usr/bin/containerd"} {
		f.remove(name)
	}
	f.write("var/lib/rancher/k3s/agent/etc/containerd/config.toml", tomlV3+nvidia+byType)
	f.version("/var/lib/rancher/k3s/data/current/bin/containerd", "containerd x 2.4.8 abc")
	f.version("/var/lib/rancher/k3s/data/current/bin/runc", "runc version 1.5.3")
	want(t, f.check("containerd"), OK, "containerd 2.4.8")
	want(t, f.check("runc"), OK, "runc 1.5.3")
	// An upgrade of RKE2 leaves the programs of the previous version.
	for _, version := range []string{"2.4.6", "2.4.7"} {
		f.version("/var/lib/rancher/rke2/data/v"+version+"/bin/containerd", "containerd x "+version+" abc")
	}
	f.Target = "rke2"
	want(t, f.check("containerd"), OK, "containerd 2.4.7")
}

// A container can put any file at the path of a program of the host, and name itself like it.
func TestT74AProcessOfAContainerIsNotBelieved(t *testing.T) {
	f := healthy(t)
	f.process(10, "/usr/bin/containerd", []string{"PATH=/evil", "NVIDIA_SHIM_CONFIG=/evil/config.toml"}, "--config=/evil/config.toml")
	f.tree.ReplaceLink("processes/10/ns/mnt", "mnt:[2]")
	for _, g := range f.check("") {
		if strings.Contains(g.Message, "evil") || g.Level != OK && g.Check != "libraries" {
			t.Errorf("%+v", g)
		}
	}
}

func TestTheTableOfAdvisoriesAges(t *testing.T) {
	reviewed, err := time.Parse(time.DateOnly, advisories.Reviewed)
	testtree.Check(t, err)
	want(t, checkAdvisories(reviewed.Add(90*24*time.Hour)), OK, "known on "+advisories.Reviewed)
	want(t, checkAdvisories(reviewed.Add(91*24*time.Hour)), Warning, "is 91 days old")
}

// A node is not refused for the version of a component, however old.
func TestNoVersionIsAProblem(t *testing.T) {
	f := healthy(t)
	f.version("containerd", "containerd x 1.6.20~ds1 abc")
	f.version("runc", "runc version 1.1.5+ds1")
	f.version("criu", "Version: 3.1")
	f.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.42.01  Release Build\n")
	for _, g := range f.check("") {
		if g.Level == Problem && g.Check != "libraries" {
			t.Errorf("%+v", g)
		}
	}
}

func TestCDISpecification(t *testing.T) {
	const devices = "kind: nvidia.com/gpu\ndevices: [{name: all}]\n"
	made := string(runtimeclass.Marked(devices))
	f := healthy(t)
	var err error
	f.CDI = func() ([]byte, error) { return []byte(made), err }
	if list := f.check("cdi"); len(list) > 0 {
		t.Errorf("without a specification: %+v", list)
	}
	f.write(cdispec.Path, "kind: nvidia.com/gpu\n")
	if list := f.check("cdi"); len(list) > 0 {
		t.Errorf("that of another program: %+v", list)
	}
	f.write(cdispec.Path, made)
	want(t, f.check("cdi"), OK, "up to date")
	f.write("etc/cdi/nvidia.old.yaml", devices)
	want(t, f.check("cdi"), Problem, "nvidia.old.yaml both define nvidia.com/gpu=all")
	f.remove("etc/cdi/nvidia.old.yaml")
	f.write("var/run/cdi/theirs.yaml", devices)
	want(t, f.check("cdi"), OK, "up to date")
	f.write(cdispec.Path, string(runtimeclass.Marked("devices: []\n")))
	want(t, f.check("cdi"), Warning, "does not match this driver")
	err = os.ErrNotExist
	want(t, f.check("cdi"), Warning, "cannot be checked")
}

// A file with another owner needs no other package.
func TestTheAdviceForARefusedFileIsThatOfItsReason(t *testing.T) {
	for reason, want := range map[string]string{
		"is owned by uid 7: chown it to root": "chown it to root, or reinstall the driver's package",
		"is not a regular file":               "reinstall the driver's package",
	} {
		if got := repair(reason); got != want {
			t.Errorf("%s: %s", reason, got)
		}
	}
}
