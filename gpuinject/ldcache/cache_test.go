package ldcache

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestTheMachinesOwnCacheSurvivesARoundTrip(t *testing.T) {
	before := mustParse(t, hostCache(t))
	if len(before.Entries) == 0 {
		t.Fatal("the machine's cache has no entries")
	}
	if after := mustParse(t, before.Encode()); !reflect.DeepEqual(before, after) {
		t.Errorf("%d entries, %q, %q became %d, %q, %q", len(before.Entries), before.HWCaps, before.Generator,
			len(after.Entries), after.HWCaps, after.Generator)
	}
}

func TestLdconfigPrintsOurCacheAsItPrintsItsOwn(t *testing.T) {
	dir := t.TempDir()
	theirs, ours := filepath.Join(dir, "theirs"), filepath.Join(dir, "ours")
	write(t, theirs, string(hostCache(t)))
	write(t, ours, string(mustParse(t, hostCache(t)).Encode()))
	strip := func(s string) string { return s[strings.Index(s, "\n"):] } // the first line names the file
	if a, b := strip(ldconfig(t, "-p", "-C", theirs)), strip(ldconfig(t, "-p", "-C", ours)); a != b {
		t.Errorf("ldconfig -p differs:\n%s\n%s", a, b)
	}
}

func TestLdconfigListsTheDriverFirstAndKeepsEverythingElse(t *testing.T) {
	c := mustParse(t, hostCache(t))
	stub := Entry{Name: "libcuda.so.1", Path: "/usr/local/cuda/lib64/stubs/libcuda.so.1", Flags: hostFlags()}
	c.Prepend([]Entry{stub})
	before := len(c.Entries)
	c.Prepend([]Entry{{Name: "libcuda.so.1", Path: "/usr/local/nvidia/lib64/libcuda.so.1", Flags: hostFlags()}})
	file := filepath.Join(t.TempDir(), "cache")
	write(t, file, string(c.Encode()))

	out := ldconfig(t, "-p", "-C", file)
	if want := fmt.Sprintf("%d libs found", before+1); !strings.HasPrefix(out, want) {
		t.Errorf("ldconfig -p: %q, want %q", strings.SplitN(out, "\n", 2)[0], want)
	}
	driver, stubAt := strings.Index(out, "=> /usr/local/nvidia/lib64/libcuda.so.1"), strings.Index(out, "=> "+stub.Path)
	if driver < 0 || stubAt < driver {
		t.Errorf("the driver is at %d, the stub at %d", driver, stubAt)
	}
	for _, e := range mustParse(t, hostCache(t)).Entries {
		if !strings.Contains(out, "\t"+e.Name+" (") || !strings.Contains(out, "=> "+e.Path+"\n") {
			t.Errorf("ldconfig -p lost %s => %s", e.Name, e.Path)
		}
	}
}

func TestABlockOfTheOldFormatInFrontIsSkipped(t *testing.T) {
	dir := t.TempDir()
	library(t, dir+hostLib()+"/libone.so.1", "libone.so.1", "one")
	library(t, dir+hostLib()+"/libtwo.so.2", "libtwo.so.2", "two")
	write(t, dir+"/etc/ld.so.conf", hostLib()+"\n")
	for _, format := range []string{"compat", "new"} {
		ldconfig(t, "-r", dir, "-c", format)
		c := mustParse(t, []byte(read(t, dir+"/etc/ld.so.cache")))
		want := []string{hostLib() + "/libone.so.1"}
		if got := paths(c, "libone.so.1"); !slices.Equal(got, want) {
			t.Errorf("format %s: %q, want %q", format, got, want)
		}
		if got := paths(c, "libtwo.so.2"); len(got) != 1 {
			t.Errorf("format %s: %q", format, got)
		}
	}
	ldconfig(t, "-r", dir, "-c", "old")
	if _, err := ParseCache([]byte(read(t, dir+"/etc/ld.so.cache"))); err == nil {
		t.Error("a cache of the old format alone was accepted")
	}
}

