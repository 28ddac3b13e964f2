package request

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// specOf returns a specification with variables, mounts of /dev/null in the device list, and
// annotations "key=value".
func specOf(env, mounts, annotations []string) *bundle.Spec {
	s := &bundle.Spec{Process: bundle.Process{Env: env}, Annotations: map[string]string{}}
	for _, id := range mounts {
		s.Mounts = append(s.Mounts, specs.Mount{Source: "/dev/null", Destination: DeviceListDir + "/" + id, Type: "bind"})
	}
	for _, a := range annotations {
		key, value, _ := strings.Cut(a, "=")
		s.Annotations[key] = value
	}
	return s
}

// outcome describes a request in one line.
func outcome(r Request, err error) string {
	switch {
	case err != nil:
		return "error: " + err.Error()
	case !r.Driver:
		return "left alone"
	}
	s := fmt.Sprintf("%q", r.Devices)
	for _, c := range r.Classes {
		s += " " + c
	}
	if r.AllChannels {
		s += " all"
	}
	for _, n := range r.Channels {
		s += fmt.Sprint(" ", n)
	}
	return s
}

// check compares an outcome; of an error, want is a part.
func check(t *testing.T, r Request, err error, want string) {
	t.Helper()
	got := outcome(r, err)
	if text, ok := strings.CutPrefix(want, "error: "); ok && err != nil && strings.Contains(err.Error(), text) {
		if strings.ContainsAny(err.Error(), "\n\r\x1b") || len(err.Error()) > 1024 {
			t.Errorf("error of %d bytes: %.80q", len(err.Error()), err)
		}
		return
	}
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if err == nil && r.Reason == "" {
		t.Error("no reason is given")
	}
}

func visible(value string) []string { return []string{EnvVisibleDevices + "=" + value} }

func TestVisibleDevices(t *testing.T) {
	for want, values := range map[string][]string{
		"left alone": {"", "  ", ",, ,", "void", "void,all", "all,void", "none, void ", "0,void", "void,nvidia.com/toaster=0", "nvidia.com/toaster=0,void"},
		"[]":         {"none", "none,all", "0,none", "nvidia.com/gpu=none"},
		`["all"]`:    {"all", "all,none", "0,all", "nvidia.com/gpu=0,nvidia.com/gpu=all"},
		`["0" "1"]`:  {"0,1", " 0 ,, 1,", "nvidia.com/gpu=0,1", "nvidia.com/gpu.coherent=0,nvidia.com/gpu.noncoherent=1", "runtime.nvidia.com/gpu=0,k8s.device-plugin.nvidia.com/gpu=1"},
		`["0"]`:      {"0", "nvidia.com/gpu=0", "nvidia.com/mig=0", "nvidia.com/mig-1g.10gb=0"},

		`["ALL" "Void"]`:                    {"ALL,Void"}, // words are case-sensitive
		`["0:1" "MIG-GPU-a/1/0"]`:           {"0:1,MIG-GPU-a/1/0", "nvidia.com/gpu=0:1,nvidia.com/mig=MIG-GPU-a/1/0"},
		`["` + DeviceListDir + `X"]`:        {DeviceListDir + "X"}, // only looks like the device list
		`["0"] gds gdrcopy mofed nvswitch`:  {"0,nvidia.com/gds=all,nvidia.com/mofed=all,nvidia.com/gdrcopy=all,nvidia.com/nvswitch=all"},
		`[] gds`:                            {"nvidia.com/gds=all"},
		`["0"] imex 1 3`:                    {"0,nvidia.com/imex-channel=3,nvidia.com/imex-channel=channel1"},
		`["0"] imex all`:                    {"0,nvidia.com/imex-channel=all"},
		`["all"] imex all`:                  {"management.nvidia.com/gpu=all"},
		"error: more than 1024 devices":     {strings.Repeat("0,", 1025)},
		"error: and the container has none": {DeviceListDir, DeviceListDir + "/"},

		`error: "a.com/nic=eth0" is a CDI device of another vendor`:                                                         {"a.com/nic=eth0", "0,a.com/nic=eth0"},
		`error: "a.com/nic=-" is not a CDI name`:                                                                            {"a.com/nic=-"},
		`error: "nvidia.com/gds=0": nvidia.com/gds has the one device all`:                                                  {"nvidia.com/gds=0"},
		`error: NVIDIA_VISIBLE_DEVICES="nvidia.com/toaster=0": "nvidia.com/toaster=0" is of an unknown CDI kind (known cla`: {"nvidia.com/toaster=0"},
		`error: "k8s.gpu.nvidia.com/claim=x" is of an unknown CDI kind (known vendors`:                                      {"k8s.gpu.nvidia.com/claim=x"},
		`error: "1048576" is not an IMEX channel`:                                                                           {"0,nvidia.com/imex-channel=1048576"},
		`error: "nvidia.com/gpu=" names no device`:                                                                          {"nvidia.com/gpu="},
	} {
		for _, value := range values {
			s := Read(specOf(visible(value), nil, nil))
			r, err := s.Request(config.Default())
			t.Run(value[:min(len(value), 50)], func(t *testing.T) { check(t, r, err, want) })
			if asks, why := s.Asks(); asks == (want == "left alone") || !asks && why == "" {
				t.Errorf("%q asks: %v, %q", value, asks, why)
			}
		}
	}
}

