package main

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// fixtureProcess puts a process into the node's procfs.
func fixtureProcess(t *testing.T, n *node, pid int, program string, environ []string, args ...string) {
	t.Helper()
	dir := n.proc.of(strconv.Itoa(pid), "")
	write(t, filepath.Join(dir, "comm"), filepath.Base(program)[:min(15, len(filepath.Base(program)))]+"\n", 0o644)
	write(t, filepath.Join(dir, "environ"), strings.Join(environ, "\x00")+"\x00", 0o644)
	write(t, filepath.Join(dir, "cmdline"), strings.Join(append([]string{program}, args...), "\x00")+"\x00", 0o644)
	write(t, filepath.Join(dir, "status"), administrator, 0o644)
	link(t, program, filepath.Join(dir, "exe"))
	link(t, "user:[1]", filepath.Join(dir, "ns/user"))
	if own := n.proc.of("self", "ns/user"); !exists(own) {
		link(t, "user:[1]", own)
	}
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

func link(t *testing.T, target, name string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
}

func TestCheckSaysWhatTheDevicePluginMeansForTheShim(t *testing.T) {
	const plugin = "/usr/bin/nvidia-device-plugin"
	policy := func(change func(*config.Policy)) func(*testing.T, *node) {
		return func(_ *testing.T, n *node) {
			load := n.load
			n.load = func() (*config.Config, error) {
				c, err := load()
				change(&c.Policy)
				return c, err
			}
		}
	}
	trust := policy(func(p *config.Policy) { p.Kubernetes = config.TrustEnv })
	containerd := func(version, text string) func(*testing.T, *node) {
		return func(t *testing.T, n *node) {
			n.execute = versions(version, "1.5.2")
			if text != "" {
				write(t, filepath.Join(n.root, n.containerdConfig), text, 0o644)
			}
		}
	}
	socket := func(t *testing.T, n *node) {
		write(t, filepath.Join(n.root, config.Default().Policy.KubeletSocket), "", 0o644)
	}
	mig := func(t *testing.T, n *node) {
		for _, name := range []string{"access", "ci0/access"} {
			write(t, filepath.Join(n.root, "proc/driver/nvidia/capabilities/gpu0/mig/gi1", name), "DeviceFileMinor: 12\n", 0o444)
		}
	}
	const handler = "version = 3\n[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.gpu]\nruntime_type = \"io.containerd.nvidia.v2\"\n"
	type says struct{ level, message string }
	for _, c := range []struct {
		name    string
		environ []string
		args    []string
		change  func(*testing.T, *node)
		want    []says
		never   string
	}{
		{"nothing set is envvar, for which the kubelet is asked", nil, nil, socket, []says{
			{levelOK, `process 41 is NVIDIA's device plugin: device-list-strategy "envvar", device-id-strategy "uuid", pass-device-specs false, mig-strategy "none"`},
			{levelOK, "the kubelet is asked at each create"},
		}, "fastest"},
		{"without a socket the environment alone grants", nil, nil, nil, []says{{levelWarning, "the environment alone grants"}}, "is asked at each"},
		{"device specs are the grant", []string{"PASS_DEVICE_SPECS=true"}, nil, nil, []says{{levelOK, "pass-device-specs true"}, {levelOK, "fastest"}}, "alone grants"},
		{"device specs by a flag without a value", nil, []string{"--pass-device-specs", "false"}, nil, []says{{levelOK, "fastest"}}, ""},
		{"a flag goes before the variable", []string{"PASS_DEVICE_SPECS=true"}, []string{"-pass-device-specs=false"}, socket, []says{{levelOK, "is asked at each create"}}, "fastest"},
		{"an empty variable is one that is not set", []string{"DEVICE_LIST_STRATEGY="}, nil, socket, []says{{levelOK, `"envvar"`}}, "not known"},
		{"a variable that only begins like it is another one", []string{"DEVICE_LIST_STRATEGYX=cdi-cri"}, []string{"--device-list-strategyx=cdi-cri"}, socket, []says{{levelOK, `"envvar"`}}, "cdi-cri"},
		{"ids and MIG as they are set", []string{"DEVICE_ID_STRATEGY=index", "MIG_STRATEGY=none"}, []string{"--mig-strategy", "mixed"}, socket, []says{{levelOK, `"index", pass-device-specs false, mig-strategy "mixed"`}}, "MIG devices"},
		{"volume mounts grant", []string{"DEVICE_LIST_STRATEGY=volume-mounts"}, nil, nil, []says{{levelOK, "the mounts grant"}}, "kubelet is asked"},
		{"volume mounts that the shim does not accept", []string{"DEVICE_LIST_STRATEGY=volume-mounts"}, nil, policy(func(p *config.Policy) { p.AcceptVolumeMounts = false }), []says{{levelProblem, "policy.accept-volume-mounts is false"}}, "the mounts grant"},
		{"CDI is containerd's", []string{"DEVICE_LIST_STRATEGY=cdi-cri"}, nil, nil, []says{{levelOK, "cdi-cri: containerd puts the devices in by CDI"}, {levelOK, "replaced only for containers that also ask by environment"}}, "kubelet is asked"},
		{"CDI where foreign hooks are refused", []string{"DEVICE_LIST_STRATEGY=cdi-annotations"}, nil, policy(func(p *config.Policy) { p.ForeignHooks = config.Refuse }), []says{{levelOK, "refuse containers that also ask"}}, ""},
		{"CDI under containerd 1.7, where it is off by default", []string{"DEVICE_LIST_STRATEGY=cdi-annotations"}, nil, containerd("1.7.35", "version = 2\n"), []says{{levelProblem, "CDI is off in containerd 1.7.35"}}, "puts the devices in"},
		{"CDI under containerd 1.7, switched on", []string{"DEVICE_LIST_STRATEGY=cdi-annotations"}, nil, containerd("1.7.35", "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\nenable_cdi = true\n"), []says{{levelOK, "puts the devices in"}}, ""},
		{"CDI under containerd 2.3, switched off", []string{"DEVICE_LIST_STRATEGY=cdi-cri"}, nil, containerd("2.3.7", "version = 3\n[plugins.\"io.containerd.cri.v1.runtime\"]\nenable_cdi = false\n"), []says{{levelProblem, "CDI is off"}}, ""},
		{"CDI under containerd 2.4, which has no such switch", []string{"DEVICE_LIST_STRATEGY=cdi-cri"}, nil, containerd("2.4.2", "version = 3\n[plugins.\"io.containerd.cri.v1.runtime\"]\nenable_cdi = false\n"), []says{{levelOK, "puts the devices in"}}, ""},
		{"two strategies in one variable", []string{"DEVICE_LIST_STRATEGY=envvar, cdi-cri", "PASS_DEVICE_SPECS=1"}, nil, nil, []says{{levelOK, `"cdi-cri,envvar"`}, {levelOK, "fastest"}, {levelOK, "by CDI"}}, ""},
		{"two strategies by two flags", []string{"DEVICE_LIST_STRATEGY=cdi-cri"}, []string{"--device-list-strategy=volume-mounts", "--device-list-strategy", "envvar"}, socket, []says{{levelOK, `"envvar,volume-mounts"`}}, "cdi-cri"},
		{"a strategy of the future", []string{"DEVICE_LIST_STRATEGY=mind\nreading"}, nil, nil, []says{{levelWarning, `"mind\nreading" is not known`}}, ""},
		{"trust-env with envvar", nil, nil, trust, []says{{levelWarning, `policy.kubernetes is "trust-env"`}}, "is asked at each"},
		{"trust-env in a handler's options", []string{"PASS_DEVICE_SPECS=true"}, nil, containerd("2.4.2", handler+"options = {policy = {kubernetes = \"trust-env\", trusted-namespaces = [\"x\"]}}\n"), []says{{levelWarning, `handler "gpu": policy.kubernetes is "trust-env"`}}, "alone grants"},
		{"a handler's options go before the configuration", nil, nil, func(t *testing.T, n *node) {
			trust(t, n)
			socket(t, n)
			containerd("2.4.2", handler+"options = {policy = {kubernetes = \"enforce\"}}\n")(t, n)
		}, []says{{levelOK, "is asked at each create"}}, "trust-env"},
		{"a configuration file may say everything", []string{"CONFIG_FILE=/config/config.yaml"}, nil, nil, []says{{levelOK, `"/config/config.yaml" is not looked at here and may set device-list-strategy, pass-device-specs, device-id-strategy, mig-strategy`}}, "alone grants"},
		{"a configuration file may set what is left", []string{"CONFIG_FILE=/config/config.yaml", "DEVICE_LIST_STRATEGY=envvar"}, nil, nil, []says{{levelOK, "unless pass-device-specs is set"}}, "may set device-list"},
		{"MIG devices", []string{"MIG_STRATEGY=single"}, nil, mig, []says{{levelOK, "hands out MIG devices, of which this node has 1"}}, "of no use"},
		{"MIG devices that nobody hands out", nil, nil, mig, []says{{levelWarning, `mig-strategy "none": the device plugin hands out GPUs that MIG has divided`}}, ""},
		{"MIG devices that a configuration file may hand out", []string{"CONFIG_FILE=/config/config.yaml"}, nil, mig, nil, "of no use"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := healthy(t)
			if c.change != nil {
				c.change(t, n)
			}
			fixtureProcess(t, n, 40, "/usr/bin/python3", []string{"DEVICE_LIST_STRATEGY=cdi-cri"}, "nvidia-device-plugin")
			fixtureProcess(t, n, 41, plugin, append([]string{"PATH=/usr/bin"}, c.environ...), c.args...)
			n.discover(t.Context())
			all := checkDevicePlugin(t.Context(), n)
			for _, f := range all {
				if (f.Level != levelOK) != (f.Fix != "") || strings.Contains(f.Message+f.Fix, "\n") {
					t.Errorf("a finding is one line, and has a fix if one is needed: %+v", f)
				}
			}
			for _, want := range c.want {
				found := false
				for _, f := range all {
					found = found || f.Level == want.level && strings.Contains(f.Message, want.message)
				}
				if !found {
					t.Errorf("no %s with %q in\n%s", want.level, want.message, text(all))
				}
			}
			if c.never != "" && strings.Contains(text(all), c.never) {
				t.Errorf("%q in\n%s", c.never, text(all))
			}
		})
	}
}

