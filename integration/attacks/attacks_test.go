package attacks

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

func TestMain(m *testing.M) {
	testenv.Main(m, append([]string{"tools/runc-1.1", "tools/runc-1.2"}, runtimeclass.Programs...)...)
}

const (
	one         = "NVIDIA_VISIBLE_DEVICES=0"
	everything  = "NVIDIA_DRIVER_CAPABILITIES=all"
	driverValue = "cuDriverGetVersion=13000"
)

func TestNamespacesAndVolumesDoNotCarryTheDriverElsewhere(t *testing.T) {
	h := newHost(t, simhost.Options{})
	dir := h.Tree(t, "glibc-hwcaps")
	run := testenv.RunOptions{RootfsDir: dir, Env: []string{one}, Args: []string{"/bin/busybox", "sh", "-c", look + "; cat /proc/driver/nvidia/params"}}
	t.Run("T24 a working directory that is a descriptor", func(t *testing.T) {
		h.unharmed(t, func() {
			for fd := 3; fd <= 32; fd++ {
				o := run
				o.Extra = []string{"--cwd", fmt.Sprintf("/proc/self/fd/%d", fd)}
				o.Args = []string{"/bin/busybox", "sh", "-c", "pwd; ls; ls ../.. ../../.."}
				if r := h.Run(t, o); r.ExitCode == 0 || strings.Contains(r.Output, "canary") {
					t.Errorf("descriptor %d: %s", fd, r.Output)
				} else {
					clean(t, r)
				}
			}
		})
	})
	namespaces := func(spec map[string]any) []any { return spec["linux"].(map[string]any)["namespaces"].([]any) }
	without := func(spec map[string]any, kind string) []any {
		return slices.DeleteFunc(slices.Clone(namespaces(spec)), func(n any) bool { return n.(map[string]any)["type"] == kind })
	}
	for name, change := range map[string]func(spec map[string]any){
		"none": func(spec map[string]any) { spec["linux"].(map[string]any)["namespaces"] = without(spec, "mount") },
		"the host's": func(spec map[string]any) {
			spec["linux"].(map[string]any)["namespaces"] = append(without(spec, "mount"), map[string]any{"type": "mount", "path": "/proc/1/ns/mnt"})
		},
		"another container's": func(spec map[string]any) {
			id := h.Start(t, testenv.RunOptions{RootfsDir: dir, Env: []string{one}})
			pid := regexp.MustCompile(`(?m)^` + id + `\s+(\d+)`).FindStringSubmatch(h.Ctr(t, "tasks", "ls"))
			spec["linux"].(map[string]any)["namespaces"] = append(without(spec, "mount"), map[string]any{"type": "mount", "path": "/proc/" + pid[1] + "/ns/mnt"})
		},
	} {
		t.Run("T26 a mount namespace that is "+name+" is refused", func(t *testing.T) {
			spec := h.Spec(t, run)
			change(spec)
			h.unharmed(t, func() {
				r := h.RunSpec(t, spec)
				if r.ExitCode == 0 || !strings.Contains(r.Error, "no mount namespace of its own") {
					t.Errorf("%d %s", r.ExitCode, r.Error)
				}
			})
		})
	}
	t.Run("T27 the host's process namespace", func(t *testing.T) {
		spec := h.Spec(t, run)
		spec["linux"].(map[string]any)["namespaces"] = without(spec, "pid")
		h.unharmed(t, func() {
			r := h.RunSpec(t, spec)
			if r.ExitCode != 0 {
				t.Fatal(r.Error)
			}
			h.noHostDirectory(t, r.Output)
			simhost.Want(t, r.Output, "ModifyDeviceFiles: 0")
		})
	})
	t.Run("T28 shared propagation with a shared volume", func(t *testing.T) {
		shared := filepath.Join(h.Dir, "shared")
		if err := os.Mkdir(shared, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", shared, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(shared, unix.MNT_DETACH)
		if err := unix.Mount("", shared, "", unix.MS_SHARED, ""); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(shared, "sub"), 0o755); err != nil {
			t.Fatal(err)
		}
		o := run
		o.Mounts = []string{"type=bind,src=" + shared + ",dst=/shared,options=rbind:rshared:rw"}
		o.Extra = []string{"--rootfs-propagation", "rshared"}
		before := h.MountTable(t)
		h.unharmed(t, func() {
			h.noHostDirectory(t, h.MustRun(t, o), shared)
			id := h.Start(t, o)
			during := h.MountTable(t)
			h.Gone(t, id)
			for line := range strings.Lines(during) {
				if f := strings.Fields(line); h.IsOwn(line) && !strings.Contains(before, " "+f[4]+" ") && !strings.HasPrefix(f[4], h.Driver.StateDir) {
					t.Errorf("new on the host while it runs: %s", line)
				}
			}
		})
	})
	t.Run("T53 volumes at procfs and at the nodes", func(t *testing.T) {
		volume := filepath.Join(h.Dir, "v")
		if err := os.MkdirAll(filepath.Join(volume, "gpus"), 0o755); err != nil {
			t.Fatal(err)
		}
		before := simhost.Files(t, volume)
		for _, dst := range []string{"/proc", "/proc/driver", "/proc/driver/nvidia", "/dev", "/dev/nvidiactl", fmt.Sprintf("/dev/nvidia%d", h.Driver.GPUs[0].Minor)} {
			o := run
			o.Mounts = []string{"type=bind,src=" + volume + ",dst=" + dst + ",options=rbind:rw"}
			h.unharmed(t, func() {
				r := h.Run(t, o)
				if clean(t, r) {
					// A volume of the container at the place of a node wins, and the container has
					// no GPU there.
					h.noHostDirectory(t, r.Output, volume)
					if !strings.HasPrefix(dst, "/dev/nvidia") {
						t.Errorf("%s: it started", dst)
					}
				} else {
					t.Logf("%s: %s", dst, strings.TrimSpace(r.Error))
				}
			})
		}
		simhost.Same(t, "the files", before, simhost.Files(t, volume))
	})
}

