package request

import (
	"slices"
	"strings"
	"testing"
)

var stock = Bounds{
	Default:   []string{"compute", "utility"},
	Supported: []string{"compute", "compat32", "graphics", "utility", "video", "display", "ngx"},
}

func TestVisibleDevices(t *testing.T) {
	for _, tc := range []struct {
		name    string
		env     []string
		driver  bool
		devices []string
	}{
		{"unset asks for nothing", []string{"PATH=/bin"}, false, nil},
		{"empty asks for nothing", []string{"NVIDIA_VISIBLE_DEVICES="}, false, nil},
		{"blank asks for nothing", []string{"NVIDIA_VISIBLE_DEVICES=  "}, false, nil},
		{"only commas ask for nothing", []string{"NVIDIA_VISIBLE_DEVICES=,, ,"}, false, nil},
		{"void asks for nothing", []string{"NVIDIA_VISIBLE_DEVICES=void"}, false, nil},
		{"void anywhere before all asks for nothing", []string{"NVIDIA_VISIBLE_DEVICES=0,void,all"}, false, nil},
		{"none asks for the driver without a GPU", []string{"NVIDIA_VISIBLE_DEVICES=none"}, true, nil},
		{"all before none is all", []string{"NVIDIA_VISIBLE_DEVICES=all,none"}, true, []string{"all"}},
		{"none before all is none", []string{"NVIDIA_VISIBLE_DEVICES=none,all"}, true, nil},
		{"all anywhere is all", []string{"NVIDIA_VISIBLE_DEVICES=0,all"}, true, []string{"all"}},
		{"words are case-sensitive", []string{"NVIDIA_VISIBLE_DEVICES=ALL"}, true, []string{"ALL"}},
		{"indices", []string{"NVIDIA_VISIBLE_DEVICES=0,2"}, true, []string{"0", "2"}},
		{"spaces and empty items are dropped", []string{"NVIDIA_VISIBLE_DEVICES= 0 ,, 1,"}, true, []string{"0", "1"}},
		{"the last of repeated variables wins", []string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=1"}, true, []string{"1"}},
		{"an entry without = is passed over", []string{"NVIDIA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES=1", "BROKEN"}, true, []string{"1"}},
		{"an image older than CUDA 9 asks for all", []string{"CUDA_VERSION=8.0.61"}, true, []string{"all"}},
		{"such an image with an empty variable asks for nothing", []string{"CUDA_VERSION=8.0.61", "NVIDIA_VISIBLE_DEVICES="}, false, nil},
		{"a newer image asks for nothing by itself", []string{"CUDA_VERSION=12.9", "NVIDIA_REQUIRE_CUDA=cuda>=12.9"}, false, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := FromEnv(tc.env, stock)
			if err != nil {
				t.Fatal(err)
			}
			if r.Driver != tc.driver || !slices.Equal(r.Devices, tc.devices) {
				t.Errorf("got driver=%v devices=%q, want %v %q", r.Driver, r.Devices, tc.driver, tc.devices)
			}
			if r.Reason == "" {
				t.Error("no reason given")
			}
		})
	}
}

func TestDriverCapabilities(t *testing.T) {
	all := []string{"compat32", "compute", "display", "graphics", "ngx", "utility", "video"}
	for _, tc := range []struct {
		name   string
		env    []string
		bounds Bounds
		want   []string
		err    string
	}{
		{"unset is the default", nil, stock, []string{"compute", "utility"}, ""},
		{"empty is the default", []string{"NVIDIA_DRIVER_CAPABILITIES="}, stock, []string{"compute", "utility"}, ""},
		{"all is all supported", []string{"NVIDIA_DRIVER_CAPABILITIES=all"}, stock, all, ""},
		{"all with an unknown one is all", []string{"NVIDIA_DRIVER_CAPABILITIES=foo,all"}, stock, all, ""},
		{"items are trimmed and empty ones dropped", []string{"NVIDIA_DRIVER_CAPABILITIES= video ,,compute"}, stock, []string{"compute", "video"}, ""},
		{"duplicates collapse", []string{"NVIDIA_DRIVER_CAPABILITIES=utility,utility"}, stock, []string{"utility"}, ""},
		{"the last of repeated variables wins", []string{"NVIDIA_DRIVER_CAPABILITIES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"}, stock, []string{"utility"}, ""},
		{"an unknown one is refused by name", []string{"NVIDIA_DRIVER_CAPABILITIES=compute,foo"}, stock, nil, `"foo"`},
		{"one outside the operator's set is refused", []string{"NVIDIA_DRIVER_CAPABILITIES=graphics"}, Bounds{Default: stock.Default, Supported: stock.Default}, nil, `supported: compute,utility`},
		{"all stays within the operator's set", []string{"NVIDIA_DRIVER_CAPABILITIES=all"}, Bounds{Default: stock.Default, Supported: []string{"utility"}}, []string{"utility"}, ""},
		{"the default stays within the operator's set", nil, Bounds{Default: stock.Default, Supported: []string{"utility"}}, []string{"utility"}, ""},
		{"an image older than CUDA 9 gets all", []string{"CUDA_VERSION=8.0"}, stock, all, ""},
		{"unless it says otherwise", []string{"CUDA_VERSION=8.0", "NVIDIA_DRIVER_CAPABILITIES=utility"}, stock, []string{"utility"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := FromEnv(append([]string{"NVIDIA_VISIBLE_DEVICES=0"}, tc.env...), tc.bounds)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("got error %v, want one with %s", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(r.Capabilities, tc.want) {
				t.Errorf("got %q, want %q", r.Capabilities, tc.want)
			}
		})
	}
}

func TestErrorsStayOnOneShortLine(t *testing.T) {
	value := strings.Repeat("x", 1<<20) + "\n\x1b[31m"
	_, err := FromEnv([]string{"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=" + value}, stock)
	if err == nil {
		t.Fatal("no error")
	}
	if s := err.Error(); len(s) > 1024 || strings.ContainsAny(s, "\n\x1b") {
		t.Errorf("error of %d bytes: %.80q", len(s), s)
	}
}

func FuzzFromEnv(f *testing.F) {
	for _, s := range []string{"", "all", "none", "void", "0,0", "-1", "99999999999", "0:0", "MIG-x/../", "GPU-1\x00", "０", "a\nb"} {
		f.Add(s, "all")
	}
	f.Fuzz(func(t *testing.T, devices, caps string) {
		r, err := FromEnv([]string{"NVIDIA_VISIBLE_DEVICES=" + devices, "NVIDIA_DRIVER_CAPABILITIES=" + caps}, stock)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r\x1b\x00") {
				t.Fatalf("control characters in %q", err)
			}
			return
		}
		for _, c := range r.Capabilities {
			if !slices.Contains(stock.Supported, c) {
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
