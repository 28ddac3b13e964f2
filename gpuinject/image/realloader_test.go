package image

import (
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
)

func TestTheRealLoaderFindsTheDriver(t *testing.T) {
	stub := func(t *testing.T, dir string) {
		library(t, dir+"/usr/local/cuda/lib64/stubs/libcuda.so.1", "libcuda.so.1", "stub")
		write(t, dir+"/etc/ld.so.conf", "/usr/local/cuda/lib64/stubs\n")
	}
	for _, test := range []struct {
		name string
		make func(t *testing.T, dir string)
	}{
		{"in an image without a cache", func(t *testing.T, dir string) {}},
		{"in an image with a corrupt cache", func(t *testing.T, dir string) { write(t, dir+"/etc/ld.so.cache", "x") }},
		{"in an image without /etc", func(t *testing.T, dir string) { os.Remove(dir + "/etc") }},
		{"before a stub in the image's cache", func(t *testing.T, dir string) { stub(t, dir); ldconfig(t, "-r", dir) }},
		{"before a stub in a cache of both formats", func(t *testing.T, dir string) { stub(t, dir); ldconfig(t, "-r", dir, "-c", "compat") }},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := writeImage(t)
			test.make(t, dir)
			dirs, libs := driver(t, dir)
			img, _ := apply(t, dir, "580.95.05", dirs, libs)
			if img.LibC != GLibC || img.LibDir != hostLib {
				t.Errorf("found %q in %q", img.LibC, img.LibDir)
			}
			got := load(t, dir, "libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libc.so.6")
			if want := "driver libcuda\ndriver libcuda\ndriver libnvidia-ml\nnobody\n"; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func TestTheRealLoaderTakesForwardCompatibilityFirst(t *testing.T) {
	dir := writeImage(t)
	dirs, libs := driver(t, dir)
	compat := compatImage(t, dir)
	compatLibrary(t, compat+"/libcuda.so.590.44.01", goodNote)
	symlink(t, "libcuda.so.590.44.01", compat+"/libcuda.so.1")
	ldconfig(t, "-r", dir)
	before := read(t, dir+"/etc/ld.so.cache")

	apply(t, dir, "580.95.05", dirs, libs)
	ask := func() string { return load(t, dir, "libcuda.so.1", "libnvidia-ml.so.1") }
	if got, want := ask(), "compat\ndriver libnvidia-ml\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	c := readCache(t, dir)
	if got, want := paths(c, "libcuda.so.1"), []string{"/usr/local/cuda-13.1/compat/libcuda.so.1", driverDir + "/libcuda.so.1"}; !slices.Equal(got, want) {
		t.Errorf("listed %q, want %q", got, want)
	}
	if got, want := paths(c, "libcuda.so"), []string{"/usr/local/nvidia/lib64/libcuda.so"}; !slices.Equal(got, want) {
		t.Errorf("listed %q, want %q", got, want)
	}
	ldconfig(t, "-r", dir)
	if got, want := ask(), "compat\ndriver libnvidia-ml\n"; got != want {
		t.Errorf("after ldconfig: got %q, want %q", got, want)
	}

	// The same file system starts again under a newer driver: nothing of the first
	// run is left.
	write(t, dir+"/etc/ld.so.cache", before)
	apply(t, dir, "580.95.05", dirs, libs)
	apply(t, dir, "595.10.01", dirs, libs)
	if got, want := ask(), "driver libcuda\ndriver libnvidia-ml\n"; got != want {
		t.Errorf("under a newer driver: got %q, want %q", got, want)
	}
	c = readCache(t, dir)
	if got, want := paths(c, "libcuda.so.1"), []string{"/usr/local/nvidia/lib64/libcuda.so.1"}; !slices.Equal(got, want) {
		t.Errorf("listed %q, want %q", got, want)
	}
	if conf := read(t, dir+confEntryPath); strings.Contains(conf, "compat") {
		t.Errorf("the configuration still names it: %q", conf)
	}
}

func TestLibrariesForSomeProcessorsKeepWorkingAndCannotHideTheDriver(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("SKIPPED: glibc has glibc-hwcaps directories that every machine can use for x86-64 only")
	}
	for _, format := range []string{"new", "compat"} {
		t.Run("cache format "+format, func(t *testing.T) {
			dir := writeImage(t)
			dirs, libs := driver(t, dir)
			v2 := dir + hostLib + "/glibc-hwcaps/x86-64-v2"
			library(t, dir+hostLib+"/libother.so.1", "libother.so.1", "plain")
			library(t, v2+"/libother.so.1", "libother.so.1", "v2")
			library(t, v2+"/libcuda.so.1", "libcuda.so.1", "v2 of the image")
			library(t, dir+hostLib+"/glibc-hwcaps/x86-64-v3/libunused.so.1", "libunused.so.1", "v3")
			ldconfig(t, "-r", dir, "-c", format)
			ask := func() string { return load(t, dir, "libother.so.1", "libcuda.so.1") }
			before := ask()
			if format == "new" && before != "v2\nv2 of the image\n" {
				t.Fatalf("the premise is wrong on this machine: %q", before)
			}
			cache := readCache(t, dir)
			if want := []string{"x86-64-v2", "x86-64-v3"}; !slices.Equal(cache.HWCaps, want) {
				t.Errorf("hwcaps %q, want %q", cache.HWCaps, want)
			}
			apply(t, dir, "580.95.05", dirs, libs)
			// In a cache of both formats glibc 2.36 does not find the names of the
			// directories; in ours it does.
			if got, want := ask(), "v2\ndriver libcuda\n"; got != want {
				t.Errorf("got %q, want %q (before: %q)", got, want, before)
			}
			out := ldconfig(t, "-p", "-C", dir+"/etc/ld.so.cache")
			if want := `libother.so.1 (libc6,x86-64, hwcap: "x86-64-v2")`; !strings.Contains(out, want) {
				t.Errorf("ldconfig -p does not print %s:\n%s", want, out)
			}
		})
	}
}

func TestALaterLdconfigKeepsTheDriver(t *testing.T) {
	for _, test := range []struct{ name, conf string }{
		{"without ld.so.conf", ""},
		{"with Debian's ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n"},
		{"with Red Hat's ld.so.conf", "include ld.so.conf.d/*.conf\n"},
		{"with an ld.so.conf of its own", "/usr/local/cuda/lib64/stubs\n"},
		{"with an ld.so.conf without its last line feed", "# nothing\n/usr/local/cuda/lib64/stubs"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := writeImage(t)
			dirs, libs := driver(t, dir)
			library(t, dir+"/usr/local/cuda/lib64/stubs/libcuda.so.1", "libcuda.so.1", "stub")
			write(t, dir+"/etc/ld.so.conf.d/zz-stubs.conf", "/usr/local/cuda/lib64/stubs\n")
			if test.conf != "" {
				write(t, dir+"/etc/ld.so.conf", test.conf)
				ldconfig(t, "-r", dir)
			}
			_, notes := apply(t, dir, "580.95.05", dirs, libs)
			if test.conf == "" && (len(notes) != 1 || !strings.Contains(notes[0], "no /etc/ld.so.cache")) {
				t.Errorf("notes %q", notes)
			}
			if strings.HasPrefix(test.conf, "include") && read(t, dir+confPath) != test.conf {
				t.Errorf("a configuration that reads the entry became %q", read(t, dir+confPath))
			}
			ldconfig(t, "-r", dir)
			got := load(t, dir, "libcuda.so.1", "libnvidia-ml.so.1")
			if want := "driver libcuda\ndriver libnvidia-ml\n"; got != want {
				t.Errorf("got %q, want %q\n%s", got, want, ldconfig(t, "-p", "-C", dir+"/etc/ld.so.cache"))
			}
		})
	}
}