func TestT63AHostileDriverRootIsNotFollowed(t *testing.T) {
	h := newHost(t, simhost.Options{})
	lib := filepath.Join(h.Driver.Root, h.Driver.Layout.LibDir())
	bin := filepath.Join(h.Driver.Root, h.Driver.Layout.BinDir())
	v := h.Driver.Version
	swap := func(name, target string) {
		t.Helper()
		if err := os.Remove(filepath.Join(lib, name)); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(lib, name)); err != nil {
			t.Fatal(err)
		}
	}
	swap("libnvidia-cfg.so."+v, "/etc/shadow")
	swap("libnvidia-nvvm.so."+v, "../../../../../../../../etc/shadow")
	for name, mode := range map[string]os.FileMode{filepath.Join(bin, "nvidia-debugdump"): 0o755 | os.ModeSetuid, filepath.Join(lib, "libnvidia-opencl.so."+v): 0o666} {
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(filepath.Join(lib, "libnvidia-allocator.so."+v), 1000, 1000); err != nil {
		t.Fatal(err)
	}
	dir := h.Tree(t, "glibc-hwcaps")
	h.unharmed(t, func() {
		out := h.MustRun(t, testenv.RunOptions{RootfsDir: dir, Env: []string{one, everything}, Args: []string{"/bin/busybox", "sh", "-c", look + "; ls -lL " + simhost.Lib + " /usr/local/nvidia/bin; nvidia-smi -L"}})
		h.noHostDirectory(t, out)
		simhost.Want(t, out, "libcuda.so."+v, h.Driver.GPUs[0].UUID)
		_, list, _ := strings.Cut(out, "done\n")
		for _, name := range []string{"libnvidia-cfg", "libnvidia-nvvm", "nvidia-debugdump", "libnvidia-opencl", "libnvidia-allocator"} {
			if strings.Contains(list, name+" ") || strings.Contains(list, name+".so") || strings.Contains(list, name+"\n") {
				t.Errorf("%s was given to the container:\n%s", name, list)
			}
		}
		if regexp.MustCompile(`(?m)^-..s|^-.....s|^-.......w`).MatchString(list) {
			t.Errorf("a file that raises privileges or that anyone can write:\n%s", list)
		}
	})
}
