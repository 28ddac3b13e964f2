package integration

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// atkCreates is how many containers are made against each racing flipper (T15,
// T16). A campaign sets it to 500.
const atkCreates = 15

// atkMarker is a file of the host's canary directory that no container may see.
const atkMarker = "canary-of-the-host"

// atkHost is a host with a directory that attacks aim at.
type atkHost struct {
	*host
	canary string
}

func newAtkHost(t *testing.T, o hostOptions) *atkHost {
	t.Helper()
	h := &atkHost{host: newHost(t, o)}
	h.canary = filepath.Join(h.Dir, "canary")
	if err := os.Mkdir(h.canary, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := images.Populate(h.canary, []images.File{
		images.Text(atkMarker, 0o644, "secret of the host"),
		images.Text("sub/file", 0o600, "another"),
		images.FromHost("libatk.so.1.0", 0o755, "/bin/busybox"),
	}); err != nil {
		t.Fatal(err)
	}
	return h
}

// aim puts the canary's path, without its first slash, in place of CANARY.
func (h *atkHost) aim(files []images.File) []images.File {
	files = slices.Clone(files)
	replace := func(s string) string { return strings.ReplaceAll(s, "CANARY", strings.TrimPrefix(h.canary, "/")) }
	for i := range files {
		files[i].Target = replace(files[i].Target)
		files[i].Data = []byte(replace(string(files[i].Data)))
	}
	return files
}

// atkState is what an attack must not change.
func (h *atkHost) atkState(t testing.TB) []string {
	t.Helper()
	var lines []string
	for _, line := range rtTree(t, h.canary) {
		lines = append(lines, "canary: "+line)
	}
	for _, name := range []string{"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/swappiness", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/passwd"} {
		data, err := os.ReadFile(name)
		lines = append(lines, fmt.Sprintf("%s: %q %v", name, data, err))
	}
	s := h.Snapshot(t)
	for _, section := range []string{"mounts", "containerd's mounts", "dev", "cgroups", "processes"} {
		for _, line := range s.Section(section) {
			// Views are made and stay.
			if !strings.HasPrefix(line, h.Driver.StateDir+"/") {
				lines = append(lines, section+": "+line)
			}
		}
	}
	return lines
}

// unharmed runs an attack and fails the test if the host is not as before.
func (h *atkHost) unharmed(t *testing.T, attack func()) {
	t.Helper()
	before := h.atkState(t)
	attack()
	// Shims end a moment after containerd has answered.
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		after := h.atkState(t)
		if slices.Equal(before, after) {
			break
		}
		if time.Now().After(deadline) {
			rtSame(t, before, after)
			break
		}
	}
	if strings.Contains(h.Log(), "panic") {
		t.Error("something panicked")
	}
}

// atkLook prints the mount table and every file by the canary's name.
const atkLook = "cat /proc/self/mountinfo; find / -name " + atkMarker + " -not -path '/proc/*' 2>/dev/null; echo done"

type atkMount struct{ dev, root, point, kind, source string }