// No list is split that is longer than what the kernel passes to a program.
func TestLongLists(t *testing.T) {
	const limit = 128 << 10
	for _, tc := range []struct {
		name string
		spec *bundle.Spec
		want string
	}{
		{"a variable", specOf(visible(strings.Repeat("0,", limit)), nil, nil), `error: the variable "NVIDIA_VISIBLE_DEVICES" has 262167 bytes`},
		{"another one", specOf(append(visible("0"), EnvCapabilities+"="+strings.Repeat(",", limit)), nil, nil), `error: the variable "NVIDIA_DRIVER_CAPABILITIES" has`},
		{"a long name", specOf(append(visible("0"), "CUDA_"+strings.Repeat("x", limit)+"="), nil, nil), `error: the variable "CUDA_xxx`},
		{"a variable with its own name", specOf(append(visible("0"), "CUDA_X="+strings.Repeat("x", limit-len("CUDA_X="))), nil, nil), `["0"]`},
		{"one that says void", specOf(visible(strings.Repeat(",", limit)+"void"), nil, nil), "left alone"},
		{"one without a request", specOf([]string{"CUDA_X=" + strings.Repeat("x", limit)}, nil, nil), "left alone"},
		{"one of the image's own", specOf(append(visible("0"), "X="+strings.Repeat("x", limit)), nil, nil), `["0"]`},
		{"an annotation", specOf(nil, nil, []string{"cdi.k8s.io/x=" + strings.Repeat("nvidia.com/gpu=0,", limit/16)}), `error: annotation "cdi.k8s.io/x" has 139264 bytes: at most 131072`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := Read(tc.spec)
			if asks, _ := s.Asks(); asks == (tc.want == "left alone") {
				t.Errorf("asks: %v", asks)
			}
			if tc.want == "left alone" {
				return
			}
			r, err := s.Request(config.Default())
			check(t, r, err, tc.want)
		})
	}
}

func TestEnvironment(t *testing.T) {
	for _, tc := range []struct {
		name string
		env  []string
		want string
	}{
		{"unset", []string{"PATH=/bin"}, "left alone"},
		{"the last of repeated variables", append(visible("all"), visible("1")...), `["1"]`},
		{"entries without =", append([]string{EnvVisibleDevices, "BROKEN"}, visible("1")...), `["1"]`},
		{"an image older than CUDA 9", []string{"CUDA_VERSION=8.0.61"}, `["all"]`},
		{"such an image with an empty variable", append(visible(""), "CUDA_VERSION=8.0.61"), "left alone"},
		{"a newer image", []string{"CUDA_VERSION=12.9", "NVIDIA_REQUIRE_CUDA=cuda>=12.9"}, "left alone"},
		{"swarm's resource that is not configured", append(visible("0"), "DOCKER_RESOURCE_APPLE=1"), `["0"]`},
		{"swarm's resource before the variable", append(visible("all"), "DOCKER_RESOURCE_GPU=GPU-a, GPU-b"), `["GPU-a" "GPU-b"]`},
		{"two of swarm's resources, in the configured order", []string{"DOCKER_RESOURCE_B=1", "DOCKER_RESOURCE_GPU=0"}, `["0" "1"]`},
		{"the last of repeated resources", []string{"DOCKER_RESOURCE_GPU=0", "DOCKER_RESOURCE_GPU=1"}, `["1"]`},
		{"an empty resource", append(visible("all"), "DOCKER_RESOURCE_GPU="), "left alone"},
		{"void in the second of two resources", []string{"DOCKER_RESOURCE_GPU=all", "DOCKER_RESOURCE_B=void"}, "left alone"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := config.Default()
			cfg.Policy.SwarmResources = []string{"DOCKER_RESOURCE_GPU", "DOCKER_RESOURCE_B"}
			r, err := Read(specOf(tc.env, nil, nil)).Request(cfg)
			check(t, r, err, tc.want)
		})
	}
}

