package ldcache

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// libcFixture builds a small libc.so.6 or musl loader.
func libcFixture(t testing.TB, soname string, args ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "libc")
	library(t, file, soname, "libc", args...)
	return read(t, file)
}

func TestTheCLibraryIsFoundByWhatItIs(t *testing.T) {
	a, _ := hostABIs()
	glibc, musl := libcFixture(t, "libc.so.6"), libcFixture(t, "libc.musl-"+a.musl+".so.1")
	foreign := []byte(glibc)
	le.PutUint16(foreign[18:], 2) // SPARC
	muslName := "/lib/ld-musl-" + a.musl + ".so.1"
	cacheOf := func(e Entry) string { return string((&Cache{Entries: []Entry{e}}).Encode()) }
	type files map[string]string
	for _, test := range []struct {
		name  string
		files files
		links files
		libc  LibC
		dir   string
	}{
		{"an empty image", nil, nil, "", ""},
		{"Debian", files{hostLib() + "/libc.so.6": glibc}, files{"/lib": "usr/lib"}, GLibC, hostLib()},
		{"Debian before the merge of /usr", files{"/lib/" + filepath.Base(hostLib()) + "/libc.so.6": glibc}, nil, GLibC, "/lib/" + filepath.Base(hostLib())},
		{"Red Hat", files{"/usr/lib64/libc.so.6": glibc}, files{"/lib64": "usr/lib64"}, GLibC, "/usr/lib64"},
		{"Red Hat's libc under Debian's release file", files{"/usr/lib64/libc.so.6": glibc, "/etc/debian_version": "12"}, files{"/lib64": "usr/lib64"}, GLibC, "/usr/lib64"},
		{"Arch", files{"/usr/lib/libc.so.6": glibc}, files{"/lib": "usr/lib", "/lib64": "usr/lib", "/usr/lib64": "lib"}, GLibC, "/usr/lib"},
		{"libc as a link to its version", files{hostLib() + "/libc-2.31.so": glibc}, files{hostLib() + "/libc.so.6": "libc-2.31.so"}, GLibC, hostLib()},
		{"Alpine", files{muslName: musl}, nil, Musl, "/lib"},
		{"Alpine with a merged /usr", files{"/usr" + muslName: musl}, files{"/lib": "usr/lib"}, Musl, "/usr/lib"},
		{"Alpine with musl under glibc's name", files{muslName: musl}, files{"/lib/libc.so.6": filepath.Base(muslName), a.loader: muslName}, Musl, "/lib"},
		{"Alpine with a glibc in a corner", files{muslName: musl, "/usr/glibc-compat/lib/libc.so.6": glibc, "/usr/glibc-compat/lib/ld.so": glibc},
			files{a.loader: "/usr/glibc-compat/lib/ld.so"}, Musl, "/lib"},
		{"Debian with a package of musl", files{hostLib() + "/libc.so.6": glibc, muslName: musl}, nil, GLibC, hostLib()},
		{"glibc in a corner, found by its loader", files{"/opt/glibc/libc.so.6": glibc, "/opt/glibc/ld.so": glibc}, files{a.loader: "/opt/glibc/ld.so"}, GLibC, "/opt/glibc"},
		{"glibc in a corner, found by the cache", files{"/opt/glibc/libc.so.6": glibc,
			"/etc/ld.so.cache": cacheOf(Entry{Name: "libc.so.6", Path: "/opt/glibc/libc.so.6", Flags: hostFlags()})}, nil, GLibC, "/opt/glibc"},
		{"libc of another machine", files{"/usr/lib64/libc.so.6": string(foreign)}, nil, "", ""},
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
			img, err := Inspect(openRoot(t, dir), "580.95.05")
			if err != nil || img.LibC != test.libc || img.LibDir != test.dir || img.LibDir32 != "" {
				t.Errorf("got %+v, %v", img, err)
			}
		})
	}
	if _, err := Inspect(nil, ""); err == nil {
		t.Error("no root, no error")
	}
}

func TestThe32BitCLibraryIsFoundBesidesTheOther(t *testing.T) {
	_, a32 := hostABIs()
	glibc := libcFixture(t, "libc.so.6")
	narrow := narrowLibc(t)
	for _, test := range []struct{ name, dir64, dir32 string }{
		{"Debian", hostLib(), "/usr" + a32.dirs[0]},
		{"Red Hat", "/usr/lib64", "/usr/lib"},
		{"programs of 32 bits only", "", "/usr/lib"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			if test.dir64 != "" {
				write(t, dir+test.dir64+"/libc.so.6", glibc)
			}
			write(t, dir+test.dir32+"/libc.so.6", narrow)
			img, err := Inspect(openRoot(t, dir), "")
			if err != nil || img.LibC != GLibC || img.LibDir != test.dir64 || img.LibDir32 != test.dir32 {
				t.Errorf("got %+v, %v", img, err)
			}
		})
	}
}

