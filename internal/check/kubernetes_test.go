package check

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/kubelet/kubelettest"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

func TestTheSettingsOfTheDevicePlugin(t *testing.T) {
	policy := func(keys string) func(*fixture) {
		return func(f *fixture) { f.configure("", "[policy]\n"+keys+"\n") }
	}
	containerd := func(version, text string) func(*fixture) {
		return func(f *fixture) {
			f.version("containerd", "containerd x "+version+" abc")
			f.containerd(text)
		}
	}
	socket := func(f *fixture) { f.write(config.Default().Policy.KubeletSocket, "", 0o644) }
	mig := func(f *fixture) {
		for _, name := range []string{"access", "ci0/access"} {
			f.write("proc/driver/nvidia/capabilities/gpu0/mig/gi1/"+name, "DeviceFileMinor: 12\n", 0o444)
		}
	}
	const handler = tomlV3 + nvidia + byType
	type says struct{ level, message string }
	for _, c := range []struct {
		name    string
		environ []string
		args    []string
		change  func(*fixture)
		want    []says
		never   string
	}{
		{"nothing set is envvar", nil, nil, socket, []says{
			{OK, `device-list-strategy "envvar", device-id-strategy "uuid", pass-device-specs "false", mig-strategy "none"`},
			{OK, "the shim asks the kubelet"},
		}, "fastest"},
		{"no socket", nil, nil, nil, []says{{Warning, "nothing says what was allocated"}}, "asks the kubelet"},
		{"device specs are the grant", []string{"PASS_DEVICE_SPECS=true"}, nil, nil, []says{{OK, "fastest"}}, "nothing says"},
		{"device specs by a flag without a value", nil, []string{"--pass-device-specs", "false"}, nil, []says{{OK, "fastest"}}, ""},
		{"a flag goes before the variable", []string{"PASS_DEVICE_SPECS=true"}, []string{"-pass-device-specs=false"}, socket, []says{{OK, "asks the kubelet"}}, "fastest"},
		{"an empty variable", []string{"DEVICE_LIST_STRATEGY="}, nil, socket, []says{{OK, `"envvar"`}}, "not known"},
		{"a variable that only begins like it", []string{"DEVICE_LIST_STRATEGYX=cdi-cri"}, []string{"--device-list-strategyx=cdi-cri"}, socket, []says{{OK, `"envvar"`}}, "cdi-cri"},
		{"ids and MIG", []string{"DEVICE_ID_STRATEGY=index", "MIG_STRATEGY=none"}, []string{"--mig-strategy", "mixed"}, socket, []says{{OK, `"index", pass-device-specs "false", mig-strategy "mixed"`}}, "MIG devices"},
		{"volume mounts", []string{"DEVICE_LIST_STRATEGY=volume-mounts"}, nil, nil, []says{{OK, "the mounts grant"}}, "kubelet"},
		{"volume mounts that the shim does not accept", []string{"DEVICE_LIST_STRATEGY=volume-mounts"}, nil, policy("accept-volume-mounts = false"), []says{{Problem, "policy.accept-volume-mounts is false"}}, "the mounts grant"},
		{"CDI", []string{"DEVICE_LIST_STRATEGY=cdi-cri"}, nil, nil, []says{{OK, "cdi-cri: containerd adds the devices by CDI"}, {OK, "are replaced for containers"}}, "kubelet"},
		{"CDI, and foreign hooks are refused", []string{"DEVICE_LIST_STRATEGY=cdi-annotations"}, nil, policy("foreign-hooks = \"refuse\""), []says{{OK, "refuse containers that also ask"}}, ""},
		{"CDI under containerd 1.7, off by default", []string{"DEVICE_LIST_STRATEGY=cdi-annotations"}, nil, containerd("1.7.35", "version = 2\n"), []says{{Problem, "CDI is off in containerd 1.7.35"}}, "adds the devices"},
		{"CDI under containerd 1.7, switched on", []string{"DEVICE_LIST_STRATEGY=cdi-annotations"}, nil, containerd("1.7.35", "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\nenable_cdi = true\n"), []says{{OK, "adds the devices"}}, ""},
		{"CDI under containerd 2.3, switched off", []string{"DEVICE_LIST_STRATEGY=cdi-cri"}, nil, containerd("2.3.7", "version = 3\n[plugins.\"io.containerd.cri.v1.runtime\"]\nenable_cdi = false\n"), []says{{Problem, "CDI is off"}}, ""},
		{"CDI under containerd 2.4, which has no switch", []string{"DEVICE_LIST_STRATEGY=cdi-cri"}, nil, containerd("2.4.2", "version = 3\n[plugins.\"io.containerd.cri.v1.runtime\"]\nenable_cdi = false\n"), []says{{OK, "adds the devices"}}, ""},
		{"two strategies in one variable", []string{"DEVICE_LIST_STRATEGY=envvar, cdi-cri", "PASS_DEVICE_SPECS=1"}, nil, nil, []says{{OK, `"envvar,cdi-cri"`}, {OK, "fastest"}, {OK, "by CDI"}}, ""},
		{"an unknown strategy", []string{"DEVICE_LIST_STRATEGY=mind\nreading"}, nil, nil, []says{{Warning, `"mind\nreading" is not known`}}, ""},
		{"trust-env", nil, nil, policy("kubernetes = \"trust-env\""), []says{{Warning, `policy.kubernetes is "trust-env"`}}, "asks the kubelet"},
		{"trust-env in a handler's options", []string{"PASS_DEVICE_SPECS=true"}, nil, containerd("2.4.2", handler+"options = {policy = {kubernetes = \"trust-env\"}}\n"), []says{{Warning, `handler "nvidia": policy.kubernetes is "trust-env"`}}, ""},
		{"a handler's options override the configuration", nil, nil, func(f *fixture) {
			policy("kubernetes = \"trust-env\"")(f)
			socket(f)
			containerd("2.4.2", handler+"options = {policy = {kubernetes = \"enforce\"}}\n")(f)
		}, []says{{OK, "asks the kubelet"}}, "trust-env"},
		{"a configuration file", []string{"CONFIG_FILE=/config/config.yaml"}, nil, mig, []says{{OK, `"/config/config.yaml", which sets what is empty here`}, {OK, `mig-strategy ""`}}, "nothing says"},
		{"a configuration file for the rest", []string{"CONFIG_FILE=/config/config.yaml", "DEVICE_LIST_STRATEGY=envvar"}, nil, nil, []says{{OK, "unless the configuration file sets pass-device-specs"}}, ""},
		{"MIG devices", []string{"MIG_STRATEGY=single"}, nil, mig, []says{{OK, "allocates MIG devices, of which this node has 1"}}, "whole"},
		{"MIG devices that are not allocated", nil, nil, mig, []says{{Warning, `mig-strategy "none": the device plugin allocates MIG-partitioned GPUs as whole`}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := healthy(t)
			if c.change != nil {
				c.change(f)
			}
			f.process(40, "/usr/bin/python3", []string{"DEVICE_LIST_STRATEGY=cdi-cri"}, pluginName)
			f.process(41, "/usr/bin/"+pluginName, append([]string{"PATH=/usr/bin"}, c.environ...), c.args...)
			list := f.check("device-plugin")
			for _, w := range c.want {
				want(t, list, w.level, w.message)
			}
			for _, f := range list {
				if c.never != "" && strings.Contains(f.Message, c.never) {
					t.Errorf("%q in %+v", c.never, f)
				}
			}
		})
	}
}

