package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// cpValue is what cuDriverGetVersion of an image's own libcuda gives.
const cpValue = 13050

func cpTree(t *testing.T, h *host, c images.Compat, more ...images.File) string {
	t.Helper()
	c.Value = cpValue
	tar, err := c.Build()
	if err != nil {
		t.Fatal(err)
	}
	return h.lnUnpack(t, tar, more...)
}

// The host's driver is sim.DefaultVersion, 580.159.04. The rule is that of
// ldcache.FindCompat.
func TestTheForwardCompatibilityLibraryIsUsedWhenItIsNewerAndServesTheDriver(t *testing.T) {
	h := newHost(t, hostOptions{})
	const compatDir = "/usr/local/cuda-13.5/compat"
	for _, test := range []struct {
		name   string
		compat images.Compat
		more   []images.File
		edit   func(t *testing.T, dir string)
		used   bool
		note   string
	}{
		{name: "newer, with a note that names the host's release", compat: images.Compat{Version: "610.43.02", Note: images.FwdNote("13.5", 570, 580)}, used: true, note: "serves it"},
		{name: "newer by its minor version, with a note", compat: images.Compat{Version: "580.999.01", Note: images.FwdNote("13.5", 580)}, used: true, note: "serves it"},
		{name: "older, with a note", compat: images.Compat{Version: "575.57.08", Note: images.FwdNote("12.9", 535, 580)}, note: "not newer"},
		{name: "equal, with a note", compat: images.Compat{Version: "580.159.04", Note: images.FwdNote("13.0", 580)}, note: "not newer"},
		{name: "newer, with a note that does not name the host's release", compat: images.Compat{Version: "610.43.02", Note: images.FwdNote("13.5", 535, 570)}, note: "does not serve host drivers 580"},
		{name: "newer, with a note that is no JSON", compat: images.Compat{Version: "610.43.02", Note: cpString("{")}, note: "cannot be judged"},
		{name: "of a newer release, without a note", compat: images.Compat{Version: "610.43.02"}, used: true, note: "newer release"},
		{name: "of the same release, without a note", compat: images.Compat{Version: "580.999.01"}, note: "not of a newer release"},
		{name: "of an older release, without a note", compat: images.Compat{Version: "535.183.01"}, note: "not of a newer release"},
		{
			name: "two candidates", compat: images.Compat{Version: "610.43.02", Note: images.FwdNote("13.5", 580)},
			more: []images.File{images.Text(compatDir[1:]+"/libcuda.so.620.01.01", 0o644, "x")}, note: "more than one",
		},
		{
			name: "a directory reached by a chain of links", compat: images.Compat{Version: "610.43.02", Note: images.FwdNote("13.5", 580)}, used: true, note: "serves it",
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
			name: "a directory that is a link out of the image", compat: images.Compat{Version: "610.43.02", Note: images.FwdNote("13.5", 580)},
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
			dir := cpTree(t, h, test.compat, test.more...)
			if test.edit != nil {
				test.edit(t, dir)
			}
			id := h.lnStart(t, testenv.RunOptions{RootfsDir: dir})
			plan := h.record(t, id)
			loads := "libcuda.so.1 OK " + lnLib + "libcuda.so.1 " + lnDriverValue
			first, recorded := lnLib, ""
			if test.used {
				loads = "libcuda.so.1 OK " + compatDir + "/libcuda.so.1 cuDriverGetVersion=13050"
				first, recorded = compatDir+"/", compatDir
			}
			if plan.Linker.Compat != recorded || test.note != "" && !strings.Contains(strings.Join(plan.Notes, "\n"), test.note) {
				t.Errorf("recorded %+v %q", plan.Linker, plan.Notes)
			}
			// Twice: as the shim left the cache, and as a later ldconfig does.
			for _, before := range []string{"true", "ldconfig"} {
				out := h.lnSh(t, id, before+` && /test/dlopen -s cuDriverGetVersion libcuda.so.1
LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64 /test/dlopen -s cuDriverGetVersion libcuda.so.1
/test/dlopen libnvidia-ml.so.1`)
				if strings.Count(out, loads[strings.LastIndex(loads, " "):]) != 2 {
					t.Errorf("after %s:\n%s", before, out)
				}
				lnWant(t, out, loads, "libnvidia-ml.so.1 OK "+lnLib)
				list := h.lnSh(t, id, "ldconfig -p | grep 'libcuda.so.1 ' | grep -v '(libc6)'")
				if line, _, _ := strings.Cut(list, "\n"); !strings.HasSuffix(line, "=> "+first+"libcuda.so.1") {
					t.Errorf("after %s ldconfig lists first: %s", before, line)
				}
			}
			// The host's own libcuda is in no place that a search path could name.
			there := h.lnSh(t, id, "ls "+lnLib+" "+lnMultiarch())
			if strings.Contains(there, "libcuda.so") == test.used {
				t.Errorf("the driver's libcuda with compatibility used %v:\n%s", test.used, there)
			}
			// Nothing of the image is ever mounted (CVE-2024-0132).
			for _, m := range plan.Mounts {
				if strings.HasPrefix(m.Source, dir) || strings.Contains(m.Source, "compat") {
					t.Errorf("mounted: %+v", m)
				}
			}
			nvsmi := h.lnSh(t, id, "nvidia-smi -L")
			lnWant(t, nvsmi, h.Driver.GPUs[0].UUID)
		})
	}
	t.Run("absent", func(t *testing.T) {
		plan := h.lnPlan(t, testenv.RunOptions{RootfsDir: h.lnTree(t, "glibc-hwcaps")})
		if plan.Linker.Compat != "" || strings.Contains(strings.Join(plan.Notes, "\n"), "compatibility") {
			t.Errorf("recorded %+v %q", plan.Linker, plan.Notes)
		}
	})
	t.Run("only with the compute capability", func(t *testing.T) {
		dir := cpTree(t, h, images.Compat{Version: "610.43.02", Note: images.FwdNote("13.5", 580)})
		id := h.lnStart(t, testenv.RunOptions{RootfsDir: dir, Env: []string{"NVIDIA_DRIVER_CAPABILITIES=utility"}})
		if plan := h.record(t, id); plan.Linker.Compat != "" {
			t.Errorf("recorded %+v", plan.Linker)
		}
		out := h.lnSh(t, id, "/test/dlopen libcuda.so.1 libnvidia-ml.so.1; cat /etc/ld.so.conf.d/000-nvidia-shim.conf")
		lnWant(t, out, "libcuda.so.1: cannot open", "libnvidia-ml.so.1 OK "+lnLib)
		if strings.Contains(out, "compat") {
			t.Errorf("the linker knows of it:\n%s", out)
		}
	})
	t.Run("in an image", func(t *testing.T) {
		c := images.Compat{Version: "610.43.02", Note: images.FwdNote("13.5", 580), Value: cpValue}
		tar, err := c.Build()
		if err != nil {
			t.Fatal(err)
		}
		h.Import(t, tar)
		out := h.MustRun(t, testenv.RunOptions{Image: images.Ref(c.Name()), Env: []string{lnOne}, Args: []string{"/test/dlopen", "-s", "cuDriverGetVersion", "libcuda.so.1"}})
		lnWant(t, out, compatDir+"/libcuda.so.1 cuDriverGetVersion=13050")
	})
}

func cpString(s string) *string { return &s }