func TestCheckWithoutADevicePluginIsANote(t *testing.T) {
	n := healthy(t)
	n.discover(t.Context())
	if all := checkDevicePlugin(t.Context(), n); len(all) != 1 || all[0].Level != levelOK || !strings.Contains(all[0].Message, "does not run") {
		t.Errorf("%+v", all)
	}
	n.proc = procfs(filepath.Join(n.root, "none"))
	if all := checkDevicePlugin(t.Context(), n); len(all) != 1 || all[0].Level != levelOK {
		t.Errorf("without a procfs: %+v", all)
	}
}

// Old and new plugin run side by side during an update, and equal ones are said once.
func TestCheckTellsDevicePluginsApart(t *testing.T) {
	n := healthy(t)
	fixtureProcess(t, n, 10, "/usr/bin/nvidia-device-plugin (deleted)", []string{"PASS_DEVICE_SPECS=true"})
	fixtureProcess(t, n, 11, "/usr/bin/nvidia-device-plugin", []string{"PASS_DEVICE_SPECS=true"})
	fixtureProcess(t, n, 12, "/usr/bin/nvidia-device-plugin", []string{"DEVICE_LIST_STRATEGY=cdi-cri"})
	n.discover(t.Context())
	got := text(checkDevicePlugin(t.Context(), n))
	if strings.Count(got, "is NVIDIA's device plugin") != 2 || strings.Count(got, "fastest") != 1 || strings.Count(got, "by CDI") != 1 {
		t.Errorf("got\n%s", got)
	}
}

// kubeletSocket is a node with a socket at a path that is short enough for one.
func kubeletSocket(t *testing.T) (n *node, socket string) {
	t.Helper()
	n = healthy(t)
	dir, err := os.MkdirTemp("", "k")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	n.root, n.kubeletDir = dir, "/k"
	n.cfg = config.Default()
	n.cfg.Policy.KubeletSocket = "/k/pod-resources/kubelet.sock"
	if err := os.MkdirAll(filepath.Join(dir, "k/pod-resources"), 0o755); err != nil {
		t.Fatal(err)
	}
	return n, filepath.Join(dir, n.cfg.Policy.KubeletSocket)
}

func listen(t *testing.T, socket string) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}