// narrowLibc is the least that passes for a 32-bit libc.so.6: an ELF header, a
// PT_LOAD and a PT_DYNAMIC.
func narrowLibc(t testing.TB) string {
	t.Helper()
	_, a32 := hostABIs()
	b := make([]byte, 52+2*32)
	copy(b, "\x7fELF\x01\x01\x01")
	le.PutUint16(b[16:], 3)
	le.PutUint16(b[18:], uint16(a32.machine))
	le.PutUint32(b[28:], 52)
	le.PutUint16(b[42:], 32)
	le.PutUint16(b[44:], 2)
	dyn := uint32(len(b))
	str := dyn + 4*8
	for _, v := range []uint32{5, str, 10, 11, 14, 1, 0, 0} { // STRTAB, STRSZ, SONAME, NULL
		b = le.AppendUint32(b, v)
	}
	b = append(b, "\x00libc.so.6\x00"...)
	for i, v := range []uint32{1, 0, 0, 0, uint32(len(b))} { // PT_LOAD
		le.PutUint32(b[52+4*i:], v)
	}
	for i, v := range []uint32{2, dyn, dyn, dyn, 4 * 8} { // PT_DYNAMIC
		le.PutUint32(b[84+4*i:], v)
	}
	e, err := parseELF(b)
	if err != nil || e.SOName != "libc.so.6" || !a32.is(e) {
		t.Fatalf("the fixture is wrong: %+v, %v", e, err)
	}
	return string(b)
}

func TestAnOddFileInTheImageNeitherBlocksNorFailsTheContainer(t *testing.T) {
	glibc := libcFixture(t, "libc.so.6")
	lib := []Library{{Name: "libcuda.so.1", Path: "/usr/local/nvidia/lib64/libcuda.so.1", Flags: hostFlags()}}
	type odd struct {
		name string
		make func(t *testing.T, file string)
	}
	kinds := []odd{
		{"a FIFO", func(t *testing.T, file string) { fifo(t, file) }},
		{"a symlink to itself", func(t *testing.T, file string) { symlink(t, filepath.Base(file), file) }},
		{"a symlink to the host", func(t *testing.T, file string) { symlink(t, "/proc/1/root/etc/hostname", file) }},
		{"a symlink out of the root", func(t *testing.T, file string) { symlink(t, "../../../../../../etc/hostname", file) }},
		{"a terabyte", func(t *testing.T, file string) { sparse(t, file, 1<<40) }},
		{"a device", func(t *testing.T, file string) {
			mkdir(t, filepath.Dir(file))
			if err := unix.Mknod(file, unix.S_IFCHR|0o644, int(unix.Mkdev(10, 130))); err != nil {
				t.Fatalf("this test needs root, for mknod: %v", err)
			}
		}},
		{"a directory", func(t *testing.T, file string) { mkdir(t, file) }},
		{"garbage", func(t *testing.T, file string) { write(t, file, strings.Repeat("\xff\x00", 5000)) }},
		{"empty", func(t *testing.T, file string) { write(t, file, "") }},
	}
	for _, place := range []string{cachePath, confDirPath, confPath, "/etc/ld.so.conf.d", "/etc"} {
		for _, kind := range kinds {
			t.Run(strings.TrimPrefix(place, "/")+" is "+kind.name, func(t *testing.T) {
				dir := t.TempDir()
				write(t, dir+"/usr/lib64/libc.so.6", glibc)
				kind.make(t, dir+place)
				root := openRoot(t, dir)
				start := time.Now()
				img, err := Inspect(root, "580.95.05")
				if err != nil {
					t.Fatal(err)
				}
				files, notes := img.Update(root, []string{"/usr/local/nvidia/lib64"}, lib)
				if d := time.Since(start); d > 500*time.Millisecond {
					t.Errorf("took %v", d)
				}
				writeFiles(t, root, files)
				for _, f := range files {
					if f.Path == cachePath {
						if got := paths(mustParse(t, f.Data), "libcuda.so.1"); len(got) != 1 {
							t.Errorf("the cache lists %q", got)
						}
						return
					}
				}
				if len(notes) == 0 {
					t.Error("no cache is written, and nobody is told")
				}
			})
		}
	}
}
