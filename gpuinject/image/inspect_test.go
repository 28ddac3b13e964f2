package image

import (
	"debug/elf"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/elffile"
)

func TestTheCLibraryIsFoundByWhatItIs(t *testing.T) {
	a := abi64
	glibc, musl := library(a, "libc.so.6"), library(a, "libc.musl-"+a.musl+".so.1")
	other := string(elffile.Library(elf.ELFCLASS64, elf.EM_SPARCV9, "libc.so.6"))
	muslName := "/lib/ld-musl-" + a.musl + ".so.1"
	type files map[string]string
	for _, test := range []struct {
		name  string
		files files
		links files
		libc  LibC
		dir   string
	}{
		{"an empty image", nil, nil, "", ""},
		{"Debian", files{hostLib + "/libc.so.6": glibc}, files{"/lib": "usr/lib"}, GLibC, hostLib},
		{"Debian before the merge of /usr", files{"/lib/" + filepath.Base(hostLib) + "/libc.so.6": glibc}, nil, GLibC, "/lib/" + filepath.Base(hostLib)},
		{"Red Hat", files{"/usr/lib64/libc.so.6": glibc}, files{"/lib64": "usr/lib64"}, GLibC, "/usr/lib64"},
		{"Red Hat's libc under Debian's release file", files{"/usr/lib64/libc.so.6": glibc, "/etc/debian_version": "12"}, files{"/lib64": "usr/lib64"}, GLibC, "/usr/lib64"},
		{"Arch", files{"/usr/lib/libc.so.6": glibc}, files{"/lib": "usr/lib", "/lib64": "usr/lib", "/usr/lib64": "lib"}, GLibC, "/usr/lib"},
		{"libc as a link to its version", files{hostLib + "/libc-2.31.so": glibc}, files{hostLib + "/libc.so.6": "libc-2.31.so"}, GLibC, hostLib},
		{"Alpine", files{muslName: musl}, nil, Musl, "/lib"},
		{"Alpine with a merged /usr", files{"/usr" + muslName: musl}, files{"/lib": "usr/lib"}, Musl, "/usr/lib"},
		{"Alpine with musl under glibc's name", files{muslName: musl}, files{"/lib/libc.so.6": filepath.Base(muslName), a.loader: muslName}, Musl, "/lib"},
		{"Alpine with a glibc in a corner", files{muslName: musl, "/usr/glibc-compat/lib/libc.so.6": glibc, "/usr/glibc-compat/lib/ld.so": glibc},
			files{a.loader: "/usr/glibc-compat/lib/ld.so"}, Musl, "/lib"},
		{"Debian with a package of musl", files{hostLib + "/libc.so.6": glibc, muslName: musl}, nil, GLibC, hostLib},
		{"glibc in a corner, found by its loader", files{"/opt/glibc/libc.so.6": glibc, "/opt/glibc/ld.so": glibc}, files{a.loader: "/opt/glibc/ld.so"}, GLibC, "/opt/glibc"},
		{"libc of another machine", files{"/usr/lib64/libc.so.6": other}, nil, "", ""},
		{"text in place of libc", files{"/usr/lib64/libc.so.6": "GROUP ( libc.so.6 )", muslName: "x"}, nil, "", ""},
		{"a link to the host's libc", nil, files{"/lib64/libc.so.6": "/proc/1/root/lib64/libc.so.6", "/usr/lib": "../../../../../../usr/lib"}, "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, target := range test.links {
				symlink(t, target, dir+name)
			}
			for name, text := range test.files {
				write(t, dir+name, text)
			}
			img := openRoot(t, dir).Inspect("580.95.05")
			if img.LibC != test.libc || img.LibDir != test.dir || img.LibDir32 != "" {
				t.Errorf("got %+v", img)
			}
		})
	}
}

func TestThe32BitCLibraryIsFoundBesidesTheOther(t *testing.T) {
	glibc, narrow := library(abi64, "libc.so.6"), library(abi32, "libc.so.6")
	for _, test := range []struct{ name, dir64, dir32 string }{
		{"Debian", hostLib, "/usr" + abi32.dirs[0]},
		{"Red Hat", "/usr/lib64", "/usr/lib"},
		{"programs of 32 bits only", "", "/usr/lib"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			if test.dir64 != "" {
				write(t, dir+test.dir64+"/libc.so.6", glibc)
			}
			write(t, dir+test.dir32+"/libc.so.6", narrow)
			img := openRoot(t, dir).Inspect("")
			if img.LibC != GLibC || img.LibDir != test.dir64 || img.LibDir32 != test.dir32 {
				t.Errorf("got %+v", img)
			}
		})
	}
}

func TestAnOddFileInTheImageNeitherBlocksNorFailsTheContainer(t *testing.T) {
	glibc := library(abi64, "libc.so.6")
	for _, kind := range []struct {
		name string
		make func(t *testing.T, file string)
	}{
		{"a FIFO", func(t *testing.T, file string) { fifo(t, file) }},
		{"a symlink to itself", func(t *testing.T, file string) { symlink(t, filepath.Base(file), file) }},
		{"a symlink to the host", func(t *testing.T, file string) { symlink(t, "/proc/1/root/etc/hostname", file) }},
		{"a symlink out of the root", func(t *testing.T, file string) { symlink(t, "../../../../../../etc/hostname", file) }},
		{"a terabyte", func(t *testing.T, file string) { sparse(t, file, 1<<40) }},
		{"a device", func(t *testing.T, file string) {
			mkdir(t, filepath.Dir(file))
			check(t, unix.Mknod(file, unix.S_IFCHR|0o644, int(unix.Mkdev(10, 130))))
		}},
		{"a directory", func(t *testing.T, file string) { mkdir(t, file) }},
		{"garbage", func(t *testing.T, file string) { write(t, file, strings.Repeat("\xff\x00", 5000)) }},
		{"empty", func(t *testing.T, file string) { write(t, file, "") }},
	} {
		for _, place := range []string{CachePath, confEntryPath, confPath, "/etc/ld.so.conf.d", "/etc"} {
			t.Run(strings.TrimPrefix(place, "/")+" is "+kind.name, func(t *testing.T) {
				dir := t.TempDir()
				write(t, dir+"/usr/lib64/libc.so.6", glibc)
				kind.make(t, dir+place)
				root := openRoot(t, dir)
				start := time.Now()
				files, _ := root.LoaderFiles(root.Inspect("580.95.05"), []string{driverDir}, []ldcache.Entry{lib("libcuda.so.1")})
				if d := time.Since(start); d > 500*time.Millisecond {
					t.Errorf("took %v", d)
				}
				for _, f := range files {
					if root.CanWriteFile(f.Path) == nil {
						check(t, root.WriteFile(f.Path, f.Data))
					}
				}
				if root.CanWriteFile(CachePath) == nil {
					if got := paths(readCache(t, dir), "libcuda.so.1"); len(got) != 1 {
						t.Errorf("the cache lists %q", got)
					}
				}
			})
		}
	}
}
