package gpuinject

import (
	"debug/elf"
	"path"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

// A loader takes libraries of LD_PRELOAD and LD_LIBRARY_PATH before those of the driver: of what else
// the image has by their names, the operator hears.
func TestTheImagesLibrariesThatComeBeforeTheDrivers(t *testing.T) {
	const stubs = "/usr/local/cuda/lib64/stubs"
	lib := func(name string) func(testing.TB, string) {
		return file(testtree.Library(elf.ELFCLASS64, ldcache.ABI64.Machine, path.Base(name)), name)
	}
	narrow := file(testtree.Library(elf.ELFCLASS32, ldcache.ABI32.Machine, "libcuda.so.1"), "/opt/32/libcuda.so.1")
	libs := path.Dir("/" + families()[0].libc)
	compat := "/usr/local/cuda/compat"
	show := func(p Plan) string {
		var list []string
		for _, w := range p.Warnings {
			_, text, _ := strings.Cut(w, "programs load ")
			text, _, _ = strings.Cut(text, ", in place")
			list = append(list, text)
		}
		for _, n := range p.Notes {
			if strings.HasPrefix(n, "LD_LIBRARY_PATH: ") {
				list = append(list, "noted")
			}
		}
		return strings.Join(list, "; ")
	}
	searching := func(dirs ...string) []string { return []string{"LD_LIBRARY_PATH=" + strings.Join(dirs, ":")} }
	of := func(names, dir string) string {
		return names + ` of the image from "` + dir + `", which LD_LIBRARY_PATH names`
	}
	table{env: devices("0"), show: show, rows: []row{
		{name: "the view alone", env: searching("/usr/local/nvidia/lib", "/usr/local/nvidia/lib64"), image: in(t, lib(stubs+"/libcuda.so"))},
		{name: "no variable", image: in(t, lib(stubs+"/libcuda.so"))},
		{name: "a stub", env: searching(stubs), image: in(t, lib(stubs+"/libcuda.so")), want: of("libcuda.so", stubs)},
		{name: "after the view", env: searching("/usr/local/nvidia/lib64", stubs), image: in(t, lib(stubs+"/libcuda.so")), want: of("libcuda.so", stubs)},
		{name: "by a link", env: searching("/opt/cuda/stubs"), image: in(t, lib(stubs+"/libcuda.so"), file("", "/opt/x"), link("/usr/local/cuda/lib64", "/opt/cuda")), want: of("libcuda.so", stubs)},
		{name: "two of another driver", env: searching("/opt/drv"), image: in(t, lib("/opt/drv/libcuda.so.1"), lib("/opt/drv/libnvidia-ml.so.1")), want: of("libcuda.so.1, libnvidia-ml.so.1", "/opt/drv")},
		{name: "a link to one", env: searching("/opt/drv"), image: in(t, lib("/opt/drv/libcuda.so.470.1"), link("libcuda.so.470.1", "/opt/drv/libcuda.so.1")), want: of("libcuda.so.1", "/opt/drv")},
		{name: "a link to the driver's", env: searching("/opt/drv"), image: in(t, lib("/opt/drv/x"), link("/usr/local/nvidia/lib64/libcuda.so.1", "/opt/drv/libcuda.so.1"))},
		{name: "for newer processors", env: searching("/opt/drv"), image: in(t, lib("/opt/drv/glibc-hwcaps/x86-64-v3/libcuda.so.1")), want: of("libcuda.so.1", "/opt/drv/glibc-hwcaps/x86-64-v3")},
		{name: "where the driver's is put", env: searching(libs), image: in(t, lib(libs+"/libcuda.so.1"))},
		{name: "beside it", env: searching(libs), image: in(t, lib(libs+"/libnvidia-ptxjitcompiler.so.1")), want: of("libnvidia-ptxjitcompiler.so.1", libs)},
		{name: "of a capability that it does not have", env: append(searching("/opt/drv"), caps("utility")...), image: in(t, lib("/opt/drv/libcuda.so.1"))},
		{name: "graphics", env: append(searching("/opt/drv"), caps("graphics")...), image: in(t, lib("/opt/drv/libGLX_nvidia.so.0")), want: of("libGLX_nvidia.so.0", "/opt/drv")},
		{name: "a compatibility package that serves an older driver", env: searching(compat), image: in(t, lib(compat+"/libcuda.so.1")), want: of("libcuda.so.1", compat)},
		{name: "of 32 bits", env: searching("/opt/32"), image: in(t, narrow)},
		{name: "a text", env: searching("/opt/drv"), image: in(t, file("INPUT(x)", "/opt/drv/libcuda.so"))},
		{name: "in a volume", env: searching("/opt/drv"), image: in(t, lib("/opt/drv/libcuda.so.1")), spec: mounting("/srv", "/opt"), want: "noted"},
		{name: "below a tmpfs", env: searching("/opt/drv"), image: in(t, lib("/opt/drv/libcuda.so.1")), spec: tmpfs("/opt")},
		{name: "a relative directory", env: searching("opt/drv", "."), image: in(t, lib("/opt/drv/libcuda.so.1"))},
		{name: "the variable twice", env: append(searching("/opt/drv"), searching("/srv")...), image: in(t, lib("/opt/drv/libcuda.so.1"))},
		{name: "LD_PRELOAD", env: []string{"LD_PRELOAD=/opt/other.so /opt/drv/libcuda.so.1"}, image: in(t, lib("/opt/drv/libcuda.so.1"), lib("/opt/other.so")),
			want: `libcuda.so.1 of the image from "/opt/drv", which LD_PRELOAD names`},
		{name: "an image without a loader", env: searching("/opt/drv"), image: func(root string) { lib("/opt/drv/libcuda.so.1")(t, root) }},
	}}.run(t)
}
