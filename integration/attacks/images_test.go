package attacks

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// attack is the layout of a hostile image. CANARY in it stands for the canary's path.
type attack struct {
	name   string
	remove []string // what the layout replaces
	files  []images.File
	starts bool // the container must start
}

const (
	// far leads from anywhere in an image to the canary of the host.
	far = "../../../../../../../../../../CANARY"
	// compat is the place of a library for forward compatibility.
	compat = "usr/local/cuda/compat/libcuda.so.610.43.02"
)

// lib is the image's library directory.
var lib = simhost.Multiarch[1:]

// hostileImages are the attacks by the files of an image, T01 to T14.
func hostileImages(version string) []attack {
	return slices.Concat(sources(version), destinations(), parsers(), walks(), loaderFiles(), places())
}

// sources are the attacks on what is mounted: links in place of files that NVIDIA's stack reads.
func sources(version string) []attack {
	return []attack{
		{name: "T01 two-step mount source, CVE-2024-0132", starts: true, files: []images.File{
			images.Text(lib+"/libdxcore.so.1337/libdxcore.so.1337.hostfs", 0o644, "x"),
			images.Symlink("pwn/libdxcore.so.1337/libdxcore.so.1337.hostfs", "../../../../../../../../../"),
			images.Symlink("usr/local/cuda/compat/libxxx.so.1", "/pwn/libdxcore.so.1337"),
			images.Symlink("usr/local/cuda/compat/libxxx.so.2", "/"+lib+"/libdxcore.so.1337/libdxcore.so.1337.hostfs"),
		}},
		{name: "T02 the same by libcuda.so.9999.0, CVE-2025-23359", starts: true, files: []images.File{
			images.Text(lib+"/d/f", 0o644, "x"), images.Symlink("pwn/f", "../../../../../../"),
			images.Symlink("usr/local/cuda/compat/libcuda.so.9999.0", "/pwn"),
			images.Symlink("usr/local/cuda/compat/libcuda.so.1", "/"+lib+"/d/f"),
		}},
		{name: "T02 the directory itself a link out", starts: true, files: []images.File{images.Symlink("usr/local/cuda/compat", far)}},
		{name: "T02 the directory a magic link", starts: true, files: []images.File{images.Symlink("usr/local/cuda", "/proc/1/root/CANARY")}},
		{name: "T03 firmware directory", starts: true, files: []images.File{images.Symlink("usr/lib/firmware/nvidia/"+version, "/"+far)}},
	}
}

// destinations are the attacks on where something is mounted or written.
func destinations() []attack {
	attacks := []attack{
		{name: "T06 etc a link to the root", remove: []string{"etc"}, files: []images.File{images.Symlink("etc", "../../..")}},
		{name: "T06 ld.so.conf.d a link out", remove: []string{"etc/ld.so.conf.d"}, starts: true, files: []images.File{images.Symlink("etc/ld.so.conf.d", far)}},
		{name: "T07 ld.so.conf names the host, CVE-2025-23267", remove: []string{"etc/ld.so.conf"}, starts: true, files: []images.File{images.Text("etc/ld.so.conf", 0o644, "/proc/1/root/CANARY\n"+far+"\n")}},
	}
	for _, way := range []struct{ name, target string }{{"absolute", "/CANARY"}, {"relative", far}, {"magic", "/proc/1/root/CANARY"}} {
		link := func(name, path, target string) attack {
			return attack{name: name + ", " + way.name, remove: []string{path}, files: []images.File{images.Symlink(path, target)}}
		}
		attacks = append(attacks,
			link("T04 the library directory a link", lib, way.target),
			link("T05 libcuda.so.1 a link to a new file", lib+"/libcuda.so.1", way.target+"/created"),
			link("T05 nvidia-smi a link to a new file", "usr/bin/nvidia-smi", way.target+"/created"),
			link("T05 gbm a link out", lib+"/gbm", way.target),
			link("T06 etc a link", "etc", way.target),
			link("T13 the driver's place a link", "usr/local/nvidia", way.target),
			attack{name: "T14 run and tmp are links, " + way.name, remove: []string{"run", "tmp"}, files: []images.File{
				images.Symlink("run", way.target), images.Symlink("var/run", way.target), images.Symlink("tmp", way.target)}},
		)
	}
	for _, odd := range []struct {
		name string
		file images.File
	}{{"a FIFO", images.FIFO("")}, {"a character device", images.Char("", 0o666, 1, 11)}, {"a directory", images.Dir("", 0o755)}} {
		at := func(path string) []images.File { odd.file.Path = path; return []images.File{odd.file} }
		attacks = append(attacks,
			attack{name: "T05 libcuda.so.1 " + odd.name, files: at(lib + "/libcuda.so.1")},
			attack{name: "T05 nvidia-smi " + odd.name, files: at("usr/bin/nvidia-smi")})
	}
	return attacks
}

