package attacks

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// The image layouts of T01 to T14. remove names what the layout replaces.
func TestAHostileImageReachesNothingOfTheHost(t *testing.T) {
	h := newHost(t, simhost.Options{})
	lib := simhost.Multiarch[1:]
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
		{name: "T11 a hostile ELF file as libcuda", must: "start", files: []images.File{{Path: compat, Mode: 0o644, Data: hostileELF()}}},
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
			dir := h.Tree(t, "glibc-hwcaps")
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
				r := h.Run(t, testenv.RunOptions{RootfsDir: dir, Env: []string{one, everything}, Args: []string{"/bin/busybox", "sh", "-c", look}})
				if took := time.Since(start); took > 20*time.Second {
					t.Errorf("that took %v", took)
				}
				if clean(t, r) {
					h.noHostDirectory(t, r.Output)
				} else if a.must == "start" {
					t.Errorf("it did not start: %s", r.Error)
				} else {
					t.Logf("refused: %s", strings.TrimSpace(r.Error))
				}
			})
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("T13 the mount wins over what the image has there", func(t *testing.T) {
		dir := h.Tree(t, "glibc-hwcaps", images.FromHost("usr/local/nvidia/lib64/libcuda.so.1", 0o755, "/bin/busybox"))
		id := h.Start(t, testenv.RunOptions{RootfsDir: dir, Env: []string{one}})
		simhost.Want(t, h.Sh(t, id, "/test/dlopen -s cuDriverGetVersion libcuda.so.1"), driverValue)
	})
}

// hostileELF is a header whose tables are everywhere but in the file.
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
