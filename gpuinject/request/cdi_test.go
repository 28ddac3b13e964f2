package request

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// summary is a request in one line.
func summary(r Request) string {
	s := fmt.Sprintf("%q", r.Devices)
	if !r.Driver {
		s = "left alone"
	}
	for _, c := range r.Classes {
		s += " " + c
	}
	if r.AllChannels {
		s += " all"
	}
	for _, n := range r.Channels {
		s += fmt.Sprint(" ", n)
	}
	for _, f := range r.Foreign {
		s += " " + f
	}
	if r.ForeignOnly {
		s += " only"
	}
	return s
}

func TestCDINames(t *testing.T) {
	for _, tc := range []struct {
		name, value string
		want        string
		err         string
	}{
		{"an index by its CDI name", "nvidia.com/gpu=0", `["0"]`, ""},
		{"a UUID by its CDI name", "nvidia.com/gpu=GPU-fef8089b", `["GPU-fef8089b"]`, ""},
		{"a MIG instance by its CDI name", "nvidia.com/gpu=0:1,nvidia.com/mig=MIG-GPU-a/1/0", `["0:1" "MIG-GPU-a/1/0"]`, ""},
		{"all by its CDI name", "nvidia.com/gpu=0,nvidia.com/gpu=all", `["all"]`, ""},
		{"none by its CDI name", "nvidia.com/gpu=none", `[]`, ""},
		{"the kind of NVIDIA's runtime", "runtime.nvidia.com/gpu=1", `["1"]`, ""},
		{"the kind of the device plugin", "k8s.device-plugin.nvidia.com/gpu=GPU-a", `["GPU-a"]`, ""},
		{"the kind of management containers, which get every IMEX channel too", "management.nvidia.com/gpu=all", `["all"] imex all`, ""},
		{"GPUs with coherent memory and without", "nvidia.com/gpu.coherent=0,nvidia.com/gpu.noncoherent=1", `["0" "1"]`, ""},
		{"CDI names among plain ones", " 0 ,, nvidia.com/gpu=1,GPU-a", `["0" "1" "GPU-a"]`, ""},
		{"other devices by their CDI names", "0,nvidia.com/gds=all,nvidia.com/mofed=all,nvidia.com/gdrcopy=all,nvidia.com/nvswitch=all", `["0"] gds gdrcopy mofed nvswitch`, ""},
		{"an IMEX channel by its CDI name", "0,nvidia.com/imex-channel=3,nvidia.com/imex-channel=channel1", `["0"] imex 1 3`, ""},
		{"every IMEX channel by its CDI name", "0,nvidia.com/imex-channel=all", `["0"] imex all`, ""},
		{"other devices alone, by their CDI names", "nvidia.com/gds=all", `[] gds`, ""},
		{"a device of another vendor", "nvidia.com/gpu=0,example.com/nic=eth0", `["0"] example.com/nic=eth0`, ""},
		{"nothing but devices of another vendor", "example.com/nic=eth0,example.com/nic=eth0", `[] example.com/nic=eth0 only`, ""},
		{"void before a CDI name", "void,nvidia.com/gpu=0", `left alone`, ""},
		{"void before what would be refused", "void,nvidia.com/toaster=0", `left alone`, ""},
		{"a class that has only all", "nvidia.com/gds=0", "", `"nvidia.com/gds=0": nvidia.com/gds has the one device all`},
		{"a class that nobody knows", "nvidia.com/toaster=0", "", `"nvidia.com/toaster=0" is of no CDI kind that is known here`},
		{"a kind of NVIDIA's that nobody knows", "k8s.gpu.nvidia.com/claim=x", "", `"k8s.gpu.nvidia.com/claim=x" is of no CDI kind that is known here`},
		{"a channel that no driver has", "0,nvidia.com/imex-channel=2048", "", `"2048" is not an IMEX channel`},
		{"a CDI name without a device", "nvidia.com/gpu=", "", `"nvidia.com/gpu=" names no device`},
		{"what is no CDI name of another vendor", "example.com/nic=-", "", `"example.com/nic=-" is no CDI name`},
		{"the directory of the device list, without mounts", "/var/run/nvidia-container-devices", "", "means the mounts below /var/run/nvidia-container-devices, and the container has none"},
		{"a look-alike of that directory is a name", "/var/run/nvidia-container-devicesX", `["/var/run/nvidia-container-devicesX"]`, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := FromEnv([]string{"NVIDIA_VISIBLE_DEVICES=" + tc.value}, stock)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) || strings.Contains(err.Error(), "\n") {
					t.Errorf("got %s %v, want an error with %s", summary(r), err, tc.err)
				}
				if strings.HasPrefix(tc.value, "void") != !Wants([]string{"NVIDIA_VISIBLE_DEVICES=" + tc.value}) {
					t.Error("such a container is passed over")
				}
				return
			}
			if got := summary(r); err != nil || got != tc.want {
				t.Errorf("got %s %v, want %s", got, err, tc.want)
			}
		})
	}
}