func atkParse(mountinfo string) []atkMount {
	var mounts []atkMount
	for line := range strings.Lines(mountinfo) {
		f := strings.Fields(line)
		dash := slices.Index(f, "-")
		if len(f) < 10 || dash < 6 || len(f) < dash+3 {
			continue
		}
		mounts = append(mounts, atkMount{f[2], f[3], f[4], f[dash+1], f[dash+2]})
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
	best := atkMount{}
	for _, m := range atkParse(string(data)) {
		if (name == m.point || strings.HasPrefix(name, strings.TrimSuffix(m.point, "/")+"/")) && len(m.point) >= len(best.point) {
			best = m
		}
	}
	return filepath.Join(best.root, strings.TrimPrefix(name, best.point))
}

// noHostDirectory fails the test if a mount of a container shows anything of the
// host but driver files, its own root, and the volumes that it was given.
func (h *atkHost) noHostDirectory(t testing.TB, out string, volumes ...string) {
	t.Helper()
	if strings.Contains(out, "/"+atkMarker) {
		t.Errorf("the container sees the canary:\n%s", out)
	}
	devices := map[string]bool{}
	for _, m := range atkParse(h.MountTable(t)) {
		devices[m.dev] = true
	}
	driver := onDisk(t, h.Driver.Root)
	for i := range volumes {
		volumes[i] = onDisk(t, volumes[i])
	}
	cache := onDisk(t, h.State)
	mounts := atkParse(out)
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

// atkClean fails the test unless a container ran, or was refused in one line.
func atkClean(t testing.TB, r testenv.Result) (ran bool) {
	t.Helper()
	if r.ExitCode == 0 {
		return true
	}
	if text := strings.TrimSpace(r.Stderr); !strings.HasPrefix(text, "ctr: ") || strings.Count(text, "\n") > 1 || strings.Contains(text, "panic") {
		t.Errorf("no clean failure: exit status %d, %q", r.ExitCode, r.Stderr)
	}
	return false
}

const atkAll = "NVIDIA_DRIVER_CAPABILITIES=all"

// The image layouts of T01 to T14. remove names what the layout replaces.
func TestAHostileImageReachesNothingOfTheHost(t *testing.T) {
	h := newAtkHost(t, hostOptions{})
	lib := lnMultiarch()[1:]
	far := "../../../../../../../../../../CANARY"
	cache := func(edit func([]byte)) images.File {
		data := make([]byte, 48+24*4+64)
		copy(data, "glibc-ld.so.cache1.1")
		binary.LittleEndian.PutUint32(data[20:], 4)
		binary.LittleEndian.PutUint32(data[24:], 64)
		data[28] = 2
		edit(data)
		return images.File{Path: "etc/ld.so.cache", Mode: 0o644, Data: data}
	}
	compat := "usr/local/cuda/compat/libcuda.so.610.43.02"
	type attack struct {
		name   string
		remove []string
		files  []images.File
		must   string // "start" where the container has no excuse for failing
	}
	attacks := []attack{
		{name: "T01 two-step mount source, CVE-2024-0132", must: "start", files: []images.File{
			images.Text(lib+"/libdxcore.so.1337/libdxcore.so.1337.hostfs", 0o644, "x"),
			images.Symlink("pwn/libdxcore.so.1337/libdxcore.so.1337.hostfs", "../../../../../../../../../"),
			images.Symlink("usr/local/cuda/compat/libxxx.so.1", "/pwn/libdxcore.so.1337"),
			images.Symlink("usr/local/cuda/compat/libxxx.so.2", "/"+lib+"/libdxcore.so.1337/libdxcore.so.1337.hostfs"),
		}},
		{name: "T02 the same by libcuda.so.9999.0, CVE-2025-23359", must: "start", files: []images.File{
			images.Text(lib+"/d/f", 0o644, "x"), images.Symlink("pwn/f", "../../../../../../"),
			images.Symlink("usr/local/cuda/compat/libcuda.so.9999.0", "/pwn"),
			images.Symlink("usr/local/cuda/compat/libcuda.so.1", "/"+lib+"/d/f"),
		}},
		{name: "T02 the directory itself a link out", must: "start", files: []images.File{images.Symlink("usr/local/cuda/compat", far)}},
		{name: "T02 the directory a magic link", must: "start", files: []images.File{images.Symlink("usr/local/cuda", "/proc/1/root/CANARY")}},
		{name: "T03 firmware directory", must: "start", files: []images.File{images.Symlink("usr/lib/firmware/nvidia/"+h.Driver.Version, "/"+far)}},
		{name: "T06 etc a magic link", remove: []string{"etc"}, files: []images.File{images.Symlink("etc", "/proc/1/root/CANARY")}},
		{name: "T06 etc a link out", remove: []string{"etc"}, files: []images.File{images.Symlink("etc", far)}},
		{name: "T06 etc an absolute link", remove: []string{"etc"}, files: []images.File{images.Symlink("etc", "/CANARY")}},
		{name: "T06 ld.so.conf.d a link out", remove: []string{"etc/ld.so.conf.d"}, must: "start", files: []images.File{images.Symlink("etc/ld.so.conf.d", far)}},
		{name: "T07 ld.so.conf names the host, CVE-2025-23267", remove: []string{"etc/ld.so.conf"}, must: "start", files: []images.File{images.Text("etc/ld.so.conf", 0o644, "/proc/1/root/CANARY\n"+far+"\n")}},
		{name: "T10 a cache of a terabyte", remove: []string{"etc/ld.so.cache"}, must: "start", files: []images.File{images.Sparse("etc/ld.so.cache", 1<<40)}},
		{name: "T10 a configuration of a terabyte", remove: []string{"etc/ld.so.conf"}, must: "start", files: []images.File{images.Sparse("etc/ld.so.conf", 1<<40), images.Sparse("etc/ld.so.conf.d/000-nvidia-shim.conf", 1<<40)}},
		{name: "T10 a libcuda of a terabyte", must: "start", files: []images.File{images.Sparse(compat, 1<<40)}},
		{name: "T10 a libc of a terabyte", remove: []string{lib + "/libc.so.6"}, must: "start", files: []images.File{images.Sparse(lib+"/libc.so.6", 1<<40)}},
		{name: "T10 two billion libraries", remove: []string{"etc/ld.so.cache"}, must: "start", files: []images.File{cache(func(b []byte) { binary.LittleEndian.PutUint32(b[20:], 1<<31) })}},
		{name: "T10 strings without an end", remove: []string{"etc/ld.so.cache"}, must: "start", files: []images.File{cache(func(b []byte) {
			for i := 48 + 24*4; i < len(b); i++ {
				b[i] = 'a'
			}
		})}},
		{name: "T10 offsets beyond the end", remove: []string{"etc/ld.so.cache"}, must: "start", files: []images.File{cache(func(b []byte) {
			for i := 48; i < 48+24*4; i++ {
				b[i] = 0xff
			}
		})}},
		{name: "T10 links in a circle", remove: []string{"etc/ld.so.cache", lib + "/libc.so.6"}, must: "start", files: []images.File{
			images.Symlink("etc/ld.so.cache", "ld.so.cache2"), images.Symlink("etc/ld.so.cache2", "ld.so.cache"),
			images.Symlink(lib+"/libc.so.6", "libc.so.6"), images.Symlink("usr/local/cuda", "cuda"),
		}},
		{name: "T11 a hostile ELF file as libcuda", must: "start", files: []images.File{{Path: compat, Mode: 0o644, Data: atkELF()}}},
	}
	for how, target := range map[string]string{"absolute": "/CANARY", "relative": far, "magic": "/proc/1/root/CANARY"} {
		attacks = append(attacks,
			attack{name: "T04 the library directory a link, " + how, remove: []string{lib}, files: []images.File{images.Symlink(lib, target)}},
			attack{name: "T05 libcuda.so.1 a link to a new file, " + how, files: []images.File{images.Symlink(lib+"/libcuda.so.1", target+"/created")}},
			attack{name: "T05 nvidia-smi a link to a new file, " + how, files: []images.File{images.Symlink("usr/bin/nvidia-smi", target+"/created")}},
			attack{name: "T05 gbm a link out, " + how, files: []images.File{images.Symlink(lib+"/gbm", target)}},
			attack{name: "T13 the driver's place a link, " + how, files: []images.File{images.Symlink("usr/local/nvidia", target)}},
			attack{name: "T14 run and tmp are links, " + how, remove: []string{"run", "tmp"}, files: []images.File{
				images.Symlink("run", target), images.Symlink("var/run", target), images.Symlink("tmp", target)}},
		)
	}
	for what, f := range map[string]images.File{"a FIFO": images.FIFO(""), "a character device": images.Char("", 0o666, 1, 11), "a directory": images.Dir("", 0o755)} {
		at := func(path string) images.File { g := f; g.Path = path; return g }
		attacks = append(attacks,
			attack{name: "T05 libcuda.so.1 " + what, files: []images.File{at(lib + "/libcuda.so.1")}},
			attack{name: "T05 nvidia-smi " + what, files: []images.File{at("usr/bin/nvidia-smi")}})
	}
	for how, target := range map[string]string{"absolute": "/proc/sys/vm/swappiness", "relative": "../proc/sys/vm/swappiness", "magic": "/proc/1/root/proc/sys/vm/swappiness"} {
		attacks = append(attacks, attack{name: "T08 the linker's files are links to a sysctl, " + how, must: "start",
			remove: []string{"etc/ld.so.cache", "etc/ld.so.conf"}, files: []images.File{
				images.Symlink("etc/ld.so.cache", target), images.Symlink("etc/ld.so.conf", target),
				images.Symlink("etc/ld.so.conf.d/000-nvidia-shim.conf", strings.Replace(target, "..", "../..", 1)),
			}})
	}
	for what, f := range map[string]images.File{
		"the watchdog": images.Char("", 0o666, 10, 130), "kmsg": images.Char("", 0o666, 1, 11), "a block device": images.Block("", 0o666, 7, 250), "a FIFO": images.FIFO(""),
	} {
		var files []images.File
		for _, path := range []string{"etc/ld.so.cache", "etc/ld.so.conf", "etc/ld.so.conf.d/000-nvidia-shim.conf", lib + "/libc.so.6", compat, "usr/local/cuda/compat/libcuda.so.1"} {
			f.Path = path
			files = append(files, f)
		}
		attacks = append(attacks, attack{name: "T09 every file that is read is " + what, must: "start", remove: []string{"etc/ld.so.cache", "etc/ld.so.conf", lib + "/libc.so.6"}, files: files})
	}
	for _, dir := range []string{"proc", "sys", "dev"} {
		attacks = append(attacks,
			attack{name: "T12 " + dir + " a link out", remove: []string{dir}, files: []images.File{images.Symlink(dir, far)}},
			attack{name: "T12 " + dir + " an absolute link", remove: []string{dir}, files: []images.File{images.Symlink(dir, "/CANARY")}},
			attack{name: "T12 " + dir + " a file", remove: []string{dir}, files: []images.File{images.Text(dir, 0o644, "x")}})
	}
	attacks = append(attacks,
		attack{name: "T13 the driver's place a file", files: []images.File{images.Text("usr/local/nvidia", 0o644, "x")}},
		attack{name: "T13 the driver's place full of libraries", must: "start", files: []images.File{
			images.FromHost("usr/local/nvidia/lib64/libcuda.so.1", 0o755, "/bin/busybox"), images.Text("usr/local/nvidia/bin/nvidia-smi", 0o755, "#!/bin/sh\necho hostile\n")}},
	)
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			dir := h.lnTree(t, "glibc-hwcaps")
			for _, name := range a.remove {
				if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			if err := images.Populate(dir, h.aim(a.files)); err != nil {
				t.Fatal(err)
			}
			h.unharmed(t, func() {
				start := time.Now()
				r := h.Run(t, testenv.RunOptions{RootfsDir: dir, Env: []string{lnOne, atkAll}, Args: []string{"/bin/busybox", "sh", "-c", atkLook}})
				if took := time.Since(start); took > 20*time.Second {
					t.Errorf("that took %v", took)
				}
				if atkClean(t, r) {
					h.noHostDirectory(t, r.Stdout)
				} else if a.must == "start" {
					t.Errorf("it did not start: %s", r.Stderr)
				} else {
					t.Logf("refused: %s", strings.TrimSpace(r.Stderr))
				}
			})
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("T13 the mount wins over what the image has there", func(t *testing.T) {
		dir := h.lnTree(t, "glibc-hwcaps", images.FromHost("usr/local/nvidia/lib64/libcuda.so.1", 0o755, "/bin/busybox"))
		id := h.lnStart(t, testenv.RunOptions{RootfsDir: dir})
		lnWant(t, h.lnSh(t, id, "/test/dlopen -s cuDriverGetVersion libcuda.so.1"), lnDriverValue)
	})
}

// atkELF is a header whose tables are everywhere but in the file.
func atkELF() []byte {
	data := make([]byte, 4096)
	copy(data, "\x7fELF\x02\x01\x01")
	binary.LittleEndian.PutUint16(data[16:], 3)
	binary.LittleEndian.PutUint16(data[18:], 62)
	binary.LittleEndian.PutUint64(data[32:], ^uint64(0)-8)
	binary.LittleEndian.PutUint64(data[40:], ^uint64(0)-64)
	for _, at := range []int{54, 56, 58, 60, 62} {
		binary.LittleEndian.PutUint16(data[at:], 0xffff)
	}
	return data
}

// atkFlip exchanges two names until stop is called: another container with the
// same volume (CVE-2026-24260).
func atkFlip(t testing.TB, a, b string) (stop func()) {
	t.Helper()
	var done atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; !done.Load(); n++ {
			if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EBUSY) {
				t.Errorf("exchange: %v", err)
				return
			}
			if n%64 == 0 { // two processors for everybody
				time.Sleep(100 * time.Microsecond)
			}
		}
	})
	return func() { done.Store(true); wg.Wait() }
}

