package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// realDriver is the host's own driver with the default configuration, except for
// the state directory, so that a shim installed on this host is not disturbed.
func realDriver(work string) (cfg *config.Config, path string, inv *device.Inventory, err error) {
	path = filepath.Join(work, "config.toml")
	text := fmt.Sprintf("[host]\nstate-dir = %q\n", filepath.Join(work, "state"))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return nil, "", nil, err
	}
	if cfg, err = config.Load(path); err != nil {
		return nil, "", nil, err
	}
	inv, err = device.Discover(gpuinject.Roots(cfg.Host))
	return cfg, path, inv, err
}

// hostPrograms are what the containers of a real run execute; nvidia-smi is the
// driver's and needs hostLibraries.
var (
	hostPrograms  = []string{"true", "sleep"}
	hostLibraries = []string{"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"}
)

// hostImage assembles an image from this host's own C library, without a compiler.
func hostImage(work string) (string, error) {
	files := []images.File{
		images.Dir("dev", 0o755), images.Dir("proc", 0o755), images.Dir("sys", 0o755), images.Dir("tmp", 0o1777),
		images.Dir("run", 0o755), images.Dir("etc", 0o755), images.Dir("etc/ld.so.conf.d", 0o755),
		images.Dir("usr/bin", 0o755), images.Dir("usr/lib", 0o755), images.Dir("usr/lib64", 0o755),
		images.Symlink("bin", "usr/bin"), images.Symlink("lib", "usr/lib"), images.Symlink("lib64", "usr/lib64"),
		images.Text("etc/passwd", 0o644, "root:x:0:0:root:/:/bin/sh\n"),
		images.Text("etc/ld.so.conf", 0o644, "include /etc/ld.so.conf.d/*.conf\n"),
	}
	wanted := slices.Clone(hostLibraries)
	dirs := map[string]bool{}
	for _, name := range hostPrograms {
		path, err := exec.LookPath(name)
		if err != nil {
			return "", err
		}
		files = append(files, images.FromHost("usr/bin/"+name, 0o755, path))
		loader, needed, err := dynamic(path)
		if err != nil {
			return "", fmt.Errorf("%s: %w", path, err)
		}
		if loader != "" && !slices.ContainsFunc(files, func(f images.File) bool { return f.Path == inUsr(loader) }) {
			files = append(files, images.FromHost(inUsr(loader), 0o755, loader))
		}
		wanted = append(wanted, needed...)
	}
	for i := 0; i < len(wanted); i++ {
		if slices.Contains(wanted[:i], wanted[i]) {
			continue
		}
		path, ok := hostLibrary(wanted[i])
		if !ok {
			continue
		}
		_, needed, err := dynamic(path)
		if err != nil {
			return "", fmt.Errorf("%s: %w", path, err)
		}
		wanted = append(wanted, needed...)
		if name := inUsr(path); !slices.ContainsFunc(files, func(f images.File) bool { return f.Path == name }) {
			files = append(files, images.FromHost(name, 0o755, path))
			dirs["/"+filepath.Dir(name)] = true
		}
	}
	var conf strings.Builder
	for dir := range dirs {
		conf.WriteString(dir + "\n")
	}
	files = append(files, images.Text("etc/ld.so.conf.d/libc.conf", 0o644, conf.String()))

	root := filepath.Join(work, "hostimage")
	if err := os.Mkdir(root, 0o755); err != nil {
		return "", err
	}
	if err := images.Populate(root, files); err != nil {
		return "", err
	}
	if err := ldconfig(root); err != nil {
		return "", err
	}
	tar := filepath.Join(work, "host.tar")
	return tar, images.Image{
		Name:   images.Ref("host"),
		Config: images.Config{Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, WorkingDir: "/"},
		Layers: []images.Layer{{Dir: root, Skip: func(path string) bool { return path == "var/cache" }}},
	}.Write(tar)
}