func TestTheDirectoryOfTheDeviceListMeansTheMounts(t *testing.T) {
	for _, value := range []string{DeviceListDir, DeviceListDir + "/"} {
		l, err := DeviceList([]specs.Mount{{Source: "/dev/null", Destination: DeviceListDir + "/GPU-a"}})
		if err != nil {
			t.Fatal(err)
		}
		r, err := WithDeviceList(l, []string{"NVIDIA_VISIBLE_DEVICES=" + value}, stock)
		if got := summary(r); err != nil || got != `["GPU-a"]` {
			t.Errorf("%s: %s %v", value, got, err)
		}
	}
}

func TestOtherDevicesInTheDeviceList(t *testing.T) {
	l, err := DeviceList([]specs.Mount{
		{Source: "/dev/null", Destination: DeviceListDir + "/0"}, {Source: "/dev/null", Destination: DeviceListDir + "/cdi/nvidia.com/gds/all"},
		{Source: "/dev/null", Destination: DeviceListDir + "/cdi/nvidia.com/imex-channel=2"},
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := WithDeviceList(l, []string{"NVIDIA_MOFED=enabled", "NVIDIA_IMEX_CHANNELS=1"}, stock)
	if got := summary(r); err != nil || got != `["0"] imex gds mofed 2` || !slices.Equal(r.Named, []string{GDS, IMEX}) {
		t.Errorf("%s, named %q, %v", got, r.Named, err)
	}
}

func TestAnnotations(t *testing.T) {
	for _, tc := range []struct {
		name        string
		annotations map[string]string
		want, err   string
	}{
		{"a GPU", map[string]string{"cdi.k8s.io/nvidia-device-plugin_a": "nvidia.com/gpu=0"}, `["0"]`, ""},
		{"several, in the order of the keys", map[string]string{"cdi.k8s.io/b": "nvidia.com/gpu=1, nvidia.com/gds=all", "cdi.k8s.io/a": "k8s.device-plugin.nvidia.com/gpu=GPU-a"}, `["GPU-a" "1"] gds`, ""},
		{"NVIDIA's prefix", map[string]string{"nvidia.cdi.k8s.io/nvidia-device-plugin_a": "nvidia.com/gpu=2"}, `["2"]`, ""},
		{"of a whole pod", map[string]string{"nvidia.cdi.k8s.io": "nvidia.com/gpu=2"}, `["2"]`, ""},
		{"of this container", map[string]string{"nvidia.cdi.k8s.io/container.main": "nvidia.com/gpu=2"}, `["2"]`, ""},
		{"of another container", map[string]string{"nvidia.cdi.k8s.io/container.other": "nvidia.com/gpu=2"}, "none", ""},
		{"a key that only looks like one", map[string]string{"cdi.k8s.iox/a": "nvidia.com/gpu=2", "x.cdi.k8s.io/a": "nvidia.com/gpu=2", "nvidia.cdi.k8s.iox": "nvidia.com/gpu=3"}, "none", ""},
		{"another vendor's device", map[string]string{"cdi.k8s.io/a": "example.com/nic=0"}, `[] example.com/nic=0 only`, ""},
		{"a plain name is refused", map[string]string{"cdi.k8s.io/a": "0"}, "", `annotation "cdi.k8s.io/a": "0" is no CDI name`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, err := Annotated(tc.annotations, "main")
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("got %+v %v, want an error with %s", l, err, tc.err)
				}
				return
			}
			got := "none"
			if err == nil && !l.Empty() {
				var r Request
				r, err = FromAnnotations(l, []string{"NVIDIA_VISIBLE_DEVICES=7"}, stock)
				got = summary(r)
			}
			if err != nil || got != tc.want {
				t.Errorf("got %s %v, want %s", got, err, tc.want)
			}
		})
	}
}

func TestSwarmResources(t *testing.T) {
	names := []string{"DOCKER_RESOURCE_GPU", "DOCKER_RESOURCE_NVIDIA"}
	for _, tc := range []struct {
		name string
		env  []string
		want string
	}{
		{"none that is configured", []string{"NVIDIA_VISIBLE_DEVICES=0", "DOCKER_RESOURCE_APPLE=1"}, `["0"]`},
		{"one goes before the variable", []string{"DOCKER_RESOURCE_GPU=GPU-a, GPU-b", "NVIDIA_VISIBLE_DEVICES=all"}, `["GPU-a" "GPU-b"]`},
		{"two are concatenated in the configured order", []string{"DOCKER_RESOURCE_NVIDIA=1", "DOCKER_RESOURCE_GPU=0"}, `["0" "1"]`},
		{"the last of repeated ones counts", []string{"DOCKER_RESOURCE_GPU=0", "DOCKER_RESOURCE_GPU=1"}, `["1"]`},
		{"an empty one asks for nothing", []string{"DOCKER_RESOURCE_GPU=", "NVIDIA_VISIBLE_DEVICES=all"}, "left alone"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := FromEnv(WithSwarm(tc.env, names), stock)
			if got := summary(r); err != nil || got != tc.want {
				t.Errorf("got %s %v, want %s", got, err, tc.want)
			}
		})
	}
}
