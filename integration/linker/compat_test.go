package linker

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// compatValue is the answer of the image's own libcuda.
const compatValue = "cuDriverGetVersion=13050"

// The host's driver is sim.DefaultVersion, 580.159.04. The rule is that of
// ldcache.FindCompat, whose tests have its other cases.
func TestTheForwardCompatibilityLibraryIsUsedWhenItIsNewerAndServesTheDriver(t *testing.T) {
	h := simhost.New(t, simhost.Options{})
	const compatDir = "/usr/local/cuda-13.5/compat"
	for _, test := range []struct {
		name, image string
		edit        func(t *testing.T, dir string)
		used        bool
		note        string
	}{
		{name: "newer, with a note that names the host's release", image: "compat", used: true, note: "serves it"},
		{name: "of a newer release, without a note", image: "compat-nonote", used: true, note: "newer release"},
		{
			name: "a directory reached by a chain of links", image: "compat", used: true, note: "serves it",
			edit: func(t *testing.T, dir string) {
				if err := os.Remove(filepath.Join(dir, "usr/local/cuda")); err != nil {
					t.Fatal(err)
				}
				if err := images.Populate(dir, []images.File{
					images.Symlink("usr/local/cuda", "/etc/alternatives/cuda"),
					images.Symlink("etc/alternatives/cuda", "../../usr/local/cuda-13"),
					images.Symlink("usr/local/cuda-13", "cuda-13.5"),
				}); err != nil {
					t.Fatal(err)
				}
			},
		},
		{
			name: "a directory that is a link out of the image", image: "compat",
			edit: func(t *testing.T, dir string) {
				if err := os.RemoveAll(filepath.Join(dir, compatDir)); err != nil {
					t.Fatal(err)
				}
				if err := images.Populate(dir, []images.File{images.Symlink(compatDir[1:], "../../../../../../../usr/lib")}); err != nil {
					t.Fatal(err)
				}
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := h.Tree(t, test.image)
			if test.edit != nil {
				test.edit(t, dir)
			}
			id := start(t, h, testenv.RunOptions{RootfsDir: dir})
			plan := h.Record(t, id)
			loads := loaded
			first, recorded := simhost.Lib, ""
			if test.used {
				loads = "libcuda.so.1 OK " + compatDir + "/libcuda.so.1 " + compatValue
				first, recorded = compatDir+"/", compatDir
			}
			if plan.Linker.Compat != recorded || test.note != "" && !strings.Contains(strings.Join(plan.Notes, "\n"), test.note) {
				t.Errorf("recorded %+v %q", plan.Linker, plan.Notes)
			}
			// Twice: as the shim left the cache, and as a later ldconfig does.
			for _, before := range []string{"true", "ldconfig"} {
				out := h.Sh(t, id, before+` && /test/dlopen -s cuDriverGetVersion libcuda.so.1
LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64 /test/dlopen -s cuDriverGetVersion libcuda.so.1
/test/dlopen libnvidia-ml.so.1`)
				if strings.Count(out, loads[strings.LastIndex(loads, " "):]) != 2 {
					t.Errorf("after %s:\n%s", before, out)
				}
				simhost.Want(t, out, loads, "libnvidia-ml.so.1 OK "+simhost.Lib)
				list := h.Sh(t, id, "ldconfig -p | grep 'libcuda.so.1 ' | grep -v '(libc6)'")
				if line, _, _ := strings.Cut(list, "\n"); !strings.HasSuffix(line, "=> "+first+"libcuda.so.1") {
					t.Errorf("after %s ldconfig lists first: %s", before, line)
				}
			}
			// The host's own libcuda is in no place that a search path could name.
			there := h.Sh(t, id, "ls "+simhost.Lib+" "+simhost.Multiarch)
			if strings.Contains(there, "libcuda.so") == test.used {
				t.Errorf("the driver's libcuda with compatibility used %v:\n%s", test.used, there)
			}
			// Nothing of the image is ever mounted (CVE-2024-0132).
			for _, m := range plan.Mounts {
				if strings.HasPrefix(m.Source, dir) || strings.Contains(m.Source, "compat") {
					t.Errorf("mounted: %+v", m)
				}
			}
			nvsmi := h.Sh(t, id, "nvidia-smi -L")
			simhost.Want(t, nvsmi, h.Driver.GPUs[0].UUID)
		})
	}
	t.Run("only with the compute capability", func(t *testing.T) {
		dir := h.Tree(t, "compat")
		id := start(t, h, testenv.RunOptions{RootfsDir: dir, Env: []string{"NVIDIA_DRIVER_CAPABILITIES=utility"}})
		if plan := h.Record(t, id); plan.Linker.Compat != "" {
			t.Errorf("recorded %+v", plan.Linker)
		}
		out := h.Sh(t, id, "/test/dlopen libcuda.so.1 libnvidia-ml.so.1; cat /etc/ld.so.conf.d/000-nvidia-shim.conf")
		simhost.Want(t, out, "libcuda.so.1: cannot open", "libnvidia-ml.so.1 OK "+simhost.Lib)
		if strings.Contains(out, "compat") {
			t.Errorf("the linker knows of it:\n%s", out)
		}
	})
	t.Run("in an image", func(t *testing.T) {
		out := h.MustRun(t, testenv.RunOptions{Image: h.Load(t, "compat"), Env: []string{one}, Args: []string{"/test/dlopen", "-s", "cuDriverGetVersion", "libcuda.so.1"}})
		simhost.Want(t, out, compatDir+"/libcuda.so.1 "+compatValue)
	})
}