// cache is a loader's cache of four entries that edit damages.
func cache(edit func([]byte)) []images.File {
	data := make([]byte, 48+24*4+64)
	copy(data, "glibc-ld.so.cache1.1")
	binary.LittleEndian.PutUint32(data[20:], 4)
	binary.LittleEndian.PutUint32(data[24:], 64)
	data[28] = 2
	edit(data)
	return []images.File{{Path: "etc/ld.so.cache", Mode: 0o644, Data: data}}
}

// parsers are the attacks on what is parsed.
func parsers() []attack {
	theCache, conf := []string{"etc/ld.so.cache"}, "etc/ld.so.conf.d/000-nvidia-shim.conf"
	return []attack{
		{name: "T10 a cache of a terabyte", remove: theCache, starts: true, files: []images.File{images.Sparse("etc/ld.so.cache", 1<<40)}},
		{name: "T10 a cache of 16 MiB", remove: theCache, starts: true, files: []images.File{images.Sparse("etc/ld.so.cache", 16<<20)}},
		{name: "T10 a configuration of a terabyte", remove: []string{"etc/ld.so.conf"}, starts: true, files: []images.File{images.Sparse("etc/ld.so.conf", 1<<40), images.Sparse(conf, 1<<40)}},
		{name: "T10 a libcuda of a terabyte", starts: true, files: []images.File{images.Sparse(compat, 1<<40)}},
		{name: "T10 a libc of a terabyte", remove: []string{lib + "/libc.so.6"}, starts: true, files: []images.File{images.Sparse(lib+"/libc.so.6", 1<<40)}},
		{name: "T10 two billion libraries", remove: theCache, starts: true, files: cache(func(b []byte) { binary.LittleEndian.PutUint32(b[20:], 1<<31) })},
		{name: "T10 strings without an end", remove: theCache, starts: true, files: cache(func(b []byte) {
			for i := 48 + 24*4; i < len(b); i++ {
				b[i] = 'a'
			}
		})},
		{name: "T10 offsets beyond the end", remove: theCache, starts: true, files: cache(func(b []byte) {
			for i := 48; i < 48+24*4; i++ {
				b[i] = 0xff
			}
		})},
		{name: "T11 a hostile ELF file as libcuda", starts: true, files: []images.File{{Path: compat, Mode: 0o644, Data: hostileELF()}}},
	}
}