func TestNamesCompareAsGlibcComparesThem(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{
		{"libc.so.6", "libc.so.6", 0},
		{"libfoo.so.10", "libfoo.so.9", 1},
		{"libfoo.so.01", "libfoo.so.1", 0},
		{"liba1.so", "liba.so", 1}, // a digit is greater than any other byte
		{"liba.so", "liba1.so", -1},
		{"liba", "liba.so", -1},
		{"liba.so", "liba", 1},
		{"", "a", -1},
		{"lib1", "lib", 1},
		{"lib-4294967297", "lib-1", 0}, // the number wraps
		{"lib-2147483648", "lib-1", 1}, // and so does the difference
	} {
		got := libcmp(test.a, test.b)
		if got < 0 && test.want >= 0 || got > 0 && test.want <= 0 || got == 0 && test.want != 0 {
			t.Errorf("libcmp(%q, %q) = %d, want the sign of %d", test.a, test.b, got, test.want)
		}
	}
	entries := mustParse(t, hostCache(t)).Entries
	if !slices.IsSortedFunc(entries, compareEntries) {
		t.Error("what ldconfig sorted is not sorted by our comparison")
	}
}

func TestPrepend(t *testing.T) {
	const v3 = hwcapExtension | 1
	hw := func(e Entry, hwcap uint64) Entry { e.HWCap = hwcap; return e }
	i386 := func(name, path string) Entry { return Entry{Name: name, Path: path, Flags: flagsI386} }
	for _, test := range []struct {
		name       string
		image, add []Entry
		want       []Entry
	}{
		{"an empty cache takes them in the loader's order", nil,
			[]Entry{x86("liba.so.1", "/d/liba.so.1"), x86("libb.so.1", "/d/libb.so.1")},
			[]Entry{x86("libb.so.1", "/d/libb.so.1"), x86("liba.so.1", "/d/liba.so.1")}},
		{"nothing to add changes nothing", []Entry{x86("liba.so", "/a/liba.so")}, nil, []Entry{x86("liba.so", "/a/liba.so")}},
		{"the driver comes before a stub of the image",
			[]Entry{x86("libz.so.1", "/i/libz.so.1"), x86("libcuda.so.1", "/i/libcuda.so.1"), x86("liba.so.1", "/i/liba.so.1")},
			[]Entry{x86("libcuda.so.1", "/d/libcuda.so.1")},
			[]Entry{x86("libz.so.1", "/i/libz.so.1"), x86("libcuda.so.1", "/d/libcuda.so.1"), x86("libcuda.so.1", "/i/libcuda.so.1"), x86("liba.so.1", "/i/liba.so.1")}},
		{"the order of those added is kept within a name", nil,
			[]Entry{x86("libcuda.so.1", "/compat/libcuda.so.1"), x86("libcuda.so.1", "/d/libcuda.so.1")},
			[]Entry{x86("libcuda.so.1", "/compat/libcuda.so.1"), x86("libcuda.so.1", "/d/libcuda.so.1")}},
		{"an entry of the image for some processors cannot hide the driver",
			[]Entry{hw(x86("libcuda.so.1", "/i/glibc-hwcaps/x86-64-v3/libcuda.so.1"), v3), hw(x86("libcuda.so.1", "/i/tls/libcuda.so.1"), 1<<63), x86("libcuda.so.1", "/i/libcuda.so.1")},
			[]Entry{x86("libcuda.so.1", "/d/libcuda.so.1")},
			[]Entry{x86("libcuda.so.1", "/d/libcuda.so.1"), x86("libcuda.so.1", "/i/libcuda.so.1")}},
		{"nor can one whose name only compares equal",
			[]Entry{hw(x86("libcuda.so.01", "/i/libcuda.so.01"), v3)},
			[]Entry{x86("libcuda.so.1", "/d/libcuda.so.1")},
			[]Entry{x86("libcuda.so.1", "/d/libcuda.so.1")}},
		{"entries for some processors of other libraries and ABIs stay",
			[]Entry{hw(x86("libz.so.1", "/i/v3/libz.so.1"), v3), x86("libz.so.1", "/i/libz.so.1"), hw(i386("libcuda.so.1", "/i/sse2/libcuda.so.1"), 1<<26)},
			[]Entry{x86("libcuda.so.1", "/d/libcuda.so.1")},
			[]Entry{hw(x86("libz.so.1", "/i/v3/libz.so.1"), v3), x86("libz.so.1", "/i/libz.so.1"), x86("libcuda.so.1", "/d/libcuda.so.1"), hw(i386("libcuda.so.1", "/i/sse2/libcuda.so.1"), 1<<26)}},
		{"a path is listed once",
			[]Entry{x86("libcuda.so.1", "/i/libcuda.so.1"), x86("libcuda.so.1", "/d/libcuda.so.1")},
			[]Entry{x86("libcuda.so.1", "/d/libcuda.so.1"), x86("libcuda.so.1", "/d/libcuda.so.1")},
			[]Entry{x86("libcuda.so.1", "/d/libcuda.so.1"), x86("libcuda.so.1", "/i/libcuda.so.1")}},
		{"a cache that is not sorted is sorted",
			[]Entry{x86("liba.so.1", "/i/liba.so.1"), x86("libz.so.1", "/i/libz.so.1")},
			[]Entry{x86("libcuda.so.1", "/d/libcuda.so.1")},
			[]Entry{x86("libz.so.1", "/i/libz.so.1"), x86("libcuda.so.1", "/d/libcuda.so.1"), x86("liba.so.1", "/i/liba.so.1")}},
		{"what no cache can hold is left out", nil,
			[]Entry{x86("", "/d/a"), x86("a", ""), x86("a\x00", "/d/a"), x86("a", strings.Repeat("a", maxString+1))}, []Entry{}},
		{"64-bit comes before 32-bit, as ldconfig sorts it", nil,
			[]Entry{i386("libcuda.so.1", "/d/32/libcuda.so.1"), x86("libcuda.so.1", "/d/libcuda.so.1")},
			[]Entry{x86("libcuda.so.1", "/d/libcuda.so.1"), i386("libcuda.so.1", "/d/32/libcuda.so.1")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := &Cache{Entries: test.image, HWCaps: []string{"x86-64-v2", "x86-64-v3"}}
			c.Prepend(test.add)
			if !slices.Equal(c.Entries, test.want) {
				t.Errorf("got  %v\nwant %v", c.Entries, test.want)
			}
			first := string(c.Encode())
			again := mustParse(t, []byte(first))
			again.Prepend(test.add)
			if string(again.Encode()) != first {
				t.Error("doing it again changes the bytes")
			}
		})
	}
}

