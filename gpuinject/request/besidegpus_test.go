package request

import (
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/devnode"
)

func TestOtherDevices(t *testing.T) {
	type list = []string
	for _, tc := range []struct {
		name      string
		env       list
		mounts    list
		want      string
		ignored   bool   // with policy.ignore-imex-channels
		otherwise string // what is left of it then
	}{
		{name: "unset"},
		{name: "channels by number", env: list{"NVIDIA_IMEX_CHANNELS=2,0"}, want: " imex 0 2", ignored: true},
		{name: "channels by name, with blanks, empty and repeated items", env: list{"NVIDIA_IMEX_CHANNELS= channel7 ,,7,4095,channel1048575,"}, want: " imex 7 4095 1048575", ignored: true},
		{name: "all channels", env: list{"NVIDIA_IMEX_CHANNELS=0,all"}},
		{name: "no channels", env: list{"NVIDIA_IMEX_CHANNELS=0,none"}},
		{name: "void channels", env: list{"NVIDIA_IMEX_CHANNELS=void"}},
		{name: "a channel out of range", env: list{"NVIDIA_IMEX_CHANNELS=1048576"}, want: `error: "1048576" is not an IMEX channel`, ignored: true},
		{name: "what is no channel", env: list{"NVIDIA_IMEX_CHANNELS=0-3"}, want: `error: "0-3" is not an IMEX channel`, ignored: true},
		{name: "GDS", env: list{"NVIDIA_GDS=enabled"}, want: " gds", otherwise: " gds"},
		{name: "several", env: list{"NVIDIA_NVSWITCH=enabled", "NVIDIA_MOFED=enabled", "NVIDIA_GDRCOPY=enabled", "NVIDIA_IMEX_CHANNELS=1"}, want: " imex gdrcopy mofed nvswitch 1", ignored: true, otherwise: " gdrcopy mofed nvswitch"},
		{name: "other values than enabled", env: list{"NVIDIA_GDS=1", "NVIDIA_MOFED=Enabled", "NVIDIA_GDRCOPY=", "NVIDIA_NVSWITCH=all"}},
		{name: "mounted channels", mounts: list{"imex/3", "imex/channel1", "imex/3"}, want: " imex 1 3", ignored: true},
		{name: "mounted channels before the variable", env: list{"NVIDIA_IMEX_CHANNELS=9", "NVIDIA_GDS=enabled"}, mounts: list{"imex/1"}, want: " imex gds 1", ignored: true, otherwise: " gds"},
		{name: "all mounted channels", env: list{"NVIDIA_IMEX_CHANNELS=9"}, mounts: list{"imex/1", "imex/all"}, want: " imex all", ignored: true},
		{name: "a mount that names no channel", mounts: list{"imex/0/1"}, want: `error: "0/1" is not an IMEX channel`, ignored: true},
		{name: "channels by CDI names", mounts: list{"cdi/nvidia.com/imex-channel=2"}, env: list{"NVIDIA_IMEX_CHANNELS=9"}, want: " imex 2", ignored: true},
		{name: "all channels by a CDI name", mounts: list{"cdi/nvidia.com/imex-channel/all"}, want: " imex all", ignored: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, ignore := range []bool{false, true} {
				want := tc.want
				if ignore {
					want = tc.otherwise
				}
				if !strings.HasPrefix(want, "error: ") {
					want = `["0"]` + want
				}
				cfg := config.Default()
				cfg.Policy.IgnoreIMEXChannels = ignore
				r, err := Read(specOf(tc.env, append(tc.mounts, "0"), nil)).Request(cfg)
				check(t, r, err, want)
				if r.ChannelsIgnored != (ignore && tc.ignored) || ignore && slices.Contains(r.TrustedClasses, devnode.IMEX) {
					t.Errorf("ignored %v, granted %q", r.ChannelsIgnored, r.TrustedClasses)
				}
			}
		})
	}
	env := []string{"NVIDIA_GDS=enabled", "NVIDIA_IMEX_CHANNELS=0", "NVIDIA_MIG_CONFIG_DEVICES=all"}
	r, err := Read(specOf(append(visible("none"), env...), []string{"imex/1"}, nil)).Request(config.Default())
	if check(t, r, err, "[]"); len(r.MIGRights) != 0 {
		t.Errorf("MIG rights without a GPU: %q", r.MIGRights)
	}
	r, err = Read(specOf([]string{"NVIDIA_MOFED=enabled"}, []string{"0", "cdi/nvidia.com/gds/all", "cdi/nvidia.com/imex-channel=2"}, nil)).Request(config.Default())
	if check(t, r, err, `["0"] imex gds mofed 2`); !slices.Equal(r.TrustedClasses, []string{"gds", devnode.IMEX}) {
		t.Errorf("granted %q", r.TrustedClasses)
	}
}