// T15, T16.
func TestNamesThatAreExchangedWhileContainersAreMadeNeverLeadOut(t *testing.T) {
	h := newAtkHost(t, hostOptions{})
	lib := lnMultiarch()
	for _, test := range []struct {
		name, mount, flip string // flip is below the volume, or the root without one
		target            string
	}{
		{"T15 gbm in a volume at the library directory", lib, "gbm", "../../../../../../CANARY"},
		{"T15 a directory of the driver's data in a volume", "/usr/share", "glvnd", "/proc/1/root/CANARY"},
		{"T16 the compatibility directory in a volume", "/usr/local/cuda", "compat", "../../../../../../CANARY"},
		{"T15 etc in a shared root", "", "etc", "../../../../../../CANARY"},
		{"T15 the driver's place in a shared root", "", "usr/local/nvidia", "/CANARY"},
		{"T15 the library directory in a shared root", "", lib[1:], "../../../../../../CANARY"},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := h.lnTree(t, "glibc-hwcaps")
			o := testenv.RunOptions{RootfsDir: root, Env: []string{lnOne, atkAll}, Args: []string{"/bin/busybox", "sh", "-c", atkLook}}
			top := root
			var volumes []string
			if test.mount != "" {
				top = filepath.Join(h.Dir, h.NewID())
				if err := os.Mkdir(top, 0o755); err != nil {
					t.Fatal(err)
				}
				o.Mounts = []string{"type=bind,src=" + top + ",dst=" + test.mount + ",options=rbind:rw"}
				volumes = append(volumes, top)
			}
			files := []images.File{images.Symlink(test.flip+".link", test.target)}
			if _, err := os.Stat(filepath.Join(top, test.flip)); err != nil {
				files = append(files, images.Dir(test.flip, 0o755))
			}
			if err := images.Populate(top, h.aim(files)); err != nil {
				t.Fatal(err)
			}
			h.unharmed(t, func() {
				stop := atkFlip(t, filepath.Join(top, test.flip), filepath.Join(top, test.flip+".link"))
				started := 0
				for range atkCreates {
					if r := h.Run(t, o); atkClean(t, r) {
						started++
						h.noHostDirectory(t, r.Stdout, slices.Clone(volumes)...)
					}
				}
				stop()
				t.Logf("%d of %d started", started, atkCreates)
			})
		})
	}
}