func TestMounts(t *testing.T) {
	for want, lists := range map[string][][]string{
		`["GPU-a"]`:         {{"GPU-a"}, {"cdi/nvidia.com/gpu=GPU-a"}, {"cdi/k8s.device-plugin.nvidia.com/gpu/GPU-a"}, {"../container-look-alike/0", "/x" + DeviceListDir + "/all", "../all", "", "GPU-a"}},
		`["1" "0"]`:         {{"1", "0", "/" + DeviceListDir + "//1"}, {"1,0"}},
		`["all"]`:           {{"0", "all"}},
		"[]":                {{"none"}},
		`["MIG-GPU-a/1/0"]`: {{"MIG-GPU-a/1/0"}},
		`["0"] imex gds 2`:  {{"0", "cdi/nvidia.com/gds/all", "cdi/nvidia.com/imex-channel=2"}},
		"error: has none":   {{DeviceListDir + "X/all"}, {DeviceListDir + "X/imex/0"}, {""}},

		"error: is a CDI device of another vendor":                                            {{"cdi/example.com/nic/0"}},
		`error: "nvidia.com/toaster=0" is of an unknown`:                                      {{"cdi/nvidia.com/toaster/0"}},
		`error: "example.com/-=0" is not a CDI name`:                                          {{"cdi/example.com/-/0"}},
		`error: container-devices/cdi/foo": "foo" is not a CDI name: <vendor>/<class>=<name>`: {{"cdi/foo"}},
	} {
		for _, list := range lists {
			spec := specOf(visible(DeviceListDir), nil, nil)
			for _, at := range list {
				if !strings.HasPrefix(at, "/") {
					at = DeviceListDir + "/" + at
				}
				spec.Mounts = append(spec.Mounts, specs.Mount{Source: "/dev//./null", Destination: at}, specs.Mount{Source: "/dev/zero", Destination: DeviceListDir + "/7"})
			}
			r, err := Read(spec).Request(config.Default())
			check(t, r, err, want)
		}
	}
}

func TestAnnotations(t *testing.T) {
	const cdi, nri = "cdi.k8s.io/", "nvidia.cdi.k8s.io"
	type list = []string
	for _, tc := range []struct {
		name                 string
		annotations          list
		outside, inContainer string // outside Kubernetes, and in the container "main" of a pod
	}{
		{"a GPU", list{cdi + "x=nvidia.com/gpu=0"}, `["0"]`, `["0"]`},
		{"several, in the order of the keys", list{cdi + "b=nvidia.com/gpu=1, nvidia.com/gds=all", cdi + "a=k8s.device-plugin.nvidia.com/gpu=GPU-a"}, `["GPU-a" "1"] gds`, `["GPU-a" "1"] gds`},
		{"of NVIDIA's NRI plugin", list{nri + "=nvidia.com/gpu=2"}, `["2"]`, `["2"]`},
		{"for the pod before the bare key", list{nri + "=nvidia.com/gpu=2", nri + "/pod=nvidia.com/gpu=3"}, `["3"]`, `["3"]`},
		{"for the container before the pod", list{nri + "=nvidia.com/gpu=2", nri + "/pod=nvidia.com/gpu=3", nri + "/container.main=nvidia.com/gpu=0"}, `["3"]`, `["0"]`},
		{"an empty one for the container", list{nri + "=nvidia.com/gpu=2", nri + "/container.main="}, `["2"]`, `["7"]`},
		{"for another container", list{nri + "/container.other=nvidia.com/gpu=2"}, `["7"]`, `["7"]`},
		{"of a device plugin with NVIDIA's prefix", list{nri + "/nvidia-device-plugin_1=k8s.device-plugin.nvidia.com/gpu=0"}, `["0"]`, `["0"]`},
		{"the same, of two keys, beside the NRI plugin's", list{nri + "/b=nvidia.com/gpu=1", nri + "/a=nvidia.com/gpu=0", nri + "/container.main=nvidia.com/gpu=3", cdi + "x=nvidia.com/gpu=2"},
			`["2" "0" "1"]`, `["2" "0" "1" "3"]`},
		{"a key of the NRI plugin for another container", list{nri + "/container.pod=nvidia.com/gpu=2"}, `["7"]`, `["7"]`},
		{"another vendor's prefix", list{"example.cdi.k8s.io/a=nvidia.com/gpu=1"}, `["7"]`, `["7"]`},
		{"keys that look alike", list{"cdi.k8s.iox/a=nvidia.com/gpu=2", "x.cdi.k8s.io/a=nvidia.com/gpu=2", nri + "x=nvidia.com/gpu=3"}, `["7"]`, `["7"]`},
		{"another vendor", list{cdi + "a=example.com/nic=0"}, "error: of another vendor", `["7"]`},
		{"another vendor beside a GPU", list{cdi + "a=example.com/nic=0,nvidia.com/gpu=1"}, "error: of another vendor", `["1"]`},
		{"a plain name", list{cdi + "a=0"}, `error: annotation "cdi.k8s.io/a": "0" is not a CDI name`, `["7"]`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec := specOf(visible("7"), nil, tc.annotations)
			r, err := Read(spec).Request(config.Default())
			check(t, r, err, tc.outside)
			spec.Annotations[annotationContainerType], spec.Annotations[annotationContainer] = "container", "main"
			r, err = Read(spec).Request(config.Default())
			check(t, r, err, tc.inContainer)
			r, err = Read(spec).WithoutAnnotations(config.Default())
			check(t, r, err, `["7"]`)
			spec.Process.Env = visible("0,void")
			if asks, _ := Read(spec).Asks(); asks {
				t.Error("void in the environment does not count beside annotations")
			}
		})
	}
}

