package image

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

// glibcImage is the least image with glibc and the given cache.
func glibcImage(t testing.TB, cache *ldcache.Cache) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir+"/usr/lib64/libc.so.6", library(ldcache.ABI64, "libc.so.6"))
	if cache != nil {
		write(t, dir+CachePath, string(cache.Encode()))
	}
	return dir
}

func TestEntriesOfAnEarlierDriverAreRemoved(t *testing.T) {
	dir := glibcImage(t, &ldcache.Cache{Entries: []ldcache.Entry{
		entry("libz.so.1", "/usr/lib64/libz.so.1"), entry("libm.so.6", "/usr/lib64/libm.so.6")}})
	dirs := []string{driverDir, "relative", "/a b"}
	apply(t, dir, "570.1.1", dirs, []ldcache.Entry{lib("libcuda.so.1"), lib("libnvidia-glcore.so.570.1.1"), lib("libgone.so.1")})
	apply(t, dir, "580.1.1", dirs, []ldcache.Entry{lib("libcuda.so.1"), lib("libnvidia-glcore.so.580.1.1")})
	c := readCache(t, dir)
	var got []string
	for _, e := range c.Entries {
		got = append(got, e.Path)
	}
	want := []string{"/usr/lib64/libz.so.1", driverDir + "/libnvidia-glcore.so.580.1.1", "/usr/lib64/libm.so.6", driverDir + "/libcuda.so.1"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}

	if got, want := read(t, dir+confEntryPath), string(ldcache.ConfEntry([]string{driverDir})); got != want {
		t.Errorf("entry %q, want %q", got, want)
	}
	if names, err := os.ReadDir(dir + "/etc/ld.so.conf.d"); err != nil || len(names) != 1 {
		t.Errorf("%d files in ld.so.conf.d, %v", len(names), err)
	}
}

func TestCompatLibrariesComeFirstUntilTheyAreNotUsed(t *testing.T) {
	const compat = "/usr/local/cuda-13.1/compat"
	root := openRoot(t, glibcImage(t, &ldcache.Cache{}))
	libs := []ldcache.Entry{lib("libcuda.so.1"), lib("libcuda.so")}
	img := Image{LibC: GLibC, Compat: Compat{Dir: compat, Use: true, Entries: []ldcache.Entry{entry("libcuda.so.1", compat+"/libcuda.so.1")}}}
	for _, want := range [][]string{{compat + "/libcuda.so.1", driverDir + "/libcuda.so.1"}, {driverDir + "/libcuda.so.1"}} {
		files, _ := root.LoaderFiles(img, []string{driverDir}, libs)
		for _, f := range files {
			check(t, root.WriteFile(f.Path, f.Data))
		}
		c := readCache(t, root.f.Name())
		if got := paths(c, "libcuda.so.1"); !slices.Equal(got, want) || len(paths(c, "libcuda.so")) != 1 {
			t.Errorf("listed %q, want %q", got, want)
		}
		if conf := read(t, root.f.Name()+confEntryPath); strings.Contains(conf, compat+"\n"+driverDir) != img.Compat.Use || !strings.Contains(conf, driverDir) {
			t.Errorf("used %v, the configuration is %q", img.Compat.Use, conf)
		}
		img.Compat.Use, img.Compat.Entries = false, nil // the same file system under a newer driver
	}
}

