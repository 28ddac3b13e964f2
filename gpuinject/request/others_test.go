package request

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestOtherDevices(t *testing.T) {
	for _, tc := range []struct {
		name     string
		env      []string
		imex     []string // ids mounted
		classes  string
		channels []int
		err      string
	}{
		{"unset asks for no other devices", nil, nil, "", nil, ""},
		{"IMEX channels by number", []string{"NVIDIA_IMEX_CHANNELS=2,0"}, nil, "imex", []int{0, 2}, ""},
		{"IMEX channels by name, with blanks, empty and repeated items", []string{"NVIDIA_IMEX_CHANNELS= channel7 ,,7,2047,"}, nil, "imex", []int{7, 2047}, ""},
		{"all IMEX channels in the environment are ignored", []string{"NVIDIA_IMEX_CHANNELS=0,all"}, nil, "", nil, ""},
		{"no IMEX channels", []string{"NVIDIA_IMEX_CHANNELS=none"}, nil, "", nil, ""},
		{"void IMEX channels", []string{"NVIDIA_IMEX_CHANNELS=void"}, nil, "", nil, ""},
		{"an IMEX channel that no driver has is refused", []string{"NVIDIA_IMEX_CHANNELS=2048"}, nil, "", nil, `"2048" is not an IMEX channel`},
		{"a word that is no IMEX channel is refused", []string{"NVIDIA_IMEX_CHANNELS=0-3"}, nil, "", nil, `"0-3" is not an IMEX channel`},
		{"GDS", []string{"NVIDIA_GDS=enabled"}, nil, "gds", nil, ""},
		{"GDRCopy", []string{"NVIDIA_GDRCOPY=enabled"}, nil, "gdrcopy", nil, ""},
		{"MOFED", []string{"NVIDIA_MOFED=enabled"}, nil, "mofed", nil, ""},
		{"NVSwitch", []string{"NVIDIA_NVSWITCH=enabled"}, nil, "nvswitch", nil, ""},
		{"several", []string{"NVIDIA_NVSWITCH=enabled", "NVIDIA_GDS=enabled", "NVIDIA_IMEX_CHANNELS=1"}, nil, "imex gds nvswitch", []int{1}, ""},
		{"another value than enabled asks for nothing", []string{"NVIDIA_GDS=1", "NVIDIA_MOFED=Enabled", "NVIDIA_GDRCOPY=", "NVIDIA_NVSWITCH=all"}, nil, "", nil, ""},
		{"without a GPU nothing of it counts", []string{"NVIDIA_VISIBLE_DEVICES=none", "NVIDIA_GDS=enabled", "NVIDIA_IMEX_CHANNELS=0"}, []string{"1"}, "", nil, ""},
		{"mounted IMEX channels", nil, []string{"3", "channel1", "3"}, "imex", []int{1, 3}, ""},
		{"mounted IMEX channels go before the environment", []string{"NVIDIA_IMEX_CHANNELS=9", "NVIDIA_GDS=enabled"}, []string{"1"}, "imex gds", []int{1}, ""},
		{"all mounted IMEX channels", []string{"NVIDIA_IMEX_CHANNELS=9"}, []string{"1", "all"}, "imex all", nil, ""},
		{"a mount that names no IMEX channel is refused", nil, []string{"0/1"}, "", nil, `"0/1" is not an IMEX channel`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := FromEnv(append([]string{"NVIDIA_VISIBLE_DEVICES=0"}, tc.env...), stock)
			if err == nil {
				err = r.AddChannelMounts(imexMounts(tc.imex...), stock)
			}
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("got error %v, want one with %s", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(r.Classes, " ")
			if r.AllChannels {
				got += " all"
			}
			if got != tc.classes || !slices.Equal(r.Channels, tc.channels) || r.ChannelsMounted != (tc.imex != nil && tc.classes != "") {
				t.Errorf("got %q %v mounted %v, want %q %v", got, r.Channels, r.ChannelsMounted, tc.classes, tc.channels)
			}
		})
	}
}

func imexMounts(ids ...string) (mounts []specs.Mount) {
	for _, id := range ids {
		mounts = append(mounts, specs.Mount{Source: "/dev/null", Destination: DeviceListDir + "/imex/" + id, Type: "bind"})
	}
	return mounts
}

func TestOnlyTheDeviceListNamesIMEXChannels(t *testing.T) {
	for _, m := range []specs.Mount{
		{Source: "/dev/zero", Destination: DeviceListDir + "/imex/0"},
		{Source: "/dev/null", Destination: DeviceListDir + "X/imex/0"},
		{Source: "/dev/null", Destination: DeviceListDir + "/imexx/0"},
		{Source: "/dev/null", Destination: DeviceListDir + "/imex/../../imex/0"},
		{Source: "/dev/null", Destination: DeviceListDir + "/imex"},
	} {
		r := Request{Driver: true, Devices: []string{"0"}}
		if err := r.AddChannelMounts([]specs.Mount{m}, stock); err != nil || len(r.Classes) != 0 {
			t.Errorf("%s at %s: %+v, %v", m.Source, m.Destination, r, err)
		}
	}
}

func TestADeviceListTakesOtherDevicesFromTheEnvironment(t *testing.T) {
	r, err := WithDeviceList(List{GPUs: []string{"GPU-a"}}, []string{"NVIDIA_GDS=enabled", "NVIDIA_IMEX_CHANNELS=4"}, stock)
	if got := fmt.Sprint(r.Classes, r.Channels); err != nil || got != "[imex gds] [4]" {
		t.Errorf("%s %v", got, err)
	}
}

func TestIMEXChannelsAreIgnoredWhereTheOperatorSaysSo(t *testing.T) {
	bounds := stock
	bounds.NoChannels = true
	for _, tc := range []struct {
		name    string
		visible string
		env     []string
		imex    []string
		ignored bool
		classes string
	}{
		{"a variable", "0", []string{"NVIDIA_IMEX_CHANNELS=0"}, nil, true, ""},
		{"a variable that would be refused", "0", []string{"NVIDIA_IMEX_CHANNELS=9999"}, nil, true, ""},
		{"a variable that asks for nothing", "0", []string{"NVIDIA_IMEX_CHANNELS=none"}, nil, false, ""},
		{"a mount", "0", nil, []string{"1"}, true, ""},
		{"all by a mount", "0", nil, []string{"all"}, true, ""},
		{"a mount that would be refused", "0", nil, []string{"0/1"}, true, ""},
		{"a CDI name", "0,nvidia.com/imex-channel=2", nil, nil, true, ""},
		{"every channel by a CDI name", "0,nvidia.com/imex-channel=all", nil, nil, true, ""},
		{"the kind of management containers", "management.nvidia.com/gpu=all", nil, nil, true, ""},
		{"other classes are not", "0,nvidia.com/gds=all", []string{"NVIDIA_IMEX_CHANNELS=0", "NVIDIA_MOFED=enabled"}, []string{"1"}, true, "gds mofed"},
		{"without a GPU nothing is asked for", "none", []string{"NVIDIA_IMEX_CHANNELS=0"}, []string{"1"}, false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := FromEnv(append([]string{"NVIDIA_VISIBLE_DEVICES=" + tc.visible}, tc.env...), bounds)
			if err == nil {
				err = r.AddChannelMounts(imexMounts(tc.imex...), bounds)
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(r.Classes, " "); got != tc.classes || r.ChannelsIgnored != tc.ignored || r.AllChannels || r.ChannelsMounted || len(r.Channels) != 0 || slices.Contains(r.Named, IMEX) {
				t.Errorf("got %+v", r)
			}
		})
	}
}