func TestPrecedence(t *testing.T) {
	spec := specOf(append(visible("all"), "NVIDIA_DRIVER_CAPABILITIES=utility"), []string{"1"}, []string{"cdi.k8s.io/x=nvidia.com/gpu=2"})
	step := func(want string, source Source, overridden, granted []string) {
		t.Helper()
		s := Read(spec)
		r, err := s.Request(config.Default())
		check(t, r, err, want)
		var got []string
		for _, o := range r.Overridden {
			got = append(got, o.What)
		}
		if r.Source != source || !slices.Equal(got, overridden) || !slices.Equal(r.Capabilities, []string{"utility"}) {
			t.Errorf("from %q, overridden %q, capabilities %q", r.Source, got, r.Capabilities)
		}
		if got := s.TrustedIDs(config.Default()); !slices.Equal(got, granted) {
			t.Errorf("granted %q, want %q", got, granted)
		}
	}
	step(`["2"]`, FromAnnotations, []string{"device-list mounts", EnvVisibleDevices}, []string{"1", "2"})
	spec.Annotations[annotationContainerType] = "container"
	step(`["2"]`, FromAnnotations, []string{"device-list mounts", EnvVisibleDevices}, []string{"1"})
	spec.Annotations = nil
	step(`["1"]`, FromMounts, []string{EnvVisibleDevices}, []string{"1"})
	spec.Hooks.CreateContainer = []specs.Hook{{Path: "/usr/bin/nvidia-ctk.real", Args: []string{"nvidia-ctk", "hook", "update-ldcache"}}}
	spec.Linux.Devices = []specs.LinuxDevice{{Path: "/dev//nvidia0", Type: "c", Major: 195}}
	step("[]", FromCDI, []string{"device-list mounts", EnvVisibleDevices}, []string{"1"})

	cfg := config.Default()
	cfg.Policy.AcceptVolumeMounts = false
	s := Read(specOf(visible("0"), []string{"1"}, nil))
	if r, err := s.Request(cfg); outcome(r, err) != `["0"]` || len(r.Overridden) != 1 || s.TrustedIDs(cfg) != nil {
		t.Errorf("mounts that are not accepted: %s, overridden %q, granted %q", outcome(r, err), r.Overridden, s.TrustedIDs(cfg))
	}
	_, err := Read(specOf(visible(DeviceListDir), []string{"1"}, nil)).Request(cfg)
	if !errors.As(err, new(DeniedError)) {
		t.Errorf("the device list, not accepted: %v", err)
	}
}