// atkProgram compiles C.
func atkProgram(t testing.TB, h *atkHost, name, source string, flags ...string) string {
	t.Helper()
	file := filepath.Join(h.Dir, name)
	if err := os.WriteFile(file+".c", []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", append(flags, "-o", file, file+".c")...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v: %s", err, out)
	}
	return file
}

// runcWrapper makes runc a script that writes its environment and descriptors down,
// and returns the flags for ctr.
func (h *atkHost) runcWrapper(t testing.TB) (flags []string, log string) {
	t.Helper()
	log = filepath.Join(h.Dir, "runc.log")
	script := filepath.Join(h.Dir, "runc-wrapper")
	config := filepath.Join(h.Dir, "runtime.toml")
	text := fmt.Sprintf("#!/bin/sh\n{ tr '\\0' '\\n' </proc/$$/environ | sed 's/^/env /'; for f in /proc/$$/fd/*; do echo \"fd ${f##*/} $(readlink $f)\"; done; } >>%s\nexec %s \"$@\"\n", log, filepath.Join(h.Options.ToolsDir, "runc"))
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, []byte("BinaryName = \""+script+"\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--runtime-config-path", config}, log
}

// T19, T20, T23: CVE-2025-23266, CVE-2024-0135, CVE-2024-0136, CVE-2024-0137.
func TestNothingOfAnImageIsExecutedOnTheHost(t *testing.T) {
	h := newAtkHost(t, hostOptions{})
	wrote := filepath.Join(h.canary, "executed")
	evil := atkProgram(t, h, "evil.so", fmt.Sprintf("#include <fcntl.h>\n__attribute__((constructor)) static void go(void) { creat(%q, 0644); creat(\"/executed\", 0644); }\n", wrote), "-shared", "-fPIC")
	poison := atkProgram(t, h, "poison", fmt.Sprintf("#include <fcntl.h>\nint main(void) { creat(%q, 0644); creat(\"/executed\", 0644); return 0; }\n", wrote), "-static")
	lib := lnMultiarch()[1:]
	flags, log := h.runcWrapper(t)
	hostile := []string{
		"LD_PRELOAD=/proc/self/cwd/evil.so", "LD_AUDIT=/proc/self/cwd/evil.so", "LD_LIBRARY_PATH=/proc/self/cwd", "GLIBC_TUNABLES=glibc.malloc.check=3",
		"GCONV_PATH=/proc/self/cwd", "TMPDIR=/proc/self/cwd", "PATH=/evil:/usr/bin:/bin", "GODEBUG=http2debug=2", "GOTRACEBACK=crash",
		"SSL_CERT_FILE=/evil", "NVIDIA_CTK_CONFIG_FILE_PATH=/evil", "NVIDIA_SHIM_CONFIG=/evil.toml", "NOTIFY_SOCKET=/evil", "_LIBCONTAINER_INITPIPE=7",
	}
	dir := h.lnTree(t, "glibc-hwcaps", images.FromHost("evil.so", 0o755, evil), images.Text("evil.toml", 0o644, "[host]\nstate-dir = \"/\"\n"))
	for _, name := range []string{"usr/sbin/ldconfig", "usr/sbin/ldconfig.real", lib + "/ld-linux-x86-64.so.2", "usr/bin/nvidia-smi", "usr/bin/nvidia-modprobe", "usr/bin/modprobe", "evil/runc", "evil/nvidia-shimctl", "evil/ldconfig"} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if err := images.Populate(dir, []images.File{images.FromHost(name, 0o755, poison)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := images.Populate(dir, []images.File{images.Text("etc/ld.so.preload", 0o644, "/evil.so\n")}); err != nil {
		t.Fatal(err)
	}
	h.unharmed(t, func() {
		// Static: nothing of the container itself loads evil.so either.
		r := h.Run(t, testenv.RunOptions{RootfsDir: dir, Env: append([]string{lnOne, atkAll}, hostile...), Args: []string{"/bin/busybox", "sh", "-c", atkLook + "; ls -l /proc/self/fd"}, Extra: flags})
		if r.ExitCode != 0 {
			t.Fatalf("%d: %s", r.ExitCode, r.Stderr)
		}
		h.noHostDirectory(t, r.Stdout)
		// T23, in the container: standard streams, and the directory that ls reads.
		_, fds, _ := strings.Cut(r.Stdout, "done\n")
		var numbers []string
		for _, m := range regexp.MustCompile(`(?m)\s(\d+)(?: -> .*)?$`).FindAllStringSubmatch(fds, -1) {
			numbers = append(numbers, m[1])
		}
		if got := strings.Join(numbers, " "); got != "0 0 1 2 3" { // the first is ls's total
			t.Errorf("descriptors in the container: %s\n%s", got, fds)
		}
	})
	if _, err := os.Lstat(filepath.Join(dir, "executed")); err == nil {
		t.Error("a program of the image was executed")
	}
	data, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), "env PATH=") || !strings.Contains(string(data), "fd 0 ") {
		t.Fatalf("runc was not called through the script:\n%s", data)
	}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if value, ok := strings.CutPrefix(line, "env "); ok {
			for _, v := range hostile {
				if value == v {
					t.Errorf("runc has the container's %s", v)
				}
			}
			for _, name := range []string{"LD_PRELOAD", "LD_AUDIT", "GCONV", "GLIBC", "GOTRACE", "NVIDIA_VISIBLE", "NVIDIA_DRIVER", "NOTIFY", "SSL_", "_LIBCONTAINER"} {
				if strings.HasPrefix(value, name) {
					t.Errorf("runc's environment has %s", value)
				}
			}
			continue
		}
		f := strings.Fields(line)
		if len(f) < 3 || f[0] != "fd" {
			continue
		}
		// T23, in runc: nothing that leads to a root, the driver, or the state.
		if info, err := os.Stat(f[2]); err == nil && info.IsDir() || strings.HasPrefix(f[2], dir) || strings.HasPrefix(f[2], h.Driver.Dir) {
			t.Errorf("runc has descriptor %s of %s", f[1], f[2])
		}
	}
}