func TestFlagsTellTheABIsApart(t *testing.T) {
	for _, test := range []struct {
		class   elf.Class
		machine elf.Machine
		want    int32
		ok      bool
	}{
		{elf.ELFCLASS64, elf.EM_X86_64, 0x0303, true},
		{elf.ELFCLASS32, elf.EM_X86_64, 0x0803, true},
		{elf.ELFCLASS64, elf.EM_AARCH64, 0x0a03, true},
		{elf.ELFCLASS32, elf.EM_386, 0x0003, true},
		{elf.ELFCLASS32, elf.EM_ARM, 0x0903, true},
		{elf.ELFCLASS64, elf.EM_PPC64, 0x0503, true},
		{elf.ELFCLASS64, elf.EM_386, 0, false},
		{elf.ELFCLASS64, elf.EM_SPARCV9, 0, false},
	} {
		if got, ok := FlagsFor(test.class, test.machine); got != test.want || ok != test.ok {
			t.Errorf("%v %v: %#x, %v", test.class, test.machine, got, ok)
		}
	}
	for _, e := range mustParse(t, hostCache(t)).Entries {
		if e.Name == "libc.so.6" && e.Flags == hostFlags() {
			return
		}
	}
	t.Errorf("the machine's libc.so.6 is not listed with %#x", hostFlags())
}

