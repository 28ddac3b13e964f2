package image

import (
	"debug/elf"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

func TestTheCLibraryIsFoundByWhatItIs(t *testing.T) {
	a := ldcache.ABI64
	glibc, musl := library(a, "libc.so.6"), library(a, "libc.musl-"+a.Arch+".so.1")
	other := testtree.Library(elf.ELFCLASS64, elf.EM_SPARCV9, "libc.so.6")
	muslName := "/lib/ld-musl-" + a.Arch + ".so.1"
	type files map[string]string
	for _, test := range []struct {
		name  string
		files files
		links files
		libc  string
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
		{"Alpine with musl under glibc's name", files{muslName: musl}, files{"/lib/libc.so.6": filepath.Base(muslName), a.Loader: muslName}, Musl, "/lib"},
		{"Alpine with a glibc in a corner", files{muslName: musl, "/usr/glibc-compat/lib/libc.so.6": glibc, "/usr/glibc-compat/lib/ld.so": glibc},
			files{a.Loader: "/usr/glibc-compat/lib/ld.so"}, Musl, "/lib"},
		{"Debian with a package of musl", files{hostLib + "/libc.so.6": glibc, muslName: musl}, nil, GLibC, hostLib},
		{"glibc in a corner, found by its loader", files{"/opt/glibc/libc.so.6": glibc, "/opt/glibc/ld.so": glibc}, files{a.Loader: "/opt/glibc/ld.so"}, GLibC, "/opt/glibc"},
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
	glibc, narrow := library(ldcache.ABI64, "libc.so.6"), library(ldcache.ABI32, "libc.so.6")
	for _, test := range []struct{ name, dir64, dir32 string }{
		{"Debian", hostLib, "/usr" + libDirs(ldcache.ABI32, "32")[0]},
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

func TestAnOddLoaderFileIsReplacedOrLeft(t *testing.T) {
	for _, test := range []struct {
		name, place, note string
		make              func(file string)
	}{
		{"cache a FIFO", CachePath, "is replaced by one with the driver's libraries only", func(file string) { fifo(t, file) }},
		{"cache a loop", CachePath, "is replaced by one with the driver's libraries only", func(file string) { symlink(t, "ld.so.cache", file) }},
		{"cache garbage", CachePath, "is replaced by one with the driver's libraries only", func(file string) { write(t, file, strings.Repeat("\xff\x00", 5000)) }},
		{"cache empty", CachePath, "is replaced by one with the driver's libraries only", func(file string) { write(t, file, "") }},
		{"conf a terabyte", confPath, "is left as it is", func(file string) { sparse(t, file, 1<<40) }},
		{"conf a directory", confPath, "is left as it is", func(file string) { mkdir(t, file) }},
		{"etc a FIFO", "/etc", "", func(file string) { fifo(t, file) }},
	} {
		dir := glibcImage(t, nil)
		test.make(dir + test.place)
		root := openRoot(t, dir)
		start := testtree.ProcessorTime(t)
		files, notes := root.LoaderFiles(root.Inspect("580.95.05"), []string{driverDir}, []ldcache.Entry{lib("libcuda.so.1")})
		if took := testtree.ProcessorTime(t) - start; took > 500*time.Millisecond || !strings.Contains(strings.Join(notes, "\n"), test.note) {
			t.Errorf("%s: notes %q after %v", test.name, notes, took)
		}
		for _, f := range files {
			if can, err := root.CanWriteFile(f.Path), root.WriteFile(f.Path, f.Data); (can == nil) != (err == nil) || (err == nil) != (test.place != "/etc") {
				t.Errorf("%s: %s: planned %v, written %v", test.name, f.Path, can, err)
			}
		}
		if test.place == "/etc" {
			continue
		}
		if got := paths(readCache(t, dir), "libcuda.so.1"); len(got) != 1 {
			t.Errorf("%s: the cache lists %q", test.name, got)
		}
	}
}

// With fewer descriptors than a look-up needs, what an image has must not count as absent.
func TestAReadWithoutDescriptorsIsAnError(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, libDirs(ldcache.ABI64, "64")[0], "libc.so.6"), library(ldcache.ABI64, "libc.so.6"))
	write(t, filepath.Join(dir, CachePath), "")
	r := openRoot(t, dir)
	if img := r.Inspect("580.1.1"); img.LibC != GLibC || r.Err() != nil {
		t.Fatalf("%+v, %v", img, r.Err())
	}
	// In a shim's own order: a first look-up may succeed and the next one fail.
	for spare := range uint64(2) {
		r := openRoot(t, dir)
		testtree.LimitDescriptors(t, spare, func() {
			r.Inspect("580.1.1")
			r.LoaderFiles(Image{LibC: GLibC}, []string{driverDir}, nil)
		})
		if !errors.Is(r.Err(), unix.EMFILE) {
			t.Errorf("with %d descriptors: %v", spare, r.Err())
		}
	}
}
