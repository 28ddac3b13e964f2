package ldcache

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

const driverDir = "/usr/local/nvidia/lib64"

// glibcImage is the least image with glibc and the given cache.
func glibcImage(t testing.TB, cache *Cache) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir+"/usr/lib64/libc.so.6", libcFixture(t, "libc.so.6"))
	mkdir(t, dir+"/etc")
	if cache != nil {
		write(t, dir+cachePath, string(cache.Encode()))
	}
	return dir
}

func lib(name string) Library {
	return Library{Name: name, Path: driverDir + "/" + name, Flags: hostFlags()}
}

func own(name, path string) Entry { return Entry{Name: name, Path: path, Flags: hostFlags()} }

func TestEntriesOfAnEarlierDriverAreRemoved(t *testing.T) {
	dir := glibcImage(t, &Cache{Generator: "ldconfig", Entries: []Entry{own("libz.so.1", "/usr/lib64/libz.so.1"), own("libm.so.6", "/usr/lib64/libm.so.6")}})
	dirs := []string{driverDir}
	apply(t, dir, "570.1.1", dirs, []Library{lib("libcuda.so.1"), lib("libnvidia-glcore.so.570.1.1"), lib("libgone.so.1")})
	apply(t, dir, "580.1.1", dirs, []Library{lib("libcuda.so.1"), lib("libnvidia-glcore.so.580.1.1")})
	first := read(t, dir+cachePath)
	c := mustParse(t, []byte(first))
	var got []string
	for _, e := range c.Entries {
		got = append(got, e.Path)
	}
	want := []string{"/usr/lib64/libz.so.1", driverDir + "/libnvidia-glcore.so.580.1.1", "/usr/lib64/libm.so.6", driverDir + "/libcuda.so.1"}
	if !slices.Equal(got, want) || c.Generator != "ldconfig" {
		t.Errorf("got %q by %q, want %q", got, c.Generator, want)
	}

	// The same under another directory: the record of the run before says which.
	apply(t, dir, "580.1.1", []string{"/opt/driver"}, []Library{{Name: "libcuda.so.1", Path: "/opt/driver/libcuda.so.1", Flags: hostFlags()}})
	c = mustParse(t, []byte(read(t, dir+cachePath)))
	if got := paths(c, "libcuda.so.1"); !slices.Equal(got, []string{"/opt/driver/libcuda.so.1"}) || len(c.Entries) != 3 {
		t.Errorf("got %v", c.Entries)
	}
	names, err := os.ReadDir(dir + "/etc/ld.so.conf.d")
	if err != nil || len(names) != 1 {
		t.Errorf("%d files in ld.so.conf.d, %v", len(names), err)
	}
}

func TestTheRecordOfSomebodyElseIsNotBelieved(t *testing.T) {
	dir := glibcImage(t, &Cache{Entries: []Entry{own("libz.so.1", "/usr/lib64/libz.so.1")}})
	write(t, dir+confDirPath, "/usr/lib64\n")
	apply(t, dir, "580.1.1", []string{driverDir}, []Library{lib("libcuda.so.1")})
	c := mustParse(t, []byte(read(t, dir+cachePath)))
	if len(paths(c, "libz.so.1")) != 1 {
		t.Error("an entry of the image was removed")
	}
}

func TestTheFilesThatAreWritten(t *testing.T) {
	const header = confHeader + driverDir + "\n"
	include := "include /etc/ld.so.conf.d/*.conf\n"
	own := "include " + confDirPath + "\n"
	for _, test := range []struct{ name, conf, want string }{
		{"Debian's configuration is left alone", include, ""},
		{"Red Hat's relative one too", "include ld.so.conf.d/*.conf", ""},
		{"several patterns and a comment", "  include\t/opt/*.conf /etc/ld.so.conf.d/*  # all", ""},
		{"an include that is commented out", "#" + include, own + "#" + include},
		{"an include of something else", "include /etc/ld.so.conf.d/lib*.conf\n", own + "include /etc/ld.so.conf.d/lib*.conf\n"},
		{"directories only", "/usr/local/lib\n", own + "/usr/local/lib\n"},
		{"a word that begins alike", "includes /etc/ld.so.conf.d/*.conf\n", own + "includes /etc/ld.so.conf.d/*.conf\n"},
		{"a pattern that is broken", "include [\n", own + "include [\n"},
		{"empty", "", own},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := glibcImage(t, nil)
			write(t, dir+confPath, test.conf)
			root := openRoot(t, dir)
			img := &Image{LibC: GLibC}
			list, _ := img.Update(root, []string{driverDir}, []Library{lib("libcuda.so.1")})
			want := []string{cachePath, confDirPath}
			if test.want != "" {
				want = []string{cachePath, confPath, confDirPath}
			}
			if !slices.Equal(files(list), want) {
				t.Fatalf("files %q, want %q", files(list), want)
			}
			for _, f := range list {
				if f.Mode != 0o644 || !f.Mkdir {
					t.Errorf("%s: mode %v, mkdir %v", f.Path, f.Mode, f.Mkdir)
				}
				if f.Path == confPath && string(f.Data) != test.want {
					t.Errorf("ld.so.conf %q, want %q", f.Data, test.want)
				}
				if f.Path == confDirPath && string(f.Data) != header {
					t.Errorf("entry %q, want %q", f.Data, header)
				}
			}
		})
	}
	t.Run("no configuration at all", func(t *testing.T) {
		dir := glibcImage(t, nil)
		_, notes := apply(t, dir, "580.1.1", []string{driverDir}, []Library{lib("libcuda.so.1")})
		if got := read(t, dir+confPath); got != include {
			t.Errorf("ld.so.conf %q, want %q", got, include)
		}
		if c := mustParse(t, []byte(read(t, dir+cachePath))); c.Generator != generator || len(c.Entries) != 1 {
			t.Errorf("cache %+v", c)
		}
		if len(notes) != 1 || !strings.Contains(notes[0], "no /etc/ld.so.cache") {
			t.Errorf("notes %q", notes)
		}
	})
}