func TestAHostileCacheIsAnError(t *testing.T) {
	good := (&Cache{Generator: "g", HWCaps: []string{"x86-64-v3"},
		Entries: []Entry{x86("libb.so.1", "/l/libb.so.1"), x86("liba.so.1", "/l/liba.so.1")}}).Encode()
	extension := le.Uint32(good[32:])
	patch := func(at int, v uint32) []byte {
		b := slices.Clone(good)
		le.PutUint32(b[at:], v)
		return b
	}
	old := func(n uint32) []byte {
		b := append([]byte(magicOld+"\x00"), 0, 0, 0, 0)
		le.PutUint32(b[12:], n)
		return append(b, patch(32, 0)...) // its offset would count from the old block
	}
	if _, err := ParseCache(old(0)); err != nil {
		t.Fatalf("the base of the old fixtures: %v", err)
	}
	shared := (&Cache{Entries: []Entry{x86(strings.Repeat("n", maxString), strings.Repeat("p", maxString))}}).Encode()
	const copies = maxEntries
	bomb := append(slices.Clone(shared[:newHeader]), make([]byte, copies*newEntry)...)
	le.PutUint32(bomb[20:], copies)
	for i := range copies {
		le.PutUint32(bomb[newHeader+i*newEntry+4:], newHeader+copies*newEntry)
		le.PutUint32(bomb[newHeader+i*newEntry+8:], newHeader+copies*newEntry)
	}
	bomb = append(bomb, strings.Repeat("n", maxString)+"\x00"...)

	for name, data := range map[string][]byte{
		"empty":                              {},
		"not a cache":                        []byte("#!/bin/sh\n"),
		"magic alone":                        []byte(magicNew),
		"old magic alone":                    []byte(magicOld),
		"cut inside the header":              good[:40],
		"cut inside the table":               good[:newHeader+10],
		"cut inside the strings":             good[:newHeader+2*newEntry+4],
		"big endian":                         append(append(slices.Clone(good[:28]), 3), good[29:]...),
		"invalid byte order":                 append(append(slices.Clone(good[:28]), 1), good[29:]...),
		"2^31 libraries":                     patch(20, 1<<31),
		"2^32-1 libraries":                   patch(20, 1<<32-1),
		"one library more than the limit":    patch(20, maxEntries+1),
		"length of strings beyond the file":  patch(24, 1<<31),
		"name beyond the file":               patch(newHeader+4, 1<<31),
		"name at 2^32-1":                     patch(newHeader+4, 1<<32-1),
		"name inside the header":             patch(newHeader+4, 0),
		"path beyond the file":               patch(newHeader+8, uint32(len(good))),
		"unterminated string":                append(slices.Clone(patch(newHeader+4, uint32(len(good)))), "lib"...),
		"empty string":                       append(slices.Clone(patch(newHeader+4, uint32(len(good)))), 0),
		"string of more than 4 KiB":          append(slices.Clone(patch(newHeader+4, uint32(len(good)))), strings.Repeat("a", maxString+1)+"\x00"...),
		"strings that expand to half a GiB":  bomb,
		"extension beyond the file":          patch(32, 1<<31),
		"extension at 2^32-4":                patch(32, 1<<32-4),
		"extension misaligned":               patch(32, extension+1),
		"extension without magic":            patch(int(extension), 0),
		"2^31 extension sections":            patch(int(extension)+4, 1<<31),
		"section wraps":                      patch(int(extension)+8+8, 1<<32-1),
		"section too long":                   patch(int(extension)+8+12, 1<<32-1),
		"table of hwcaps misaligned":         patch(int(extension)+8+16+12, 3),
		"hwcaps name beyond the file":        patch(int(extension)+8+32, 1<<31),
		"old block of 2^31 libraries":        old(1 << 31),
		"old block that hides the new magic": old(1),
		"5 MiB":                              make([]byte, 5<<20),
	} {
		if c, err := ParseCache(data); err == nil {
			t.Errorf("%s: accepted as %v", name, c)
		} else if c != nil {
			t.Errorf("%s: an error and a cache", name)
		}
	}
}

func TestAnUnknownExtensionSectionIsIgnored(t *testing.T) {
	good := (&Cache{Generator: "g", HWCaps: []string{"v3"}, Entries: []Entry{x86("liba.so.1", "/l/liba.so.1")}}).Encode()
	le.PutUint32(good[le.Uint32(good[32:])+8:], 77)
	c := mustParse(t, good)
	if c.Generator != "" || !slices.Equal(c.HWCaps, []string{"v3"}) {
		t.Errorf("got %q, %q", c.Generator, c.HWCaps)
	}
}

func TestACacheWithoutExtensionsHasNone(t *testing.T) {
	data := (&Cache{Entries: []Entry{x86("liba.so.1", "/l/liba.so.1")}}).Encode()
	if off := le.Uint32(data[32:]); off != 0 {
		t.Errorf("extension at %d", off)
	}
	file := filepath.Join(t.TempDir(), "cache")
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
	if out := ldconfig(t, "-p", "-C", file); !strings.Contains(out, "=> /l/liba.so.1") {
		t.Errorf("ldconfig -p: %s", out)
	}
}
