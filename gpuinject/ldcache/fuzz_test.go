package ldcache

import (
	"bytes"
	"slices"
	"testing"
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