func TestNothingIsWrittenWhereNothingIsToDo(t *testing.T) {
	root := openRoot(t, t.TempDir())
	libs := []Library{lib("libcuda.so.1")}
	if got, notes := (&Image{}).Update(root, []string{driverDir}, libs); got != nil || notes != nil {
		t.Errorf("without a C library: %v, %q", files(got), notes)
	}
	if got, notes := (&Image{LibC: GLibC}).Update(root, nil, nil); got != nil || notes != nil {
		t.Errorf("without a driver: %v, %q", files(got), notes)
	}
	host := openRoot(t, "/")
	if got, notes := (&Image{LibC: GLibC}).Update(host, []string{driverDir}, libs); got != nil || len(notes) != 1 {
		t.Errorf("in the host's own root: %v, %q", files(got), notes)
	}
}

func TestWhatTheConfigurationCannotHoldIsNotWritten(t *testing.T) {
	dir := glibcImage(t, nil)
	libs := []Library{lib("libcuda.so.1"), {Name: "", Path: "/x"}, {Name: "a\x00b", Path: "/x"}}
	_, notes := apply(t, dir, "580.1.1", []string{driverDir, driverDir, "relative", "/a b", "/a\n/b", "/", "/a=libc6", "/x/../y"}, libs)
	if got, want := read(t, dir+confDirPath), confHeader+driverDir+"\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if len(notes) != 9 { // six directories, two libraries, no cache
		t.Errorf("%d notes: %q", len(notes), notes)
	}
}

func TestACompatDirectoryBelowTheDriversIsIgnored(t *testing.T) {
	dir := glibcImage(t, nil)
	root := openRoot(t, dir)
	img := &Image{LibC: GLibC, Compat: Compat{Use: true, Dir: "/opt/driver/compat", Entries: []Entry{own("libcuda.so.1", "/opt/driver/compat/libcuda.so.1")}}}
	list, notes := img.Update(root, []string{"/opt/driver"}, []Library{{Name: "libcuda.so.1", Path: "/opt/driver/libcuda.so.1", Flags: hostFlags()}})
	if got := paths(mustParse(t, list[0].Data), "libcuda.so.1"); !slices.Equal(got, []string{"/opt/driver/libcuda.so.1"}) || len(notes) != 2 {
		t.Errorf("got %q, %q", got, notes)
	}
}

func TestAFullCacheGivesWayToTheDriver(t *testing.T) {
	full := &Cache{}
	for i := range maxEntries {
		full.Entries = append(full.Entries, own(fmt.Sprintf("l%d", i), "/l"))
	}
	slices.Reverse(full.Entries)
	dir := glibcImage(t, full)
	_, notes := apply(t, dir, "580.1.1", []string{driverDir}, []Library{lib("libcuda.so.1")})
	c := mustParse(t, []byte(read(t, dir+cachePath)))
	if len(c.Entries) != 1 || len(notes) != 1 {
		t.Errorf("%d entries, %q", len(c.Entries), notes)
	}
}

// shuffle gives the names of an encoded cache an order of its own.
func shuffle(data []byte, n int) {
	for i := range n {
		j := int(uint32(i) * 2654435761 % uint32(n))
		a, b := newHeader+i*newEntry+4, newHeader+j*newEntry+4
		x, y := le.Uint32(data[a:]), le.Uint32(data[b:])
		le.PutUint32(data[a:], y)
		le.PutUint32(data[b:], x)
	}
}

