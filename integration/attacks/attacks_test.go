package attacks

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

func TestMain(m *testing.M) { simhost.Main(m) }

// marker is a file of the host's canary directory that no container may see.
const marker = "canary-of-the-host"

// host is a host with a directory that attacks aim at.
type host struct {
	*simhost.Host
	canary string
}

func newHost(t *testing.T, o simhost.Options) *host {
	t.Helper()
	h := &host{Host: simhost.New(t, o)}
	h.canary = filepath.Join(h.Dir, "canary")
	if err := os.Mkdir(h.canary, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := images.Populate(h.canary, []images.File{
		images.Text(marker, 0o644, "secret of the host"),
		images.Text("sub/file", 0o600, "another"),
		images.FromHost("libatk.so.1.0", 0o755, "/bin/busybox"),
	}); err != nil {
		t.Fatal(err)
	}
	return h
}

// aim puts the canary's path, without its first slash, in place of CANARY.
func (h *host) aim(files []images.File) []images.File {
	files = slices.Clone(files)
	replace := func(s string) string { return strings.ReplaceAll(s, "CANARY", strings.TrimPrefix(h.canary, "/")) }
	for i := range files {
		files[i].Target = replace(files[i].Target)
		files[i].Data = []byte(replace(string(files[i].Data)))
	}
	return files
}

// files are those of the machine that attacks aim at.
func (h *host) files(t testing.TB) []string {
	t.Helper()
	lines := simhost.Files(t, h.canary)
	for _, name := range []string{"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/swappiness", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/passwd"} {
		data, err := os.ReadFile(name)
		lines = append(lines, fmt.Sprintf("%s: %q %v", name, data, err))
	}
	return lines
}

// unharmed runs an attack and fails the test if the machine is not as before.
func (h *host) unharmed(t *testing.T, attack func()) {
	t.Helper()
	files, before := h.files(t), h.Snapshot(t)
	attack()
	before.AssertUnchanged(t, h.Driver.StateDir) // views are made and stay
	simhost.Same(t, "files of the machine", files, h.files(t))
	if strings.Contains(h.Log(), "panic") {
		t.Error("something panicked")
	}
}

// look prints the mount table and every file by the canary's name.
const look = "cat /proc/self/mountinfo; find / -name " + marker + " -not -path '/proc/*' 2>/dev/null; echo done"

type mount struct{ dev, root, point, kind, source string }

func parseMounts(mountinfo string) []mount {
	var mounts []mount
	for line := range strings.Lines(mountinfo) {
		f := strings.Fields(line)
		dash := slices.Index(f, "-")
		if len(f) < 10 || dash < 6 || len(f) < dash+3 {
			continue
		}
		mounts = append(mounts, mount{f[2], f[3], f[4], f[dash+1], f[dash+2]})
	}
	return mounts
}

// onDisk is a host path as mountinfo's field 4 has it: relative to its file system.
func onDisk(t testing.TB, name string) string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	best := mount{}
	for _, m := range parseMounts(string(data)) {
		if (name == m.point || strings.HasPrefix(name, strings.TrimSuffix(m.point, "/")+"/")) && len(m.point) >= len(best.point) {
			best = m
		}
	}
	return filepath.Join(best.root, strings.TrimPrefix(name, best.point))
}

// noHostDirectory fails the test if a mount of a container shows anything of the
// host but driver files, its own root, and the volumes that it was given.
func (h *host) noHostDirectory(t testing.TB, out string, volumes ...string) {
	t.Helper()
	if strings.Contains(out, "/"+marker) {
		t.Errorf("the container sees the canary:\n%s", out)
	}
	devices := map[string]bool{}
	for _, m := range parseMounts(h.MountTable(t)) {
		devices[m.dev] = true
	}
	driver := onDisk(t, h.Driver.Root)
	for i := range volumes {
		volumes[i] = onDisk(t, volumes[i])
	}
	cache := onDisk(t, h.State)
	mounts := parseMounts(out)
	if len(mounts) < 5 {
		t.Fatalf("no mount table:\n%s", out)
	}
	for _, m := range mounts {
		switch {
		case !devices[m.dev]: // the container's own
		case slices.Contains([]string{"sysfs", "proc", "mqueue", "cgroup", "cgroup2", "devpts"}, m.kind):
		case m.point == "/":
		case m.kind == "tmpfs" && m.source == "nvidia-shim" && m.root == "/":
		case strings.HasPrefix(m.root, driver+"/"):
			if info, err := os.Lstat(filepath.Join(h.Driver.Root, strings.TrimPrefix(m.root, driver))); err == nil && !info.Mode().IsRegular() {
				t.Errorf("a mount of %s at %s: %v", m.root, m.point, info.Mode())
			}
		// What the shim made in the bundle. Where /etc or /dev is a link at that moment,
		// runc follows it inside the root, so it may be at another place of the container.
		case strings.HasPrefix(m.root, cache+"/") && slices.Contains([]string{"ld.so.cache", "application-profile.conf", "dri-by-path"}, path.Base(m.root)):
		case slices.Contains(volumes, m.root):
		default:
			t.Errorf("the host's %s (%s) is mounted at %s", m.root, m.kind, m.point)
		}
	}
}

// clean fails the test unless a container ran, or was refused in one line.
func clean(t testing.TB, r testenv.Result) (ran bool) {
	t.Helper()
	if r.ExitCode == 0 {
		return true
	}
	if text := strings.TrimSpace(r.Error); !strings.HasPrefix(text, "ctr: ") || strings.Count(text, "\n") > 1 || strings.Contains(text, "panic") {
		t.Errorf("no clean failure: exit status %d, %q", r.ExitCode, r.Error)
	}
	return false
}

const (
	one         = "NVIDIA_VISIBLE_DEVICES=0"
	everything  = "NVIDIA_DRIVER_CAPABILITIES=all"
	driverValue = "cuDriverGetVersion=13000"
)

func TestNamespacesAndVolumesDoNotCarryTheDriverElsewhere(t *testing.T) {
	h := newHost(t, simhost.Options{})
	dir := h.Tree(t, "glibc-hwcaps")
	run := testenv.RunOptions{RootfsDir: dir, Env: []string{one}, Args: []string{"/bin/busybox", "sh", "-c", look + "; cat /proc/driver/params"}}
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
				if f := strings.Fields(line); !strings.Contains(before, " "+f[4]+" ") && !strings.HasPrefix(f[4], h.Driver.StateDir) {
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
					// At a node the container's own volume wins, and it has no GPU there.
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

// T63.
func TestAHostileDriverRootIsNotFollowed(t *testing.T) {
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