func TestCDIEdits(t *testing.T) {
	hook := specs.Hook{Path: "/opt/hook", Args: []string{"nvidia-cdi-hook", "enable-cuda-compat"}}
	node := specs.LinuxDevice{Path: "/dev/nvidiactl", Type: "c", Major: 195, Minor: 255}
	for name, tc := range map[string]struct {
		hook   specs.Hook
		node   specs.LinuxDevice
		edited bool
	}{
		"a hook and a node":         {hook, node, true},
		"another program's hook":    {specs.Hook{Path: "/opt/hook"}, node, false},
		"nvidia-ctk without a hook": {specs.Hook{Path: "/usr/bin/nvidia-ctk", Args: []string{"nvidia-ctk", "info"}}, node, false},
		"no node of the driver":     {hook, specs.LinuxDevice{Path: "/dev/fuse", Type: "c"}, false},
		"a block device":            {hook, specs.LinuxDevice{Path: "/dev/nvidiactl", Type: "b"}, false},
	} {
		spec := specOf(visible("void"), nil, nil)
		spec.Hooks.CreateRuntime, spec.Linux.Devices = []specs.Hook{tc.hook}, []specs.LinuxDevice{tc.node}
		s := Read(spec)
		r, err := s.Request(config.Default())
		if asks, _ := s.Asks(); asks != tc.edited || s.EditedByCDI != tc.edited || err != nil || tc.edited && len(r.Capabilities) != 7 {
			t.Errorf("%s: edited %v, %+v, %v", name, s.EditedByCDI, r, err)
		}
	}
}

func TestCapabilities(t *testing.T) {
	const all = "compat32 compute display graphics ngx utility video"
	for _, tc := range []struct{ value, supported, want string }{
		{"", "all", "compute utility"},
		{" , ", "all", "compute utility"},
		{"all", "all", all},
		{"foo,all", "all", all},
		{" video ,,compute", "all", "compute video"},
		{"utility,utility", "all", "utility"},
		{"compute,foo", "all", `error: "foo"`},
		{strings.Repeat("x", 100<<10) + "\n\x1b[31m", "all", "error: not supported"},
		{"graphics", "utility", "error: supported: utility"},
		{"all", "utility", "utility"},
		{"", "utility", "utility"},
	} {
		cfg := config.Default()
		if tc.supported != "all" {
			cfg.Container.SupportedCapabilities = []string{tc.supported}
		}
		for _, env := range [][]string{visible("0"), append(visible("0"), EnvCapabilities+"=x", EnvCapabilities+"="+tc.value)} {
			if len(env) == 1 && tc.value != "" {
				continue // unset is as empty
			}
			r, err := Read(specOf(env, nil, nil)).Request(cfg)
			if strings.HasPrefix(tc.want, "error: ") {
				check(t, r, err, tc.want)
			} else if got := strings.Join(r.Capabilities, " "); err != nil || got != tc.want || r.CapabilitiesReason == "" {
				t.Errorf("%.50q: got %q, %v, want %q", tc.value, got, err, tc.want)
			}
		}
	}
	// In a pod an image gets display only if the operator names it.
	pod := visible("0")
	for _, tc := range []struct {
		value     string
		supported []string
		want      string
	}{
		{"all", nil, "compat32 compute graphics ngx utility video"},
		{"graphics,display", nil, `error: capability "display" is not supported here (supported: compute,compat32,graphics,utility,video,ngx; see supported-capabilities`},
		{"all", []string{"display", "graphics"}, "display graphics"},
	} {
		cfg, spec := config.Default(), specOf(append(pod, EnvCapabilities+"="+tc.value), nil, []string{annotationContainerType + "=container"})
		cfg.Container.SupportedCapabilities = tc.supported
		r, err := Read(spec).Request(cfg)
		if strings.HasPrefix(tc.want, "error: ") {
			check(t, r, err, tc.want)
		} else if got := strings.Join(r.Capabilities, " "); err != nil || got != tc.want {
			t.Errorf("a pod's %q of %q: got %q, %v, want %q", tc.value, tc.supported, got, err, tc.want)
		}
	}
	// An image older than CUDA 9 has all of them, however its devices are named.
	for _, caps := range []string{"", "utility"} {
		env, want := []string{"CUDA_VERSION=8.0"}, 7
		if caps != "" {
			env, want = append(env, EnvCapabilities+"="+caps), 1
		}
		for _, spec := range []*bundle.Spec{specOf(env, nil, nil), specOf(append(visible("0"), env...), nil, nil), specOf(env, []string{"0"}, nil), specOf(env, nil, []string{"cdi.k8s.io/x=nvidia.com/gpu=0"})} {
			if r, err := Read(spec).Request(config.Default()); err != nil || len(r.Capabilities) != want || !r.Has("utility") {
				t.Errorf("from the %s: %q, %v", r.Source, r.Capabilities, err)
			}
		}
	}
}