func TestTheWorstCacheIsHandledInBoundedTime(t *testing.T) {
	for _, test := range []struct {
		name          string
		n, want       int
		sorted, noted bool
	}{
		{"as many entries as allowed", 60000, 60001, true, false},
		{"as many as allowed, out of order", 60000, 1, false, true},
		{"some out of order", maxUnsorted, maxUnsorted + 1, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := &Cache{}
			for i := range test.n {
				c.Entries = append(c.Entries, own(fmt.Sprintf("libaaaaaaaaaaaaaaaaaaaaaaaaa%08x", uint32(i)*2654435761), "/lib"))
			}
			data := c.Encode()
			if !test.sorted {
				shuffle(data, test.n)
			}
			dir := glibcImage(t, nil)
			write(t, dir+cachePath, string(data))
			root := openRoot(t, dir)
			start := time.Now()
			list, notes := (&Image{LibC: GLibC}).Update(root, []string{driverDir}, []Library{lib("libcuda.so.1")})
			d := time.Since(start)
			t.Logf("%d bytes: %v", len(data), d)
			if d > 500*time.Millisecond {
				t.Errorf("took %v", d)
			}
			if got := len(mustParse(t, list[0].Data).Entries); got != test.want || (len(notes) > 0) != test.noted {
				t.Errorf("%d entries, want %d; notes %q", got, test.want, notes)
			}
		})
	}
}

func TestMuslsPathFile(t *testing.T) {
	a, _ := hostABIs()
	name := "/etc/ld-musl-" + a.musl + ".path"
	libs := []Library{lib("libcuda.so.1"), {Name: "libcuda.so.1", Path: "/usr/local/nvidia/lib/libcuda.so.1", Flags: flagsI386}}
	dirs := []string{driverDir, "/usr/local/nvidia/lib"}
	absent := "absent"
	for _, test := range []struct{ name, before, want string }{
		{"absent: the default paths and the driver's", absent, "/lib:/usr/local/lib:/usr/lib\n" + driverDir + "\n"},
		{"lines are kept", "/lib\n/opt/lib\n", "/lib\n/opt/lib\n" + driverDir + "\n"},
		{"colons are kept, a missing line feed is added", "/lib:/opt/lib", "/lib:/opt/lib\n" + driverDir + "\n"},
		{"the driver's is there already", "/lib:" + driverDir + ":/usr/lib", "/lib:" + driverDir + ":/usr/lib"},
		{"a directory below the driver's is another", driverDir + "/x\n", driverDir + "/x\n" + driverDir + "\n"},
		{"empty means no paths, and stays so", "", driverDir + "\n"},
		{"what is behind a NUL is not read by musl", "/lib\x00/evil", "/lib\n" + driverDir + "\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			mkdir(t, dir+"/etc")
			write(t, dir+"/lib/ld-musl-"+a.musl+".so.1", libcFixture(t, ""))
			if test.before != absent {
				write(t, dir+name, test.before)
			}
			img, notes := apply(t, dir, "580.1.1", dirs, libs)
			if got := read(t, dir+name); got != test.want || img.LibC != Musl || len(notes) != 0 {
				t.Errorf("%q, %q: got %q, want %q", img.LibC, notes, got, test.want)
			}
			if _, err := os.Stat(dir + cachePath); err == nil {
				t.Error("a cache for glibc was written")
			}
		})
	}
	t.Run("a loop of links is replaced", func(t *testing.T) {
		dir := t.TempDir()
		symlink(t, "ld-musl-"+a.musl+".path", dir+name)
		root := openRoot(t, dir)
		list, notes := (&Image{LibC: Musl}).Update(root, dirs, libs)
		writeFiles(t, root, list)
		if got := read(t, dir+name); !strings.HasPrefix(got, muslDefault) || len(notes) != 1 {
			t.Errorf("got %q, %q", got, notes)
		}
	})
}

func BenchmarkMergeInto5000Entries(b *testing.B) {
	c := &Cache{Generator: "ldconfig (GNU libc) stable release version 2.39", HWCaps: []string{"x86-64-v3"}}
	for i := range 5000 {
		name := fmt.Sprintf("libsomething-%d.so.%d", i*7919%5000, i%9)
		c.Entries = append(c.Entries, own(name, hostLib()+"/"+name))
	}
	data := c.Encode()
	var fresh []Entry
	for i := range 120 {
		name := fmt.Sprintf("libnvidia-part%d.so.1", i)
		fresh = append(fresh, own(name, driverDir+"/"+name))
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		c, err := ParseCache(data)
		if err != nil {
			b.Fatal(err)
		}
		c.Prepend(fresh)
		if out := c.Encode(); len(out) < len(data) {
			b.Fatal("too short")
		}
	}
}

func BenchmarkInspectAndUpdate(b *testing.B) {
	dir := b.TempDir()
	write(b, dir+"/usr/lib64/libc.so.6", libcFixture(b, "libc.so.6"))
	c := &Cache{}
	for i := range 5000 {
		name := fmt.Sprintf("libsomething-%d.so.%d", i*7919%5000, i%9)
		c.Entries = append(c.Entries, own(name, hostLib()+"/"+name))
	}
	write(b, dir+cachePath, string(c.Encode()))
	root := openRoot(b, dir)
	var libs []Library
	for i := range 120 {
		libs = append(libs, lib(fmt.Sprintf("libnvidia-part%d.so.1", i)))
	}
	b.ReportAllocs()
	for b.Loop() {
		img, err := Inspect(root, "580.95.05")
		if err != nil {
			b.Fatal(err)
		}
		if files, _ := img.Update(root, []string{driverDir}, libs); len(files) != 3 {
			b.Fatal(len(files))
		}
	}
}
