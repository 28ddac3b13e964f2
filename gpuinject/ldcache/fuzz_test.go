package ldcache

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

func FuzzParseCache(f *testing.F) {
	small := &Cache{HWCaps: []string{"x86-64-v2", "x86-64-v3"}, Entries: []Entry{
		{Name: "libz.so.1", Path: "/l/glibc-hwcaps/x86-64-v3/libz.so.1", Flags: 0x0303, HWCap: hwcapExtension | 1},
		x86("libz.so.1", "/l/libz.so.1"), x86("libcuda.so.1", "/i/libcuda.so.1")}}
	f.Add(small.Encode())
	f.Add((&Cache{}).Encode())
	f.Add(append([]byte(magicOld+"\x00\x00\x00\x00\x00"), (&Cache{Entries: small.Entries}).Encode()...))
	f.Add([]byte(magicNew))
	f.Add(hostCache(f)[:2000])
	fresh := []Entry{x86("libcuda.so.1", "/d/libcuda.so.1"), x86("libcuda.so", "/d/libcuda.so")}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseCache(data)
		if err != nil {
			return
		}
		c.Prepend(fresh)
		first := c.Encode()
		if first == nil {
			return // too large
		}
		again, err := ParseCache(first)
		if err != nil {
			t.Fatalf("our own output: %v", err)
		}
		i := slices.IndexFunc(again.Entries, func(e Entry) bool {
			return libcmp(e.Name, "libcuda.so.1") == 0 && e.Flags == 0x0303
		})
		if i < 0 || again.Entries[i] != fresh[0] {
			t.Fatalf("the driver is not first: %v", again.Entries)
		}
		again.Prepend(fresh)
		if !bytes.Equal(first, again.Encode()) {
			t.Fatal("a second run changes the bytes")
		}
	})
}

func FuzzReadELF(f *testing.F) {
	noted := compatELF()
	f.Add(noted)
	f.Add(noted[:len(noted)/2])
	f.Add(elf32())
	f.Add([]byte("\x7fELF\x02\x01\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := parseELF(data)
		if err != nil {
			if e.SOName != "" || e.Note != nil {
				t.Fatalf("an error and a result: %+v", e)
			}
			return
		}
		if e.Note != nil && e.NoteErr != nil {
			t.Fatal("a note and an error")
		}
		if len(e.SOName) > maxString || bytes.IndexByte([]byte(e.SOName), 0) >= 0 {
			t.Fatalf("name %q", e.SOName)
		}
	})
}

// FuzzConf holds what the linker's files rely on: a directory that IsConfDir accepts is one line of
// the path file, and a second run changes nothing.
func FuzzConf(f *testing.F) {
	f.Add("include /etc/ld.so.conf.d/*.conf\n", "/usr/local/nvidia/lib64")
	f.Add("include ld.so.conf.d/[*.conf # x\n\x00/lib:/usr/lib", "/a=b")
	f.Add("include ******************a\ninclude\n", "/d\n")
	f.Fuzz(func(t *testing.T, text, dir string) {
		ConfIncludes(text, "/etc/ld.so.conf.d/000-nvidia-shim.conf")
		if !IsConfDir(dir) {
			return
		}
		once := AddMuslDirs(text, []string{dir})
		if !slices.Contains(strings.FieldsFunc(string(once), func(r rune) bool { return r == ':' || r == '\n' }), dir) {
			t.Fatalf("%q is not in %q", dir, once)
		}
		if again := AddMuslDirs(string(once), []string{dir}); !bytes.Equal(once, again) {
			t.Fatalf("a second run makes %q of %q", again, once)
		}
	})
}

func FuzzNote(f *testing.F) {
	note := testtree.Note(compatOwner, goodNote)
	f.Add(note, uint64(4))
	f.Add(append(testtree.Note("GNU", "abcd"), note...), uint64(8))
	f.Add(testtree.Note(compatOwner, strings.Repeat(`{"Driver":[`, 1000)), uint64(1<<63))
	f.Fuzz(func(t *testing.T, section []byte, align uint64) {
		note, err := parseCompatNote(section, align)
		if (note == nil) == (err == nil) {
			t.Fatalf("%v, %v", note, err)
		}
		if note != nil && len(note.Driver) > maxNoteJSON/2 {
			t.Fatalf("%d drivers", len(note.Driver))
		}
	})
}