// spec is the specification that ctr would make, for a test to change.
func (h *atkHost) spec(t testing.TB, o testenv.RunOptions) map[string]any {
	t.Helper()
	file := filepath.Join(h.Dir, "dump.json")
	script := o.Args
	o.Args = []string{"/bin/busybox", "true"}
	o.Runtime = testenv.StockRuntime
	o.Extra = append(o.Extra, "--dump-config", file)
	h.MustRun(t, o)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	var spec map[string]any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&spec); err != nil {
		t.Fatal(err)
	}
	if script != nil {
		spec["process"].(map[string]any)["args"] = script
	}
	return spec
}

// runSpec runs a specification and removes the container.
func (h *atkHost) runSpec(t testing.TB, spec map[string]any) testenv.Result {
	t.Helper()
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(h.Dir, "spec.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	id := h.NewID()
	spec["linux"].(map[string]any)["cgroupsPath"] = "/" + h.ID + "/" + id
	stdout, stderr, err := h.CtrErr("run", "--rm", "--fifo-dir", filepath.Join(h.Dir, "fifo"), "--runtime", testenv.DefaultRuntime, "--config", file, id)
	h.lnRemove(t, id)
	r := testenv.Result{ID: id, Stdout: stdout, Stderr: stderr}
	if err != nil {
		r.ExitCode = 1
	}
	return r
}

// T21, T22.
func TestHooksOfNVIDIAsStackAreRemovedAndOthersKeptInOrder(t *testing.T) {
	h := newAtkHost(t, hostOptions{})
	dir := h.lnTree(t, "glibc-hwcaps")
	log := filepath.Join(h.Dir, "hooks.log")
	hook := func(base, word string) map[string]any {
		file := filepath.Join(h.Dir, base)
		if err := os.WriteFile(file, []byte("#!/bin/sh\necho "+word+" >>"+log+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return map[string]any{"path": file, "args": []any{base, word}, "env": []any{"PATH=/usr/bin:/bin", "KEPT=" + word}}
	}
	spec := h.spec(t, testenv.RunOptions{RootfsDir: dir, Env: []string{lnOne}, Args: []string{"/test/dlopen", "-s", "cuDriverGetVersion", "libcuda.so.1"}})
	spec["hooks"] = map[string]any{
		"prestart":        []any{hook("first", "1"), hook("nvidia-container-runtime-hook", "NVIDIA"), hook("second", "2")},
		"createRuntime":   []any{hook("nvidia-container-toolkit", "NVIDIA"), hook("third", "3"), hook("fourth", "4")},
		"createContainer": []any{hook("nvidia-cdi-hook", "NVIDIA"), hook("nvidia-ctk", "NVIDIA")},
		"poststop":        []any{hook("fifth", "5")},
	}
	h.unharmed(t, func() {
		r := h.runSpec(t, spec)
		if r.ExitCode != 0 {
			t.Fatal(r.Stderr)
		}
		lnWant(t, r.Stdout, lnDriverValue)
	})
	data, err := os.ReadFile(log)
	if err != nil || string(data) != "1\n2\n3\n4\n5\n" {
		t.Errorf("hooks that ran: %q, %v", data, err)
	}
	t.Run("or the container is refused", func(t *testing.T) {
		h := newAtkHost(t, hostOptions{config: "[policy]\nforeign-hooks = \"refuse\"\n"})
		spec["root"].(map[string]any)["path"] = dir
		r := h.runSpec(t, spec)
		if r.ExitCode == 0 || !strings.Contains(r.Stderr, "foreign-hooks") || !strings.Contains(r.Stderr, "nvidia-container") {
			t.Errorf("%d %s", r.ExitCode, r.Stderr)
		}
	})
	if again, _ := os.ReadFile(log); string(again) != string(data) {
		t.Errorf("hooks that ran: %q", again)
	}
}

func TestNamespacesAndVolumesDoNotCarryTheDriverElsewhere(t *testing.T) {
	h := newAtkHost(t, hostOptions{})
	dir := h.lnTree(t, "glibc-hwcaps")
	run := testenv.RunOptions{RootfsDir: dir, Env: []string{lnOne}, Args: []string{"/bin/busybox", "sh", "-c", atkLook + "; cat /proc/driver/params"}}
	t.Run("T24 a working directory that is a descriptor", func(t *testing.T) {
		h.unharmed(t, func() {
			for fd := 3; fd <= 32; fd++ {
				o := run
				o.Extra = []string{"--cwd", fmt.Sprintf("/proc/self/fd/%d", fd)}
				o.Args = []string{"/bin/busybox", "sh", "-c", "pwd; ls; ls ../.. ../../.."}
				if r := h.Run(t, o); r.ExitCode == 0 || strings.Contains(r.Stdout, "canary") {
					t.Errorf("descriptor %d: %s", fd, r.Stdout)
				} else {
					atkClean(t, r)
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
			id := h.lnStart(t, testenv.RunOptions{RootfsDir: dir})
			pid := regexp.MustCompile(`(?m)^` + id + `\s+(\d+)`).FindStringSubmatch(h.Ctr(t, "tasks", "ls"))
			spec["linux"].(map[string]any)["namespaces"] = append(without(spec, "mount"), map[string]any{"type": "mount", "path": "/proc/" + pid[1] + "/ns/mnt"})
		},
	} {
		t.Run("T26 a mount namespace that is "+name+" is refused", func(t *testing.T) {
			spec := h.spec(t, run)
			change(spec)
			h.unharmed(t, func() {
				r := h.runSpec(t, spec)
				if r.ExitCode == 0 || !strings.Contains(r.Stderr, "no mount namespace of its own") {
					t.Errorf("%d %s", r.ExitCode, r.Stderr)
				}
			})
		})
	}
	t.Run("T27 the host's process namespace", func(t *testing.T) {
		spec := h.spec(t, run)
		spec["linux"].(map[string]any)["namespaces"] = without(spec, "pid")
		h.unharmed(t, func() {
			r := h.runSpec(t, spec)
			if r.ExitCode != 0 {
				t.Fatal(r.Stderr)
			}
			h.noHostDirectory(t, r.Stdout)
			lnWant(t, r.Stdout, "ModifyDeviceFiles: 0")
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
			r := h.Run(t, o)
			if r.ExitCode != 0 {
				t.Fatal(r.Stderr)
			}
			h.noHostDirectory(t, r.Stdout, shared)
			id := h.lnStart(t, o)
			during := h.MountTable(t)
			h.lnRemove(t, id)
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
		before := rtTree(t, volume)
		for _, dst := range []string{"/proc", "/proc/driver", "/proc/driver/nvidia", "/dev", "/dev/nvidiactl", fmt.Sprintf("/dev/nvidia%d", h.Driver.GPUs[0].Minor)} {
			o := run
			o.Mounts = []string{"type=bind,src=" + volume + ",dst=" + dst + ",options=rbind:rw"}
			h.unharmed(t, func() {
				r := h.Run(t, o)
				if atkClean(t, r) {
					// At a node the container's own volume wins, and it has no GPU there.
					h.noHostDirectory(t, r.Stdout, volume)
					if !strings.HasPrefix(dst, "/dev/nvidia") {
						t.Errorf("%s: it started", dst)
					}
				} else {
					t.Logf("%s: %s", dst, strings.TrimSpace(r.Stderr))
				}
			})
		}
		rtSame(t, before, rtTree(t, volume))
	})
}

// T63.
func TestAHostileDriverRootIsNotFollowed(t *testing.T) {
	h := newAtkHost(t, hostOptions{})
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
	dir := h.lnTree(t, "glibc-hwcaps")
	h.unharmed(t, func() {
		r := h.Run(t, testenv.RunOptions{RootfsDir: dir, Env: []string{lnOne, atkAll}, Args: []string{"/bin/busybox", "sh", "-c", atkLook + "; ls -lL " + lnLib + " /usr/local/nvidia/bin; nvidia-smi -L"}})
		if r.ExitCode != 0 {
			t.Fatal(r.Stderr)
		}
		h.noHostDirectory(t, r.Stdout)
		lnWant(t, r.Stdout, "libcuda.so."+v, h.Driver.GPUs[0].UUID)
		_, list, _ := strings.Cut(r.Stdout, "done\n")
		for _, name := range []string{"libnvidia-cfg", "libnvidia-nvvm", "nvidia-debugdump", "libnvidia-opencl", "libnvidia-allocator"} {
			if strings.Contains(list, name+" ") || strings.Contains(list, name+".so") || strings.Contains(list, name+"\n") {
				t.Errorf("%s was given to the container:\n%s", name, list)
			}
		}
		if regexp.MustCompile(`(?m)^-..s|^-.....s|^-.......w`).MatchString(list) {
			t.Errorf("a file that raises privileges or that everybody writes:\n%s", list)
		}
	})
}

// T64.
func TestAnUpgradeDuringCreatesGivesOneVersionOrARefusal(t *testing.T) {
	h := newAtkHost(t, hostOptions{})
	image := h.image(t, "glibc-hwcaps")
	was, other := h.Driver.Version, "590.44.01"
	values := map[string]string{"13000": was, "13010": other}
	var done atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 5 {
			for _, version := range []string{other, was} {
				if err := h.Driver.Upgrade(version); err != nil {
					t.Error(err)
				}
			}
		}
		done.Store(true)
	})
	names := regexp.MustCompile(`\.so\.(\d{3}\.\d+\.\d+)`)
	value := regexp.MustCompile(`cuDriverGetVersion=(\d+)`)
	var started, refused int
	for last := false; !last; {
		last = done.Load() // one more when it is over
		r := h.Run(t, testenv.RunOptions{Image: image, Env: []string{lnOne}, Args: []string{"/bin/sh", "-c", "/test/dlopen -s cuDriverGetVersion libcuda.so.1; ls " + lnLib + "; ls -l " + lnLib + " >/dev/null"}})
		if !atkClean(t, r) {
			if refused++; last {
				t.Errorf("after the upgrades: %s", r.Stderr)
			}
			t.Logf("refused: %s", strings.TrimSpace(r.Stderr))
			continue
		}
		started++
		versions := map[string]bool{}
		for _, m := range names.FindAllStringSubmatch(r.Stdout, -1) {
			versions[m[1]] = true
		}
		m := value.FindStringSubmatch(r.Stdout)
		if len(versions) != 1 || m == nil || !versions[values[m[1]]] {
			t.Errorf("not of one version: %v:\n%s", versions, r.Stdout)
		}
	}
	wg.Wait()
	t.Logf("%d started, %d refused", started, refused)
}

// T67, invariant I1.
func TestTheShimExecutesRuncAndNothingElse(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Fatal("strace is missing: install Debian's strace (integration/tools/apt.sh)")
	}
	trace := filepath.Join(t.TempDir(), "trace")
	h := newHost(t, hostOptions{testenv: testenv.Options{Wrapper: []string{strace, "-D", "-f", "-qq", "-s", "256", "-e", "trace=execve,execveat", "-e", "signal=none", "-o", trace}}})
	image := h.image(t, "glibc-hwcaps")
	h.MustRun(t, testenv.RunOptions{Image: image, Env: []string{lnOne, atkAll}, Args: []string{"/usr/bin/true"}})
	h.MustRun(t, testenv.RunOptions{Image: image, Env: []string{lnOne}, ReadOnly: true, Args: []string{"/usr/bin/true"}})
	if r := h.Run(t, testenv.RunOptions{Image: image, Env: []string{"NVIDIA_VISIBLE_DEVICES=99"}, Args: []string{"/usr/bin/true"}}); r.ExitCode == 0 {
		t.Error("GPU 99 was given")
	}
	h.Stop(t)
	data, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	shim := filepath.Join(h.Options.ShimDir, "containerd-shim-nvidia-v2")
	runc := filepath.Join(h.Options.ToolsDir, "runc")
	allowed := map[string]bool{shim: true, runc: true, filepath.Join(h.Options.ToolsDir, "containerd"): true, "/usr/bin/true": true}
	call := regexp.MustCompile(`execve(?:at)?\((?:\d+, )?"([^"]*)", \["?([^"\],]*)`)
	count := map[string]int{}
	for line := range strings.Lines(string(data)) {
		m := call.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		count[m[1]]++
		self := m[1] == "" || strings.HasPrefix(m[1], "/proc/self/") || strings.HasPrefix(m[1], "/proc/thread-self/")
		switch {
		case allowed[m[1]]:
		case self && filepath.Base(m[2]) == "runc": // runc init, from a sealed copy
		case strings.Contains(line, "ENOENT") && strings.HasSuffix(m[1], "/containerd-shim-nvidia-v2"):
		case strings.HasPrefix(m[1], h.Options.ToolsDir+"/"):
			t.Errorf("a tool was executed: %s", line)
		default:
			t.Errorf("executed: %s", line)
		}
	}
	if count[runc] < 4 || count[shim] < 3 || count["/usr/bin/true"] < 2 {
		t.Errorf("the trace is not of three containers: %v", count)
	}
	t.Logf("%v", count)
}
