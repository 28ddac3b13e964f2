package place

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/memlimit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/procmask"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
)

// parts are changes that have each field of Changes, and go together.
func parts() []Changes {
	var log verdict.Log
	log.Decide("gds", "given", "for a test")
	log.Note("a note")
	log.Warn("a warning")
	log.Ignore("imex", "for a test")
	log.Audit = []string{"a reason"}
	return []Changes{
		{Log: log},
		{Nodes: []device.Node{{Path: "/dev/a"}}, Groups: []uint32{4}, Classes: []string{"imex"}, IMEX: []int{1}},
		{View: &View{Root: "/run/view"}, Mounts: []Mount{{Destination: view.Dir, Made: true}}},
		{Sockets: []string{"mps"}, Mounts: []Mount{{Destination: "/tmp/nvidia-mps"}}},
		{Memory: []memlimit.Limit{{UUID: "GPU-a", Limit: memlimit.MiB}}},
		{Links: []Link{{"/usr/bin/nvidia-smi", view.Dir + "/bin/nvidia-smi", "bin/nvidia-smi"}}},
		{Linker: Linker{LibC: "glibc", Directory: "/lib", Cache: "written", Compat: "/compat"},
			LinkerFiles: []image.File{{Path: "/etc/ld.so.cache"}}, CacheAt: "/etc/ld.so.cache"},
		{BundleFiles: []image.File{{Path: "profile"}}},
		{ByPath: map[string]string{"pci-0": "../card0"}},
		{Edits: bundle.Edits{
			RemoveMount: func(specs.Mount) bool { return true }, RemoveDevice: func(specs.LinuxDevice) bool { return true },
			RemoveRule: func(specs.LinuxDeviceCgroup) bool { return true }, RemoveHook: func(h specs.Hook) bool { return h.Path == "a" },
			Devices: []specs.LinuxDevice{{Path: "/dev/a"}}, Rules: []specs.LinuxDeviceCgroup{{Access: "rw"}}, AdditionalGids: []uint32{4},
		}},
		{Edits: bundle.Edits{RemoveHook: func(h specs.Hook) bool { return h.Path == "b" }}, RemovedHooks: []string{"b"}},
		{Proc: Proc{Masked: true}, Mask: []procmask.File{{Path: "version"}}},
	}
}

// TestAddLosesNothing joins parts and looks for each field, so that a field that Add does not know
// fails.
func TestAddLosesNothing(t *testing.T) {
	all, err := Add(nil, parts()...)
	if err != nil {
		t.Fatal(err)
	}
	var empty func(v reflect.Value, name string)
	empty = func(v reflect.Value, name string) {
		for i := range v.NumField() {
			f, name := v.Field(i), name+"."+v.Type().Field(i).Name
			if name == ".Edits.Mounts" { // Apply adds them
				continue
			}
			if f.IsZero() {
				t.Errorf("%s is lost", name)
			}
			if f.Kind() == reflect.Struct {
				empty(f, name)
			}
		}
	}
	all.Proc.GPUs, all.Proc.Capabilities = []string{""}, []string{""} // go with Masked
	empty(reflect.ValueOf(all), "")
	for path, want := range map[string]bool{"a": true, "b": true, "c": false} {
		if all.Edits.RemoveHook(specs.Hook{Path: path}) != want {
			t.Errorf("hook %s: want %v", path, want)
		}
	}
}

// TestAddRefusesContradictions joins each part with itself: there is only one view, one mask and one
// thing at a path.
func TestAddRefusesContradictions(t *testing.T) {
	var refused []string
	for _, part := range parts() {
		if _, err := Add(nil, part, part); err != nil {
			refused = append(refused, err.Error()[strings.LastIndex(err.Error(), "about ")+len("about "):])
		}
	}
	want := []string{"the node /dev/a", "the view", "/tmp/nvidia-mps", "the memory of GPU-a", "/usr/bin/nvidia-smi", "/etc/ld.so.cache", "profile", byPathName, "the mask"}
	if !slices.Equal(refused, want) {
		t.Errorf("refused %q, want %q", refused, want)
	}
}

// TestIndependentPartsCommute joins parts in both orders.
func TestIndependentPartsCommute(t *testing.T) {
	a, b := parts()[1], parts()[4]
	ab, err := Add(nil, a, b)
	ba, err2 := Add(nil, b, a)
	if err != nil || err2 != nil || !reflect.DeepEqual(ab, ba) {
		t.Errorf("%+v, %+v: %v, %v", ab, ba, err, err2)
	}
}