// ldconfig makes the cache of an image as its build would have.
func ldconfig(root string) error {
	for _, name := range []string{"/usr/sbin/ldconfig.real", "/sbin/ldconfig.real", "/usr/sbin/ldconfig", "/sbin/ldconfig"} {
		if _, err := os.Stat(name); err == nil {
			if out, err := exec.Command(name, "-r", root).CombinedOutput(); err != nil {
				return fmt.Errorf("ldconfig -r: %w: %s", err, out)
			}
			return nil
		}
	}
	return errors.New("this host has no ldconfig")
}

// inUsr is where a file of the host is in an image whose /usr is merged.
func inUsr(path string) string {
	path = strings.TrimPrefix(path, "/")
	if strings.HasPrefix(path, "usr/") {
		return path
	}
	return "usr/" + path
}

// hostLibrary finds a library of the host's C library.
func hostLibrary(name string) (string, bool) {
	for _, dir := range []string{"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/lib64", "/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib", "/lib"} {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, true
		}
	}
	return "", false
}

// dynamic is what an ELF file needs: its loader ("" for a library) and libraries.
func dynamic(path string) (loader string, needed []string, err error) {
	f, err := elf.Open(path)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			data := make([]byte, p.Filesz)
			if _, err := p.ReadAt(data, 0); err != nil {
				return "", nil, err
			}
			loader = strings.TrimRight(string(data), "\x00")
		}
	}
	needed, err = f.ImportedLibraries()
	return loader, needed, err
}

// peers are the other ways to give a container a GPU that this host has; notes say
// which it has not.
func peers(h *testenv.Lifetime, image string) (found []Variant, notes []string) {
	if ctk, err := exec.LookPath("nvidia-ctk"); err != nil {
		notes = append(notes, "containerd's CDI was not measured: nvidia-ctk is not installed on this host.")
	} else if err := cdiSpec(h, ctk); err != nil {
		notes = append(notes, "containerd's CDI was not measured: "+err.Error())
	} else {
		found = append(found, Variant{
			Name: "containerd's CDI", image: image, runtime: testenv.StockRuntime, gpus: -1,
			extra: []string{"--device", "nvidia.com/gpu=0"},
		})
	}
	path, err := exec.LookPath("nvidia-container-runtime")
	if err != nil {
		return found, append(notes, "nvidia-container-runtime was not measured: it is not installed on this host.")
	}
	return append(found, Variant{
		Name: "nvidia-container-runtime", image: image, runtime: testenv.StockRuntime, gpus: -1,
		env:   []string{"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"},
		extra: []string{"--runc-binary", path},
	}), notes
}

// cdiSpec makes sure that a CDI specification of the GPUs is there; one that it
// makes is removed at the end.
func cdiSpec(h *testenv.Lifetime, ctk string) error {
	for _, pattern := range []string{"/etc/cdi/*", cdiSpecs + "/*"} {
		names, _ := filepath.Glob(pattern)
		for _, name := range names {
			if data, err := os.ReadFile(name); err == nil && strings.Contains(string(data), "nvidia.com/gpu") {
				return nil
			}
		}
	}
	spec, err := exec.Command(ctk, "cdi", "generate").Output()
	if err != nil {
		return fmt.Errorf("nvidia-ctk cdi generate: %w", err)
	}
	return writeCDI(h, "nvidia-shim-bench.yaml", spec)
}

// cdiSpecs is where CDI specifications are that somebody generates.
const cdiSpecs = "/var/run/cdi"

// writeCDI puts a CDI specification there, for as long as the run takes.
func writeCDI(h *testenv.Lifetime, name string, spec []byte) error {
	if _, err := os.Stat(cdiSpecs); os.IsNotExist(err) {
		if err := os.MkdirAll(cdiSpecs, 0o755); err != nil {
			return err
		}
		h.Cleanup(func() { os.Remove(cdiSpecs) })
	}
	name = filepath.Join(cdiSpecs, name)
	h.Cleanup(func() { os.Remove(name) })
	return os.WriteFile(name, spec, 0o644)
}