func TestALaterLdconfigReadsTheEntry(t *testing.T) {
	const ours = "include " + confEntryPath + "\n"
	for before, want := range map[string]string{
		"":                                   "include /etc/ld.so.conf.d/*.conf\n", // none
		"include /etc/ld.so.conf.d/*.conf\n": "include /etc/ld.so.conf.d/*.conf\n", // Debian's
		"include ld.so.conf.d/*.conf\n":      "include ld.so.conf.d/*.conf\n",      // Red Hat's
		"/usr/local/cuda/lib64/stubs\n":      ours + "/usr/local/cuda/lib64/stubs\n",
		"# nothing\n/opt/lib":                ours + "# nothing\n/opt/lib",
	} {
		dir := glibcImage(t, nil)
		if before != "" {
			write(t, dir+confPath, before)
		}
		write(t, dir+driverDir+"/libcuda.so.1", library(ldcache.ABI64, "libcuda.so.1"))
		_, notes := apply(t, dir, "580.95.05", []string{driverDir}, []ldcache.Entry{lib("libcuda.so.1")})
		if len(notes) != 1 || !strings.Contains(notes[0], "no /etc/ld.so.cache") {
			t.Errorf("notes %q", notes)
		}
		if got := read(t, dir+confPath); got != want {
			t.Errorf("%q became %q, want %q", before, got, want)
		}
		testtree.Ldconfig(t, "-r", dir)
		if got := paths(readCache(t, dir), "libcuda.so.1"); !slices.Equal(got, []string{driverDir + "/libcuda.so.1"}) {
			t.Errorf("%q: a later ldconfig lists %q", before, got)
		}
	}
}

func TestNothingIsWrittenIfThereIsNothingToDo(t *testing.T) {
	root := openRoot(t, t.TempDir())
	libs := []ldcache.Entry{lib("libcuda.so.1")}
	if got, notes := root.LoaderFiles(Image{}, []string{driverDir}, libs); got != nil || notes != nil {
		t.Errorf("without a C library: %v, %q", got, notes)
	}
	if got, notes := root.LoaderFiles(Image{LibC: GLibC}, nil, nil); got != nil || notes != nil {
		t.Errorf("without a driver: %v, %q", got, notes)
	}
	if got, notes := openRoot(t, "/").LoaderFiles(Image{LibC: GLibC}, []string{driverDir}, libs); got != nil || len(notes) != 1 {
		t.Errorf("in the host's own root: %v, %q", got, notes)
	}
}

func TestACacheThatIsTooLargeGivesWayToTheDriver(t *testing.T) {
	full := &ldcache.Cache{}
	for range 64 << 10 {
		full.Entries = append(full.Entries, entry("l", "/l"))
	}
	dir := glibcImage(t, full)
	_, notes := apply(t, dir, "580.1.1", []string{driverDir}, []ldcache.Entry{lib("libcuda.so.1")})
	if c := readCache(t, dir); len(c.Entries) != 1 || len(notes) != 1 {
		t.Errorf("%d entries, %q", len(c.Entries), notes)
	}
}

func TestMuslsPathFile(t *testing.T) {
	name := "/etc/ld-musl-" + ldcache.ABI64.Arch + ".path"
	// A directory of libraries of another ABI is left out, an empty one is not.
	libs := []ldcache.Entry{lib("libcuda.so.1"), {Name: "libcuda.so.1", Path: "/usr/local/nvidia/lib/libcuda.so.1", Flags: ldcache.ABI32.Flags}}
	dirs := []string{driverDir, "/usr/local/nvidia/lib", "/opt/empty"}
	for _, test := range []struct {
		name, before, want string
		notes              int
	}{
		{"missing", "", ldcache.MuslDefault + driverDir + "\n/opt/empty\n", 0},
		{"the image's own", "/lib\n/opt/lib\n", "/lib\n/opt/lib\n" + driverDir + "\n/opt/empty\n", 0},
		{"a loop of links", "loop", ldcache.MuslDefault + driverDir + "\n/opt/empty\n", 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir+"/lib/ld-musl-"+ldcache.ABI64.Arch+".so.1", library(ldcache.ABI64, ""))
			switch test.before {
			case "":
			case "loop":
				symlink(t, "ld-musl-"+ldcache.ABI64.Arch+".path", dir+name)
			default:
				write(t, dir+name, test.before)
			}
			img, notes := apply(t, dir, "580.1.1", dirs, libs)
			if got := read(t, dir+name); got != test.want || img.LibC != Musl || len(notes) != test.notes {
				t.Errorf("%q, %q: got %q, want %q", img.LibC, notes, got, test.want)
			}
			if _, err := os.Stat(dir + CachePath); err == nil {
				t.Error("a cache for glibc was written")
			}
		})
	}
}
