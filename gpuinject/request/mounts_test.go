package request

import (
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestDeviceList(t *testing.T) {
	for _, tc := range []struct {
		name string
		from string
		at   []string
		want []string
		err  string
	}{
		{"a UUID", "/dev/null", []string{DeviceListDir + "/GPU-a"}, []string{"GPU-a"}, ""},
		{"two, one of them twice", "/dev/null", []string{DeviceListDir + "/1", DeviceListDir + "/0", DeviceListDir + "//1"}, []string{"1", "0"}, ""},
		{"all", "/dev/null", []string{DeviceListDir + "/all"}, []string{"all"}, ""},
		{"an old MIG name, which nests directories", "/dev/null", []string{DeviceListDir + "/MIG-GPU-a/1/0"}, []string{"MIG-GPU-a/1/0"}, ""},
		{"a source that is cleaned", "/dev//./null", []string{DeviceListDir + "/0"}, []string{"0"}, ""},
		{"our CDI kind", "/dev/null", []string{DeviceListDir + "/cdi/nvidia.com/gpu/0"}, []string{"0"}, ""},
		{"our CDI kind with an equals sign", "/dev/null", []string{DeviceListDir + "/cdi/nvidia.com/gpu=GPU-a"}, []string{"GPU-a"}, ""},
		{"another source is an ordinary mount", "/dev/zero", []string{DeviceListDir + "/0"}, nil, ""},
		{"a look-alike of the directory is an ordinary mount", "/dev/null", []string{DeviceListDir + "X/all", "/x" + DeviceListDir + "/all"}, nil, ""},
		{"a way out of the directory is an ordinary mount", "/dev/null", []string{DeviceListDir + "/../all"}, nil, ""},
		{"the directory itself names nothing", "/dev/null", []string{DeviceListDir, DeviceListDir + "/"}, nil, ""},
		{"another vendor's CDI kind is no GPU", "/dev/null", []string{DeviceListDir + "/cdi/example.com/nic/0", DeviceListDir + "/cdi/example.com/nic=0", DeviceListDir + "/2"}, []string{"2"}, ""},
		{"the CDI kind of the device plugin", "/dev/null", []string{DeviceListDir + "/cdi/k8s.device-plugin.nvidia.com/gpu/GPU-a"}, []string{"GPU-a"}, ""},
		{"a CDI class of other devices is no GPU", "/dev/null", []string{DeviceListDir + "/cdi/nvidia.com/gds/all", DeviceListDir + "/2"}, []string{"2"}, ""},
		{"a CDI class that nobody knows is refused by name", "/dev/null", []string{DeviceListDir + "/cdi/nvidia.com/toaster/0"}, nil, "nvidia.com/toaster=0"},
		{"what is no CDI name is refused by name", "/dev/null", []string{DeviceListDir + "/cdi/example.com/-/0"}, nil, "example.com/-=0"},
		{"an IMEX channel is not a GPU", "/dev/null", []string{DeviceListDir + "/imex/0", DeviceListDir + "/1"}, []string{"1"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var mounts []specs.Mount
			for _, at := range tc.at {
				mounts = append(mounts, specs.Mount{Source: tc.from, Destination: at, Type: "bind"})
			}
			got, err := DeviceList(mounts)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("got %+v %v, want an error with %q", got, err, tc.err)
				}
				return
			}
			if err != nil || !slices.Equal(got.GPUs, tc.want) {
				t.Errorf("got %+v %v, want %q", got, err, tc.want)
			}
		})
	}
}

func TestADeviceListGoesBeforeTheEnvironmentExceptForCapabilities(t *testing.T) {
	r, err := WithDeviceList(List{GPUs: []string{"GPU-a"}}, []string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"}, stock)
	if err != nil || !r.Driver || !r.Mounted || !slices.Equal(r.Devices, []string{"GPU-a"}) || !slices.Equal(r.Capabilities, []string{"utility"}) {
		t.Errorf("%+v %v", r, err)
	}
	if r, err := WithDeviceList(List{GPUs: []string{"0", "all"}}, nil, stock); err != nil || !slices.Equal(r.Devices, []string{"all"}) {
		t.Errorf("%+v %v", r, err)
	}
	if r, err := WithDeviceList(List{GPUs: []string{"none"}}, nil, stock); err != nil || !r.Driver || len(r.Devices) != 0 {
		t.Errorf("%+v %v", r, err)
	}
}