// Old and new plugin run side by side during an update, and equal ones are reported once.
func TestSeveralDevicePlugins(t *testing.T) {
	f := healthy(t)
	f.process(10, "/usr/bin/nvidia-device-plugin (deleted)", []string{"PASS_DEVICE_SPECS=true"})
	f.process(11, "/usr/bin/nvidia-device-plugin", []string{"PASS_DEVICE_SPECS=true"})
	f.process(12, "/usr/bin/nvidia-device-plugin", []string{"DEVICE_LIST_STRATEGY=cdi-cri"})
	if list := f.check("device-plugin"); len(list) != 4 {
		t.Errorf("%+v", list)
	}
}

func TestTheKubeletIsAsked(t *testing.T) {
	answer := func(b []byte, err error) func(*testing.T, string) {
		return func(t *testing.T, socket string) {
			kubelettest.Serve(t, socket, func() ([]byte, error) { return b, err })
		}
	}
	pod := kubelettest.Pod{Namespace: "default", Name: "p", Containers: map[string]kubelettest.Devices{"c": nil}}
	for _, c := range []struct {
		name  string
		serve func(*testing.T, string)
		level string
		want  string
	}{
		{"a kubelet that answers", answer(kubelettest.List(pod, pod), nil), OK, "with 2 pods"},
		{"a kubelet that refuses", answer(nil, status.Error(codes.ResourceExhausted, "rejected\nby rate limit")), Problem, "rejected by rate limit"},
		{"another program that answers", answer([]byte("HTTP/1.1 200"), nil), Problem, "malformed"},
		{"a socket that accepts and does not answer", func(t *testing.T, socket string) {
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
		}, Problem, "DeadlineExceeded"},
	} {
		t.Run(c.name, func(t *testing.T) {
			// A path that a unix socket may have.
			dir, err := os.MkdirTemp("", "k")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			n := &node{Options: Options{Root: dir, KubeletDir: "/k"}, config: config.Default()}
			n.config.Policy.KubeletSocket = "/kubelet.sock"
			c.serve(t, filepath.Join(dir, "kubelet.sock"))
			// The check has a limit of its own.
			ctx, cancel := context.WithTimeout(t.Context(), 3*probe.KubeletTimeout)
			defer cancel()
			start := time.Now()
			list := checkKubelet(ctx, n)
			want(t, list, c.level, c.want)
			if strings.Contains(list[0].Message, "\n") || ctx.Err() != nil {
				t.Errorf("after %s: %+v", time.Since(start), list)
			}
		})
	}
}