func TestMIGRights(t *testing.T) {
	for _, tc := range []struct{ config, monitor, want string }{
		{"", "", ""},
		{"all", "", "config"},
		{"", "all", "monitor"},
		{"ALL", "All", "config monitor"},
		{"0", "", `error: NVIDIA_MIG_CONFIG_DEVICES="0": the only value is "all"`},
		{"all", "1:0", `error: NVIDIA_MIG_MONITOR_DEVICES="1:0": the only value is "all"`},
	} {
		env := []string{"NVIDIA_MIG_CONFIG_DEVICES=" + tc.config, "NVIDIA_MIG_MONITOR_DEVICES=" + tc.monitor}
		for _, spec := range []*bundle.Spec{specOf(append(visible("all"), env...), nil, nil), specOf(env, []string{"all"}, nil)} {
			r, err := Read(spec).Request(config.Default())
			if strings.HasPrefix(tc.want, "error: ") {
				check(t, r, err, tc.want)
			} else if got := strings.Join(r.MIGRights, " "); err != nil || got != tc.want || len(r.MIGVariables) != len(r.MIGRights) {
				t.Errorf("%q: %q by %q, %v", env, got, r.MIGVariables, err)
			}
		}
	}
}

func TestContainer(t *testing.T) {
	for _, tc := range []struct {
		annotations             []string
		admin, unmasked, userns bool // CAP_SYS_ADMIN, nothing of /proc masked, a user namespace
		want                    Container
	}{
		{},
		{unmasked: true},
		{admin: true, want: Container{Admin: true}},
		{admin: true, unmasked: true, want: Container{Admin: true, Privileged: true}},
		{admin: true, unmasked: true, userns: true, want: Container{UserNamespace: true}},
		{annotations: []string{annotationContainerType + "=sandbox"}, want: Container{Kubernetes: true, Sandbox: true}},
		{annotations: []string{annotationContainerType[:20] + "=sandbox"}}, // only looks like the key
		{annotations: []string{annotationContainerType + "=container", annotationNamespace + "=n", annotationPod + "=p", annotationUID + "=u", annotationContainer + "=c"},
			want: Container{Kubernetes: true, Namespace: "n", Pod: "p", UID: "u", Name: "c"}},
	} {
		spec := specOf(visible("all"), nil, tc.annotations)
		if tc.admin {
			spec.Process.Capabilities.Bounding = []string{"CAP_SYS_ADMIN"}
		}
		if !tc.unmasked {
			spec.Linux.MaskedPaths = []string{"/proc/kcore"}
		}
		if tc.userns {
			spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.UserNamespace, Path: "/proc/7/ns/user"}}
		}
		spec.Linux.Devices = []specs.LinuxDevice{{Type: "c", Major: 195, Minor: 1}, {Type: "b", Major: 8}, {Type: "u", Major: 195, Minor: 2}}
		tc.want.Nodes, tc.want.DriverNodes = []devnode.Number{{Major: 195, Minor: 1}, {Major: 195, Minor: 2}}, true
		s := Read(spec)
		if asks, _ := s.Asks(); !reflect.DeepEqual(s.Container, tc.want) || asks == tc.want.Sandbox {
			t.Errorf("%+v: got %+v, asks %v", tc, s.Container, asks)
		}
	}
}

