package sim

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// create makes a simulated driver for a test and removes it afterwards.
func create(t *testing.T, o Options) *Driver {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: device nodes are made with mknod")
	}
	o.Dir = filepath.Join(t.TempDir(), "gpus")
	d, err := Create(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Remove(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// inRoot opens name as a process whose root is the driver root would.
func inRoot(t *testing.T, d *Driver, name string) *os.File {
	t.Helper()
	root, err := unix.Open(d.Root, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, name, &unix.OpenHow{Flags: unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		t.Fatalf("%s in the driver root: %v", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	t.Cleanup(func() { f.Close() })
	return f
}

func elfOf(t *testing.T, r io.ReaderAt, name string) *elf.File {
	t.Helper()
	f, err := elf.NewFile(r)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return f
}

func dynamic(t *testing.T, f *elf.File, tag elf.DynTag) []string {
	t.Helper()
	s, err := f.DynString(tag)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func read(t *testing.T, elem ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// cacheEntries runs the real ldconfig over the driver root's cache: path by
// SONAME and kind.
func cacheEntries(t *testing.T, d *Driver) map[string][]string {
	t.Helper()
	out, err := exec.Command("/sbin/ldconfig", "-p", "-C", filepath.Join(d.Root, "etc/ld.so.cache")).CombinedOutput()
	if err != nil {
		t.Fatalf("ldconfig: %v: %s", err, out)
	}
	entries := map[string][]string{}
	for _, m := range regexp.MustCompile(`(?m)^\t(\S+) \([^)]*\) => (\S+)$`).FindAllStringSubmatch(string(out), -1) {
		entries[m[1]] = append(entries[m[1]], m[2])
	}
	return entries
}

func TestEveryLayoutHoldsTheDriver(t *testing.T) {
	// SONAMEs as seen on a host with the 580 driver.
	sonames := map[string]string{
		"libcuda": "libcuda.so.1", "libnvidia-ml": "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler": "libnvidia-ptxjitcompiler.so.1",
		"libGLX_nvidia": "libGLX_nvidia.so.0", "libEGL_nvidia": "libEGL_nvidia.so.0", "libGLESv2_nvidia": "libGLESv2_nvidia.so.2",
		"libGLESv1_CM_nvidia": "libGLESv1_CM_nvidia.so.1", "libnvcuvid": "libnvcuvid.so.1", "libnvidia-encode": "libnvidia-encode.so.1",
		"libnvidia-opticalflow": "libnvidia-opticalflow.so.1", "libnvidia-fbc": "libnvidia-fbc.so.1", "libnvidia-cfg": "libnvidia-cfg.so.1",
		"libnvidia-allocator": "libnvidia-allocator.so.1", "libnvidia-opencl": "libnvidia-opencl.so.1", "libcudadebugger": "libcudadebugger.so.1",
		"libnvidia-nvvm": "libnvidia-nvvm.so.4", "libnvidia-pkcs11-openssl3": "libnvidia-pkcs11-openssl3.so.580.159.04",
		"libnvoptix": "libnvoptix.so.1", "libnvidia-ngx": "libnvidia-ngx.so.1",
		"libnvidia-eglcore": "libnvidia-eglcore.so.580.159.04", "libnvidia-glcore": "libnvidia-glcore.so.580.159.04",
		"libnvidia-glsi": "libnvidia-glsi.so.580.159.04", "libnvidia-tls": "libnvidia-tls.so.580.159.04",
		"libnvidia-glvkspirv": "libnvidia-glvkspirv.so.580.159.04", "libnvidia-gpucomp": "libnvidia-gpucomp.so.580.159.04",
		"libnvidia-rtcore": "libnvidia-rtcore.so.580.159.04",
	}
	for layout, want := range map[Layout]struct{ cuda, smi, vdpau string }{
		Debian:        {"/lib/" + multiarch + "/libcuda.so.1", "/usr/bin/nvidia-smi", "/usr/lib/" + multiarch + "/vdpau/libvdpau_nvidia.so.1"},
		RHEL:          {"/lib64/libcuda.so.1", "/usr/bin/nvidia-smi", "/usr/lib64/vdpau/libvdpau_nvidia.so.1"},
		GKE:           {"/usr/local/nvidia/lib64/libcuda.so.1", "/usr/local/nvidia/bin/nvidia-smi", "/usr/local/nvidia/lib64/vdpau/libvdpau_nvidia.so.1"},
		NvidiaCurrent: {"/lib/" + multiarch + "/libcuda.so.1", "/usr/bin/nvidia-smi", "/usr/lib/" + multiarch + "/vdpau/libvdpau_nvidia.so.1"},
		Talos:         {"", "/usr/local/bin/nvidia-smi", "/usr/local/glibc/usr/lib/vdpau/libvdpau_nvidia.so.1"},
		NixOS:         {"", "/run/current-system/sw/bin/nvidia-smi", "/run/opengl-driver/lib/vdpau/libvdpau_nvidia.so.1"},
	} {
		t.Run(string(layout), func(t *testing.T) {
			d := create(t, Options{GPUs: 4, Layout: layout})
			entries := cacheEntries(t, d)
			for lib, soname := range sonames {
				name := filepath.Join(layout.LibDir(), lib+".so."+DefaultVersion)
				f := elfOf(t, inRoot(t, d, name), name)
				if got := dynamic(t, f, elf.DT_SONAME); !slices.Equal(got, []string{soname}) {
					t.Errorf("%s has SONAME %q, want %q", name, got, soname)
				}
				if !slices.Contains(dynamic(t, f, elf.DT_NEEDED), "libc.so.6") {
					t.Errorf("%s does not need libc.so.6", name)
				}
				inRoot(t, d, filepath.Join(layout.LibDir(), soname))
				if want.cuda != "" && (layout != NvidiaCurrent || soname == "libcuda.so.1") {
					if len(entries[soname]) == 0 {
						t.Errorf("ld.so.cache does not know %s", soname)
					}
				}
			}
			for _, paths := range entries {
				for _, p := range paths {
					elfOf(t, inRoot(t, d, p), p)
				}
			}
			if want.cuda == "" && len(entries["libcuda.so.1"]) != 0 {
				t.Errorf("ld.so.cache has libcuda.so.1 at %q, want nowhere", entries["libcuda.so.1"])
			}
			if want.cuda != "" && !slices.Contains(entries["libcuda.so.1"], want.cuda) {
				t.Errorf("ld.so.cache has libcuda.so.1 at %q, want %q", entries["libcuda.so.1"], want.cuda)
			}
			if layout == GKE && !slices.ContainsFunc(entries["libcuda.so.1"], func(p string) bool { return strings.HasPrefix(p, "/lib/") || strings.HasPrefix(p, "/usr/lib/") }) {
				t.Errorf("no second libcuda in %q", entries["libcuda.so.1"])
			}
			elfOf(t, inRoot(t, d, want.smi), want.smi)
			inRoot(t, d, want.vdpau)
			for _, name := range []string{
				layouts[layout].share + "/glvnd/egl_vendor.d/10_nvidia.json", layouts[layout].vulkan, layouts[layout].share + "/nvidia/nvoptix.bin",
				"etc/OpenCL/vendors/nvidia.icd", layouts[layout].firmware + "/nvidia/" + DefaultVersion + "/gsp_ga10x.bin",
				filepath.Join(layout.LibDir(), "libcuda.so"),
			} {
				inRoot(t, d, name)
			}
			st, err := inRoot(t, d, filepath.Join(layout.BinDir(), "nvidia-modprobe")).Stat()
			if err != nil || st.Mode()&fs.ModeSetuid == 0 {
				t.Errorf("nvidia-modprobe: mode %v, %v: want the setuid bit", st.Mode(), err)
			}
			if dir := layout.Lib32Dir(); dir != "" {
				name := filepath.Join(dir, "libcuda.so.1")
				f := elfOf(t, inRoot(t, d, name), name)
				if f.Class != elf.ELFCLASS32 || f.Machine != elf.EM_386 || !slices.Equal(dynamic(t, f, elf.DT_SONAME), []string{"libcuda.so.1"}) {
					t.Errorf("%s: class %v, machine %v, SONAME %q", name, f.Class, f.Machine, dynamic(t, f, elf.DT_SONAME))
				}
				if !slices.Contains(entries["libcuda.so.1"], loaderPath(layout)) {
					t.Errorf("ld.so.cache has libcuda.so.1 at %q, want %q among them", entries["libcuda.so.1"], loaderPath(layout))
				}
			}
		})
	}
}

// loaderPath is where ld.so.cache has the 32-bit libcuda.so.1.
func loaderPath(l Layout) string {
	switch l {
	case RHEL:
		return "/lib/libcuda.so.1"
	case GKE:
		return "/usr/local/nvidia/lib/libcuda.so.1"
	}
	return "/lib/i386-linux-gnu/libcuda.so.1"
}

func TestProgramsAndLibrariesNeedOnlyOldSymbols(t *testing.T) {
	d := create(t, Options{GPUs: 2})
	seen := 0
	for _, name := range d.Installed {
		full := filepath.Join(d.Root, name)
		if st, err := os.Lstat(full); err != nil || !st.Mode().IsRegular() || !strings.HasPrefix(read(t, full), elf.ELFMAG) {
			continue
		}
		f, err := elf.Open(full)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if f.Class != elf.ELFCLASS64 {
			continue
		}
		symbols, err := f.ImportedSymbols()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range symbols {
			seen++
			var major, minor int
			fmt.Sscanf(s.Version, "GLIBC_%d.%d", &major, &minor)
			if major != 2 || minor > 17 || strings.HasSuffix(s.Name, "_chk") {
				t.Errorf("%s needs %s of %s", name, s.Name, s.Version)
			}
		}
	}
	if seen < 50 {
		t.Errorf("only %d symbols were looked at", seen)
	}
}

// smi runs the simulated nvidia-smi with the devices of d.
func smi(t *testing.T, d *Driver, args ...string) (string, int) {
	t.Helper()
	dir := d.Layout.BinDir()
	if targets := layouts[d.Layout].binTargets; targets != "" {
		dir = targets // the links are for a root of their own
	}
	cmd := exec.Command(filepath.Join(d.Root, dir, "nvidia-smi"), args...)
	cmd.Env = []string{"LD_LIBRARY_PATH=" + filepath.Join(d.Root, d.Layout.LibDir()), "NVIDIA_SIM_DEV=" + filepath.Join(d.DevRoot, "dev")}
	return result(t, cmd)
}

func result(t *testing.T, cmd *exec.Cmd) (string, int) {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

func listing(gpus ...GPU) string {
	var b strings.Builder
	for i, g := range gpus {
		fmt.Fprintf(&b, "GPU %d: NVIDIA H200 (UUID: %s)\n", i, g.UUID)
	}
	return b.String()
}

func TestNvidiaSMIListsTheGPUsThatMayBeOpened(t *testing.T) {
	d := create(t, Options{GPUs: 4, Excluded: []int{3}})
	out, code := smi(t, d, "-L")
	if want := listing(d.GPUs[:3]...); out != want || code != 0 {
		t.Errorf("three GPUs and an excluded one: exit %d\n%swant\n%s", code, out, want)
	}
	out, code = smi(t, d)
	if code != 0 || strings.Count(out, "NVIDIA H200") != 3 || !strings.Contains(out, "CUDA Version: 13.0") {
		t.Errorf("table: exit %d\n%s", code, out)
	}
	remove(t, d, fmt.Sprintf("nvidia%d", d.GPUs[1].Minor))
	out, code = smi(t, d, "-L")
	if want := listing(d.GPUs[0], d.GPUs[2]); out != want || code != 0 {
		t.Errorf("one node less: exit %d\n%swant\n%s", code, out, want)
	}
	out, _ = smi(t, d, "--query-gpu=index,uuid,pci.bus_id,name", "--format=csv,noheader")
	want := fmt.Sprintf("0, %s, 00000000:19:00.0, NVIDIA H200\n1, %s, 00000000:4C:00.0, NVIDIA H200\n", d.GPUs[0].UUID, d.GPUs[2].UUID)
	if out != want {
		t.Errorf("query:\n%swant\n%s", out, want)
	}
	remove(t, d, "nvidia0", "nvidia2")
	if out, code = smi(t, d, "-L"); out != "No devices found.\n" || code != 6 {
		t.Errorf("no GPU: exit %d, %q", code, out)
	}
	remove(t, d, "nvidiactl")
	if out, code = smi(t, d, "-L"); code != 9 || !strings.HasPrefix(out, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.") {
		t.Errorf("no control node: exit %d, %q", code, out)
	}
	cmd := exec.Command(filepath.Join(d.Root, "usr/bin/nvidia-smi"))
	cmd.Env = []string{}
	if out, code = result(t, cmd); code != 12 || !strings.HasPrefix(out, "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.") {
		t.Errorf("no library: exit %d, %q", code, out)
	}
}

func remove(t *testing.T, d *Driver, nodes ...string) {
	t.Helper()
	for _, n := range nodes {
		if err := os.Remove(filepath.Join(d.DevRoot, "dev", n)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNodeWithoutPermissionDoesNotCount(t *testing.T) {
	d := create(t, Options{GPUs: 2})
	// A mount without device nodes refuses with EACCES, as a device cgroup does
	// with EPERM.
	dev := filepath.Join(d.DevRoot, "dev")
	node := filepath.Join(dev, "nvidia0")
	if err := unix.Mount(node, node, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("needs bind mounts: %v", err)
	}
	if err := unix.Mount("", node, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_NODEV, ""); err != nil {
		t.Fatal(err)
	}
	out, code := smi(t, d, "-L")
	if want := listing(d.GPUs[1]); out != want || code != 0 {
		t.Errorf("exit %d\n%swant\n%s", code, out, want)
	}
}

func TestMIGDevicesAreListedWithTheirParent(t *testing.T) {
	d := create(t, Options{GPUs: 3, MIG: []MIGDevice{{GPU: 1, GI: 7, CI: 0}, {GPU: 1, GI: 8, CI: 0}}})
	want := fmt.Sprintf("GPU 0: NVIDIA H200 (UUID: %s)\nGPU 1: NVIDIA H200 (UUID: %s)\n"+
		"  MIG 1g.18gb     Device  0: (UUID: %s)\n  MIG 1g.18gb     Device  1: (UUID: %s)\nGPU 2: NVIDIA H200 (UUID: %s)\n",
		d.GPUs[0].UUID, d.GPUs[1].UUID, d.MIG[0].UUID, d.MIG[1].UUID, d.GPUs[2].UUID)
	if out, code := smi(t, d, "-L"); out != want || code != 0 {
		t.Errorf("exit %d\n%swant\n%s", code, out, want)
	}
	remove(t, d, fmt.Sprintf("nvidia-caps/nvidia-cap%d", d.MIG[0].CIMinor))
	if out, _ := smi(t, d, "-L"); strings.Contains(out, d.MIG[0].UUID) || !strings.Contains(out, d.MIG[1].UUID) {
		t.Errorf("one capability node less:\n%s", out)
	}
	access := fmt.Sprintf("driver/nvidia/capabilities/gpu%d/mig/gi7/ci0/access", d.GPUs[1].Minor)
	content := fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", d.MIG[0].CIMinor)
	if got := read(t, d.ProcRoot, access); got != content {
		t.Errorf("%s: %q, want %q", access, got, content)
	}
	line := fmt.Sprintf("gpu%d/gi7/ci0/access %d\n", d.GPUs[1].Minor, d.MIG[0].CIMinor)
	if !strings.Contains(read(t, d.ProcRoot, "driver/nvidia-caps/mig-minors"), line) {
		t.Errorf("mig-minors lacks %q", line)
	}
}

func TestMIGDevicesAreReplaced(t *testing.T) {
	d := create(t, Options{GPUs: 2, MIG: []MIGDevice{{GPU: 1, GI: 7, CI: 0}, {GPU: 1, GI: 7, CI: 1}}})
	old := d.MIG
	if err := d.Reconfigure(t.Context(), []MIGDevice{{GPU: 0, GI: 3, CI: 0}, {GPU: 1, GI: 8, CI: 0}}); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("GPU 0: NVIDIA H200 (UUID: %s)\n  MIG 1g.18gb     Device  0: (UUID: %s)\nGPU 1: NVIDIA H200 (UUID: %s)\n  MIG 1g.18gb     Device  0: (UUID: %s)\n",
		d.GPUs[0].UUID, d.MIG[0].UUID, d.GPUs[1].UUID, d.MIG[1].UUID)
	if out, code := smi(t, d, "-L"); out != want || code != 0 {
		t.Errorf("exit %d\n%swant\n%s", code, out, want)
	}
	for _, name := range []string{
		fmt.Sprintf("%s/dev/nvidia-caps/nvidia-cap%d", d.DevRoot, old[0].GIMinor),
		fmt.Sprintf("%s/dev/nvidia-caps/nvidia-cap%d", d.DevRoot, old[1].CIMinor),
		fmt.Sprintf("%s/driver/nvidia/capabilities/gpu%d/mig/gi7", d.ProcRoot, d.GPUs[1].Minor),
	} {
		if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	again, err := Open(d.Dir)
	if err != nil || !slices.Equal(again.MIG, d.MIG) {
		t.Errorf("opened again: %+v, %v", again.MIG, err)
	}
}

// cudaProgram lists the devices of libcuda.so.1, then loads the libraries that
// its arguments name.
const cudaProgram = `
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
	if (!cuda) { puts(dlerror()); return 1; }
	int (*init)(unsigned) = dlsym(cuda, "cuInit"), (*count)(int *) = dlsym(cuda, "cuDeviceGetCount");
	int (*bus)(char *, int, int) = dlsym(cuda, "cuDeviceGetPCIBusId");
	int (*uuid)(unsigned char *, int) = dlsym(cuda, "cuDeviceGetUuid_v2"), (*version)(int *) = dlsym(cuda, "cuDriverGetVersion");
	int rc = init(0), n = 0, v = 0;
	version(&v);
	count(&n);
	printf("%d %d %d\n", rc, v, n);
	for (int i = 0; i < n; i++) {
		char id[32]; unsigned char u[16];
		if (bus(id, sizeof id, i) || uuid(u, i)) return 2;
		printf("%s ", id);
		for (int k = 0; k < 16; k++) printf("%02x", u[k]);
		printf("\n");
	}
	for (int i = 1; i < argc; i++) {
		void *lib = dlopen(argv[i], RTLD_NOW);
		if (!lib) { puts(dlerror()); return 3; }
		const char *(*name)(void) = dlsym(lib, "nvidia_sim_library");
		puts(name());
	}
	return 0;
}
`

func TestLibcudaListsTheGPUsThatMayBeOpened(t *testing.T) {
	d := create(t, Options{GPUs: 3, Version: "570.10.01"})
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program+".c", []byte(cudaProgram), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-o", program, program+".c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	run := func(args ...string) string {
		cmd := exec.Command(program, args...)
		cmd.Env = []string{"LD_LIBRARY_PATH=" + filepath.Join(d.Root, d.Layout.LibDir()), "NVIDIA_SIM_DEV=" + filepath.Join(d.DevRoot, "dev")}
		out, code := result(t, cmd)
		if code != 0 {
			t.Errorf("exit %d", code)
		}
		return out
	}
	line := func(g GPU) string {
		return strings.ToUpper(g.BusID) + " " + strings.NewReplacer("GPU-", "", "-", "").Replace(g.UUID) + "\n"
	}
	want := "0 12080 3\n" + line(d.GPUs[0]) + line(d.GPUs[1]) + line(d.GPUs[2]) + "libGLX_nvidia 570.10.01\nlibnvidia-ml 570.10.01\n"
	if got := run("libGLX_nvidia.so.0", "libnvidia-ml.so.1"); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	remove(t, d, fmt.Sprintf("nvidia%d", d.GPUs[0].Minor))
	if got, want := run(), "0 12080 2\n"+line(d.GPUs[1])+line(d.GPUs[2]); got != want {
		t.Errorf("one node less: got\n%swant\n%s", got, want)
	}
	remove(t, d, "nvidia-uvm")
	if got := run(); got != "999 12080 0\n" {
		t.Errorf("no nvidia-uvm: got %q", got)
	}
	remove(t, d, "nvidiactl")
	if got := run(); got != "100 12080 0\n" {
		t.Errorf("no nvidiactl: got %q", got)
	}
}

// TestTheLoaderFindsTheLibrariesByTheCache runs nvidia-smi in a chroot to the
// driver root, to which this host's C library is added.
func TestTheLoaderFindsTheLibrariesByTheCache(t *testing.T) {
	for _, layout := range Layouts {
		t.Run(string(layout), func(t *testing.T) {
			d := create(t, Options{GPUs: 3, Layout: layout})
			smi := filepath.Join("/", layout.BinDir(), "nvidia-smi")
			var interpreter string
			for _, p := range elfOf(t, inRoot(t, d, smi), smi).Progs {
				if p.Type == elf.PT_INTERP {
					data, err := io.ReadAll(p.Open())
					if err != nil {
						t.Fatal(err)
					}
					interpreter = strings.TrimRight(string(data), "\x00")
				}
			}
			libc := map[string]string{interpreter: interpreter}
			for _, name := range []string{"libc.so.6", "libdl.so.2"} {
				out, err := exec.Command("gcc", "-print-file-name="+name).Output()
				if err != nil {
					t.Fatal(err)
				}
				libc[strings.TrimSpace(string(out))] = "/usr/lib/" + name
			}
			for from, to := range libc {
				if err := copyFile(from, filepath.Join(d.Root, to), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Rename(filepath.Join(d.DevRoot, "dev"), filepath.Join(d.Root, "dev")); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(smi, "-L")
			cmd.Env, cmd.Dir = []string{}, "/"
			if layout == Talos || layout == NixOS {
				// Neither has a cache; their programs are told where the libraries are.
				cmd.Env = []string{"LD_LIBRARY_PATH=/" + layout.LibDir()}
			}
			cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: d.Root}
			if out, code := result(t, cmd); out != listing(d.GPUs...) || code != 0 {
				t.Errorf("exit %d\n%s", code, out)
			}
		})
	}
}

func TestProcFilesHaveTheModulesFormat(t *testing.T) {
	d := create(t, Options{GPUs: 3, KernelVersion: "575.57.08", Excluded: []int{2}})
	g := d.GPUs[0]
	if g.Minor != 2 {
		t.Errorf("GPU 0 has minor %d, want 2: an index must not pass for a minor", g.Minor)
	}
	information := "Model: \t\t NVIDIA H200\nIRQ:   \t\t 100\nGPU UUID: \t " + g.UUID + "\nVideo BIOS: \t 96.00.e8.00.01\n" +
		"Bus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\nBus Location: \t 0000:19:00.0\n" +
		"Device Minor: \t 2\nGPU Firmware: \t 575.57.08\nGPU Excluded:\t No\n"
	for name, want := range map[string]string{
		"gpus/0000:19:00.0/information": information,
		"gpus/0000:19:00.0/registry":    "Binary: \"\"\n",
		"registry":                      "Binary: \"\"\n",
		"suspend":                       "suspend hibernate resume\n",
		"suspend_depth":                 "default modeset uvm\n",
		"capabilities/mig/config":       "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n",
		"capabilities/mig/monitor":      "DeviceFileMinor: 2\nDeviceFileMode: 292\nDeviceFileModify: 1\n",
	} {
		if got := read(t, d.ProcRoot, "driver/nvidia", name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for name, line := range map[string]string{
		"driver/nvidia/version":                       `^NVRM version: NVIDIA UNIX Open Kernel Module for ` + machine + `  575\.57\.08  Release Build  \(`,
		"driver/nvidia/params":                        `(?m)^ModifyDeviceFiles: 1$`,
		"driver/nvidia/gpus/0000:4c:00.0/information": `(?m)^GPU Excluded:\t Yes$`,
		"devices":                                    `(?s)^Character devices:\n.*\n195 nvidia\n195 nvidiactl\n.*\n\nBlock devices:\n`,
		"driver/nvidia-caps/mig-minors":              `^config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\n`,
		"driver/nvidia-caps/sys-minors":              `^fabric-imex-mgmt 4323\n$`,
		"../sys/module/nvidia/version":               `^575\.57\.08\n$`,
		"../sys/bus/pci/devices/0000:19:00.0/vendor": `^0x10de\n$`,
		"../sys/bus/pci/devices/0000:19:00.0/class":  `^0x0302`,
	} {
		if got := read(t, d.ProcRoot, name); !regexp.MustCompile(line).MatchString(got) {
			t.Errorf("%s does not match %q:\n%.300s", name, line, got)
		}
	}
	// The numbers that NVIDIA's MIG documentation shows.
	minors := read(t, d.ProcRoot, "driver/nvidia-caps/mig-minors")
	for _, line := range []string{"gpu0/gi1/access 12\n", "gpu0/gi9/access 84\n", "gpu1/gi0/access 138\n", "gpu31/gi14/ci7/access 4322\n"} {
		if !strings.Contains(minors, line) {
			t.Errorf("mig-minors lacks %q", line)
		}
	}
	for _, g := range d.GPUs {
		for _, name := range []string{fmt.Sprintf("proc/driver/nvidia/capabilities/gpu%d/mig", g.Minor), fmt.Sprintf("sys/bus/pci/devices/%s/drm/renderD%d", g.BusID, 128+g.Index)} {
			if st, err := os.Stat(filepath.Join(d.Dir, name)); err != nil || !st.IsDir() {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestDeviceNodesHaveTheirNumbersAndModes(t *testing.T) {
	d := create(t, Options{GPUs: 3, MIG: []MIGDevice{{GPU: 0, GI: 1, CI: 0}}})
	giMinor := capMinor(2, 1, -1)
	for name, want := range map[string]struct {
		major, minor uint32
		mode         uint32
	}{
		"nvidia0": {195, 0, 0o666}, "nvidia1": {195, 1, 0o666}, "nvidia2": {195, 2, 0o666},
		"nvidiactl": {195, 255, 0o666}, "nvidia-modeset": {195, 254, 0o666},
		"nvidia-uvm": {d.Majors.UVM, 0, 0o666}, "nvidia-uvm-tools": {d.Majors.UVM, 1, 0o666},
		"nvidia-caps/nvidia-cap1": {d.Majors.Caps, 1, 0o400}, "nvidia-caps/nvidia-cap2": {d.Majors.Caps, 2, 0o444},
		fmt.Sprintf("nvidia-caps/nvidia-cap%d", giMinor): {d.Majors.Caps, uint32(giMinor), 0o444},
		"dri/card1": {d.Majors.DRM, 1, 0o660}, "dri/renderD130": {d.Majors.DRM, 130, 0o660},
	} {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(d.DevRoot, "dev", name), &st); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if st.Mode != unix.S_IFCHR|want.mode || unix.Major(st.Rdev) != want.major || unix.Minor(st.Rdev) != want.minor {
			t.Errorf("%s: mode %o, %d:%d, want %o, %d:%d", name, st.Mode, unix.Major(st.Rdev), unix.Minor(st.Rdev), want.mode, want.major, want.minor)
		}
	}
}

func TestMajorNumbersOfThisHostAreNotTaken(t *testing.T) {
	if _, err := chooseMajors(Majors{GPU: 1}); err == nil || !strings.Contains(err.Error(), `"mem"`) {
		t.Errorf("the number of /dev/mem: %v", err)
	}
	m, err := chooseMajors(Majors{GPU: 510, UVM: 509})
	if err != nil || m.GPU != 510 || m.UVM != 509 || m.Caps == 0 || m.DRM == 0 {
		t.Errorf("free numbers: %+v, %v", m, err)
	}
	if m, err := chooseMajors(Majors{GPU: 241}); err == nil && m.Caps == 241 {
		t.Errorf("two drivers with one number: %+v", m)
	}
}

func TestTheShimAcceptsTheConfiguration(t *testing.T) {
	d := create(t, Options{GPUs: 1})
	c, err := config.Load(d.ConfigPath)
	if err != nil {
		t.Fatal(err)
	}
	// What the file does not name has its default.
	want := config.Default().Host
	want.DriverRoot, want.DevRoot, want.ProcRoot, want.SysRoot = d.Root, d.DevRoot, d.ProcRoot, d.SysRoot
	want.StateDir, want.ProcMaskTarget = d.StateDir, "/proc/driver"
	if got := fmt.Sprint(c.Host); got != fmt.Sprint(want) {
		t.Errorf("host is %s, want %v", got, want)
	}
}

func TestUpgradeReplacesEveryFileOfTheOldVersion(t *testing.T) {
	for _, layout := range Layouts {
		t.Run(string(layout), func(t *testing.T) {
			d := create(t, Options{GPUs: 2, Layout: layout})
			old := inRoot(t, d, filepath.Join(layout.LibDir(), "libcuda.so.1"))
			if err := d.Upgrade("590.48.01"); err != nil {
				t.Fatal(err)
			}
			if _, err := elf.NewFile(old); err != nil {
				t.Errorf("a library that is in use: %v", err)
			}
			err := filepath.WalkDir(d.Root, func(name string, e fs.DirEntry, err error) error {
				if err == nil && !e.IsDir() && strings.Contains(name, DefaultVersion) {
					t.Errorf("%s is left", name)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, paths := range cacheEntries(t, d) {
				for _, p := range paths {
					inRoot(t, d, p)
				}
			}
			if !strings.Contains(read(t, d.ProcRoot, "driver/nvidia/version"), "  590.48.01  ") || read(t, d.SysRoot, "module/nvidia/version") != "590.48.01\n" {
				t.Error("the module's version did not change")
			}
			if out, _ := smi(t, d); !strings.Contains(out, "Driver Version: 590.48.01") {
				t.Errorf("nvidia-smi says\n%s", out)
			}
			again, err := Open(d.Dir)
			if err != nil || again.Version != "590.48.01" || len(again.GPUs) != 2 {
				t.Errorf("opened again: %+v, %v", again, err)
			}
		})
	}
}

func TestRemoveLeavesNothing(t *testing.T) {
	d := create(t, Options{GPUs: 1})
	view := filepath.Join(d.StateDir, "view", "a b")
	if err := os.MkdirAll(view, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", view, "tmpfs", 0, ""); err != nil {
		t.Skipf("needs mounts: %v", err)
	}
	lib := filepath.Join(view, "libcuda.so.1")
	if err := os.WriteFile(lib, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(filepath.Join(d.Root, d.Layout.LibDir(), "libcuda.so.1"), lib, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if err := d.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(d.Dir); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", d.Dir, err)
	}
	if strings.Contains(read(t, "/proc/self/mountinfo"), d.Dir) {
		t.Error("a mount is left")
	}
}

func TestCreateRefuses(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "precious"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		o    Options
		want string
	}{
		"no directory":             {Options{GPUs: 1}, "no directory"},
		"a directory with files":   {Options{Dir: dir, GPUs: 1}, "is not empty"},
		"no GPU":                   {Options{Dir: dir + "/d"}, "0 GPUs: 1 to 16"},
		"too many GPUs":            {Options{Dir: dir + "/d", GPUs: 17}, "17 GPUs: 1 to 16"},
		"a layout nobody has":      {Options{Dir: dir + "/d", GPUs: 1, Layout: "plan9"}, `unknown layout "plan9"`},
		"a version that is a path": {Options{Dir: dir + "/d", GPUs: 1, Version: "../580.1"}, "is not a driver version"},
		"an excluded GPU too many": {Options{Dir: dir + "/d", GPUs: 1, Excluded: []int{1}}, "excluded GPU 1"},
		"a MIG device too many":    {Options{Dir: dir + "/d", GPUs: 1, MIG: []MIGDevice{{GI: 15}}}, "MIG device 0:15:0"},
	} {
		if os.Geteuid() != 0 && strings.Contains(c.want, "empty") {
			continue
		}
		if _, err := Create(t.Context(), c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "precious")); err != nil {
		t.Error(err)
	}
	if _, err := Open(dir); err == nil {
		t.Error("a directory without a simulated driver was opened")
	}
}

func TestMissingCompilerIsNamed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: device nodes are made with mknod")
	}
	t.Setenv("PATH", t.TempDir())
	dir := filepath.Join(t.TempDir(), "gpus")
	_, err := Create(context.Background(), Options{Dir: dir, GPUs: 1})
	if err == nil || !strings.Contains(err.Error(), "apt-get install gcc libc6-dev") {
		t.Errorf("error is %v", err)
	}
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", dir, err)
	}
}

func TestCreateWorksWithoutACache(t *testing.T) {
	t.Setenv("HOME", "")
	t.Setenv("XDG_CACHE_HOME", "")
	d := create(t, Options{GPUs: 1})
	if out, code := smi(t, d, "-L"); code != 0 || out != listing(d.GPUs...) {
		t.Errorf("exit %d\n%s", code, out)
	}
	left, err := filepath.Glob(filepath.Join(d.Dir, "build-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left over: %q, %v", left, err)
	}
}

func TestSecondDriverTakesLessThanASecond(t *testing.T) {
	create(t, Options{GPUs: 8})
	start := time.Now()
	create(t, Options{GPUs: 8})
	if took := time.Since(start); took > time.Second {
		t.Errorf("it took %v", took)
	}
}
