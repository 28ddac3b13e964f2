package driver

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// branches are the libraries that came and went with NVIDIA's drivers, by their names without a
// version, as the installers' manifests and the distributions' packages have them: from sources, no
// driver but Debian's was unpacked (see TestDebiansPackages). Those that every branch has are h200's.
var branches = []struct {
	version    string
	came, went []string // since the one before
	own        []string // with a version of their own

}{
	{version: "470.256.02", came: []string{"libnvidia-cbl", "libnvidia-compiler", "libnvidia-gtk2", "libnvidia-gtk3", "libnvidia-ifr", "libnvidia-ngx", "libnvidia-vulkan-producer"}, own: []string{"libnvidia-egl-wayland.so.1.1.7"}},
	{version: "535.261.03", came: []string{"libnvidia-pkcs11", "libnvidia-wayland-client"}, went: []string{"libnvidia-cbl", "libnvidia-compiler", "libnvidia-ifr"}, own: []string{"libnvidia-api.so.1", "libnvidia-egl-gbm.so.1.1.0"}},
	{version: "550.163.01", went: []string{"libnvidia-vulkan-producer"}},
	{version: "570.211.01", came: []string{"libnvidia-sandboxutils", "libnvidia-vksc-core"}, went: []string{"libnvidia-gtk2"}, own: []string{"libnvidia-egl-xcb.so.1.0.0", "libnvidia-egl-xlib.so.1.0.0"}},
	{version: "580.159.04", came: []string{"libnvidia-present"}, own: []string{"libnvidia-nvvm70.so.4"}},
	{version: "595.71.05", came: []string{"libnvidia-tileiras"}, own: []string{"libnvidia-egl-wayland2.so.1.0.0"}},
	{version: "610.43.03", came: []string{"libnvcuextend"}},
	{version: "615.71.09", came: []string{"libnvnotyetknown"}},
}

// Every library of a driver is given, but those of neverGiven, which are listed.
func TestDriversOf470To615(t *testing.T) {
	var names, own []string
	for _, soname := range h200 {
		stem, _, _ := SplitName(soname)
		names = append(names, stem)
	}
	for _, b := range branches {
		names = slices.DeleteFunc(append(names, b.came...), func(n string) bool { return slices.Contains(b.went, n) })
		own = append(own, b.own...)
		t.Run(b.version, func(t *testing.T) {
			r := newRoot(t)
			r.version = b.version
			var want, left []string
			for _, name := range names {
				file := name + ".so." + b.version
				r.lib("usr/lib64/"+file, name+".so.9")
				if strings.HasPrefix(name, "libnvidia-gtk") {
					left = append(left, file)
				} else {
					want = append(want, file)
				}
			}
			for _, file := range own {
				r.lib("usr/lib64/"+file, strings.TrimSuffix(file, ".0.0"))
				want = append(want, file)
			}
			r.programs("usr/bin")
			files := r.discover()
			r.Check(files.Check([]string{config.Compute, config.Utility, config.Video, config.Graphics}))
			var given, omitted []string
			for _, l := range files.Libraries {
				if l.Subdir != "gbm" {
					given = append(given, l.Name)
				}
			}
			for _, l := range files.LeftOut {
				omitted = append(omitted, strings.TrimPrefix(l.Path, r.Dir+"/usr/lib64/"))
			}
			slices.Sort(given)
			slices.Sort(want)
			slices.Sort(left)
			if !slices.Equal(given, want) || !slices.Equal(omitted, left) || len(files.Refused)+len(files.Missing) > 0 {
				t.Errorf("given %q\nwant  %q\nleft out %q, want %q; refused %q, missing %q", given, want, omitted, left, files.Refused, files.Missing)
			}
		})
	}
}