func TestMightAsk(t *testing.T) {
	for want, words := range map[bool][]string{
		true:  {"NVIDIA_VISIBLE_DEVICES=0", "CUDA_VERSION=8.0", DeviceListDir + "/0", "cdi.k8s.io/x", "nvidia.cdi.k8s.io", "DOCKER_RESOURCE_GPU=0", "/usr/bin/nvidia-cdi-hook", "/usr/bin/nvidia-ctk", "/usr/bin/nvidia-container-runtime-hook", "/dev/nvidia0"},
		false: {"PATH=/bin", "NVIDIA_DRIVER_CAPABILITIES=all", "example.com/nic=0"},
	} {
		for _, word := range words {
			if MightAsk([]byte(`{"x": "`+word+`"}`)) != want {
				t.Errorf("%s: %v", word, !want)
			}
		}
	}
}

func FuzzEnvironment(f *testing.F) {
	for _, s := range []string{"", "all", "none", "void", "0,0", "-1", "99999999999", "0:0", "MIG-x/../", "GPU-1\x00", "０", "a\nb", "nvidia.com/gpu=0"} {
		f.Add(s, "all")
	}
	f.Fuzz(func(t *testing.T, devices, caps string) {
		cfg := config.Default()
		r, err := Read(specOf(append(visible(devices), EnvCapabilities+"="+caps), nil, nil)).Request(cfg)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r\x1b\x00") {
				t.Fatalf("control characters in %q", err)
			}
			return
		}
		for _, c := range r.Capabilities {
			if !slices.Contains(cfg.Container.Supported(false), c) {
				t.Fatalf("capability %q is not supported", c)
			}
		}
		for _, d := range r.Devices {
			if d == "" || strings.TrimSpace(d) != d {
				t.Fatalf("device %q is not trimmed", d)
			}
		}
	})
}

// FuzzRead reads what an image, a pod's author or a user can write into a specification.
func FuzzRead(f *testing.F) {
	for _, destination := range []string{DeviceListDir + "/all", DeviceListDir + "/cdi/nvidia.com/gpu/0", DeviceListDir + "/imex/3", DeviceListDir + "X/../0", DeviceListDir + "/0,1,,"} {
		f.Add("NVIDIA_VISIBLE_DEVICES=0", destination, "cdi.k8s.io/x", "nvidia.com/gpu=all,nvidia.com/imex-channel=1", false)
	}
	f.Add("DOCKER_RESOURCE_GPU=GPU-1,2", "/x", "nvidia.cdi.k8s.io/container.main", "example.com/nic=0,k8s.gpu.nvidia.com/claim=x", true)
	f.Add("NVIDIA_IMEX_CHANNELS=1,99999999999", "/", "nvidia.cdi.k8s.io", "=", true)
	f.Add("NVIDIA_MIG_CONFIG_DEVICES=all", "", "cdi.k8s.io/", "a/b=c\n", true)
	f.Fuzz(func(t *testing.T, env, destination, key, value string, pod bool) {
		annotations := map[string]string{key: value}
		if pod {
			annotations[annotationContainerType] = "container"
		}
		s := Read(&bundle.Spec{
			Process: bundle.Process{Env: []string{env}}, Annotations: annotations, Mounts: []specs.Mount{{Source: "/dev/null", Destination: destination}},
		})
		r, err := s.Request(config.Default())
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r\x1b\x00") {
				t.Fatalf("control characters in %q", err)
			}
			return
		}
		if asks, _ := s.Asks(); r.Driver && !asks {
			t.Fatalf("a request of a container that does not ask: %+v", r)
		}
		if len(r.Devices) > maxDevices {
			t.Fatalf("%d devices", len(r.Devices))
		}
		listed := strings.HasPrefix(path.Clean("/"+destination), DeviceListDir+"/")
		if env := env[:strings.IndexByte(env+"=", '=')]; !listed && !ofContract(env) && !strings.Contains(key, "cdi.k8s.io") && r.Driver {
			t.Fatalf("nothing asks for %+v", r)
		}
	})
}