// hostileELF is a header whose tables lie outside the file.
func hostileELF() []byte {
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

// walks are the attacks on the time of the walk through the image.
func walks() []attack {
	circle := []images.File{
		images.Symlink("etc/ld.so.cache", "ld.so.cache2"), images.Symlink("etc/ld.so.cache2", "ld.so.cache"),
		images.Symlink(lib+"/libc.so.6", "libc.so.6"), images.Symlink("usr/local/cuda", "cuda"),
	}
	many := []images.File{images.Dir("usr/local/cuda/compat", 0o755)}
	for i := range 5000 {
		many = append(many, images.Symlink(fmt.Sprintf("usr/local/cuda/compat/libcuda.so.%d", i), fmt.Sprintf("libcuda.so.%d", i+1)))
	}
	return []attack{
		{name: "T10 links in a circle", remove: []string{"etc/ld.so.cache", lib + "/libc.so.6"}, starts: true, files: circle},
		{name: "T10 5,000 links in the compatibility directory", starts: true, files: many},
		// Each link adds its target to what is left to walk: 39 of them through 100 directories
		// were 23 seconds with a path that is looked up from the root for every component.
		{name: "T10 etc behind 39 links through 100 directories", remove: []string{"etc"}, files: chain("etc", 100, 39)},
		{name: "T10 etc behind 39 links through 400 directories", remove: []string{"etc"}, files: chain("etc", 400, 39)},
		{name: "T10 the compatibility directory behind such links", starts: true, files: chain("usr/local/cuda/compat", 100, 39)},
		{name: "T10 the library directory behind such links", remove: []string{lib}, files: chain(lib, 100, 39)},
	}
}

// chain is a link at name that leads through many links, each at the bottom of deep directories.
func chain(name string, depth, links int) []images.File {
	deep, down := strings.Repeat("x/", depth), strings.Repeat("y/", depth)
	files := []images.File{images.Dir(deep+down, 0o755), images.Symlink(name, "/"+deep+"l0")}
	for i := range links - 1 {
		files = append(files, images.Symlink(fmt.Sprintf("%sl%d", deep, i), fmt.Sprintf("/%sl%d/%s", deep, i+1, down)))
	}
	return append(files, images.Symlink(fmt.Sprintf("%sl%d", deep, links-1), "/"+deep))
}

// loaderFiles are the attacks by the type of the dynamic loader's files.
func loaderFiles() []attack {
	var attacks []attack
	for _, way := range []struct{ name, target string }{
		{"absolute", "/proc/sys/vm/swappiness"}, {"relative", "../proc/sys/vm/swappiness"}, {"magic", "/proc/1/root/proc/sys/vm/swappiness"},
	} {
		attacks = append(attacks, attack{name: "T08 the linker's files are links to a sysctl, " + way.name, starts: true,
			remove: []string{"etc/ld.so.cache", "etc/ld.so.conf"}, files: []images.File{
				images.Symlink("etc/ld.so.cache", way.target), images.Symlink("etc/ld.so.conf", way.target),
				images.Symlink("etc/ld.so.conf.d/000-nvidia-shim.conf", strings.Replace(way.target, "..", "../..", 1)),
			}})
	}
	for _, odd := range []struct {
		name string
		file images.File
	}{
		{"the watchdog", images.Char("", 0o666, 10, 130)}, {"kmsg", images.Char("", 0o666, 1, 11)},
		{"a block device", images.Block("", 0o666, 7, 250)}, {"a FIFO", images.FIFO("")}, {"a socket", images.File{Mode: unix.S_IFSOCK | 0o666}},
	} {
		var files []images.File
		for _, path := range []string{"etc/ld.so.cache", "etc/ld.so.conf", "etc/ld.so.conf.d/000-nvidia-shim.conf", lib + "/libc.so.6", compat, "usr/local/cuda/compat/libcuda.so.1"} {
			odd.file.Path = path
			files = append(files, odd.file)
		}
		attacks = append(attacks, attack{name: "T09 every file that is read is " + odd.name, starts: true, remove: []string{"etc/ld.so.cache", "etc/ld.so.conf", lib + "/libc.so.6"}, files: files})
	}
	return attacks
}

// places are the attacks by the directories that every container has.
func places() []attack {
	var attacks []attack
	for _, dir := range []string{"proc", "sys", "dev"} {
		attacks = append(attacks,
			attack{name: "T12 " + dir + " a link out", remove: []string{dir}, files: []images.File{images.Symlink(dir, far)}},
			attack{name: "T12 " + dir + " an absolute link", remove: []string{dir}, files: []images.File{images.Symlink(dir, "/CANARY")}},
			attack{name: "T12 " + dir + " a file", remove: []string{dir}, files: []images.File{images.Text(dir, 0o644, "x")}})
	}
	return append(attacks,
		attack{name: "T13 the driver's place a file", files: []images.File{images.Text("usr/local/nvidia", 0o644, "x")}},
		attack{name: "T13 the driver's place full of libraries", starts: true, files: []images.File{
			images.FromHost("usr/local/nvidia/lib64/libcuda.so.1", 0o755, "/bin/busybox"), images.Text("usr/local/nvidia/bin/nvidia-smi", 0o755, "#!/bin/sh\necho hostile\n")}},
	)
}

// image makes the image of an attack: an overlay of one tree, as containerd's images are.
func (h *host) image(t *testing.T, a attack) string {
	t.Helper()
	if h.tree == "" {
		h.tree = h.Tree(t, "glibc-hwcaps")
	}
	top := filepath.Join(h.Dir, h.NewID())
	dir := filepath.Join(top, "root")
	for _, name := range []string{"root", "upper", "work"} {
		if err := os.MkdirAll(filepath.Join(top, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("overlay", dir, "overlay", 0, "lowerdir="+h.tree+",upperdir="+top+"/upper,workdir="+top+"/work"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	for _, name := range a.remove {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := images.Populate(dir, h.aim(a.files)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestAHostileImageReachesNothingOfTheHost(t *testing.T) {
	h := newHost(t, simhost.Options{})
	for _, a := range hostileImages(h.Driver.Version) {
		t.Run(a.name, func(t *testing.T) {
			dir := h.image(t, a)
			r, ran := h.attempt(t, testenv.RunOptions{RootfsDir: dir, Env: []string{one, everything}, Args: []string{"/bin/busybox", "sh", "-c", look}})
			if !ran && a.starts {
				t.Errorf("it did not start: %s", r.Error)
			} else if !ran {
				t.Logf("refused: %s", strings.TrimSpace(r.Error))
			}
			// For the table of `make attacks`.
			stock := h.Host.Run(t, testenv.RunOptions{Runtime: testenv.StockRuntime, RootfsDir: h.image(t, a), Args: []string{"/bin/busybox", "true"}})
			t.Logf("stock shim: %s", map[bool]string{true: "started", false: "refused"}[stock.ExitCode == 0])
		})
	}
	t.Run("T02 the second path through a volume", func(t *testing.T) {
		volume := filepath.Join(h.Dir, "cuda")
		if err := os.Mkdir(volume, 0o755); err != nil {
			t.Fatal(err)
		}
		const library = "libcuda.so.610.43.02"
		if err := images.Populate(volume, h.aim([]images.File{
			images.Symlink("up", "../../../../../../"), images.Symlink("libcuda.so.1", library), images.Symlink(library, "/"+far), images.Dir("sub", 0o755),
		})); err != nil {
			t.Fatal(err)
		}
		for name, files := range map[string][]images.File{
			"/usr/local/cuda/compat": {images.Dir("usr/local/cuda/compat", 0o755)},
			"/volume":                {images.Symlink("usr/local/cuda/compat/libcuda.so.1", "/volume/sub"), images.Symlink("usr/local/cuda/compat/"+library, "../../../../volume/up")},
		} {
			mount := "type=bind,src=" + volume + ",dst=" + name + ",options=rbind:rw"
			r, ran := h.attempt(t, testenv.RunOptions{
				RootfsDir: h.Tree(t, "glibc-hwcaps", files...), Mounts: []string{mount}, Env: []string{one, everything}, Args: []string{"/bin/busybox", "sh", "-c", look},
			}, volume)
			if !ran {
				t.Errorf("%s: %s", name, r.Error)
			}
		}
	})
	t.Run("T10 many mounts behind a link through 235 directories", func(t *testing.T) {
		deep := strings.Repeat("x/", 235)
		o := testenv.RunOptions{
			RootfsDir: h.Tree(t, "glibc-hwcaps", images.Dir(deep, 0o755), images.Symlink("volumes", "/"+deep)),
			Env:       []string{one}, Args: []string{"/bin/busybox", "sh", "-c", look},
		}
		for i := range 200 {
			o.Mounts = append(o.Mounts, fmt.Sprintf("type=tmpfs,src=tmpfs,dst=/volumes/%d,options=rw", i))
		}
		if r, ran := h.attempt(t, o); ran || !strings.Contains(r.Error, "symbolic links") {
			t.Errorf("exit status %d, %s", r.ExitCode, r.Error)
		}
	})
	t.Run("T13 the mount wins over what the image has there", func(t *testing.T) {
		dir := h.Tree(t, "glibc-hwcaps", images.FromHost("usr/local/nvidia/lib64/libcuda.so.1", 0o755, "/bin/busybox"))
		id := h.Start(t, testenv.RunOptions{RootfsDir: dir, Env: []string{one}})
		simhost.Want(t, h.Sh(t, id, "/test/dlopen -s cuDriverGetVersion libcuda.so.1"), driverValue)
	})
}
