package shim

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
)

// present counts the pages from start to end that this process has.
func present(t testing.TB, start, end uintptr) (n int) {
	t.Helper()
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size := uintptr(os.Getpagesize())
	entries := make([]byte, 8*(end/size-start/size))
	if _, err := f.ReadAt(entries, int64(8*(start/size))); err != nil {
		t.Fatal(err)
	}
	for ; len(entries) > 0; entries = entries[8:] {
		if binary.NativeEndian.Uint64(entries)&pagePresent != 0 {
			n++
		}
	}
	return n
}

func TestPagesOfAFileAreGivenBackUnlessOneWasChanged(t *testing.T) {
	const pages = 8
	size := os.Getpagesize()
	name := filepath.Join(t.TempDir(), "f")
	want := bytes.Repeat([]byte("x"), pages*size)
	if err := os.WriteFile(name, want, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data, err := unix.Mmap(int(f.Fd()), 0, len(want), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(data)
	start := uintptr(unsafe.Pointer(&data[0]))
	end := start + uintptr(len(data))
	for _, tc := range []struct {
		name     string
		from, to uintptr
		change   bool
		left     int
	}{
		{"all", start, end, false, 0},
		{"whole pages only", start + 1, end - 1, false, 2},
		{"less than a page", start + 1, start + uintptr(size), false, pages},
		{"nothing", end, start, false, pages},
		{"one was changed", start, end, true, pages},
		{"another was changed", start, start + uintptr(3*size), false, pages - 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.change {
				data[5*size], want[5*size] = 'y', 'y'
			}
			if !bytes.Equal(data, want) || present(t, start, end) != pages {
				t.Fatal("the file is not mapped")
			}
			unmap(tc.from, tc.to)
			if got := present(t, start, end); got != tc.left {
				t.Errorf("%d pages are left, want %d", got, tc.left)
			}
			if !bytes.Equal(data, want) {
				t.Error("the content is another")
			}
		})
	}
}

// Where this fails after an upgrade of Go, the linker has another order: see
// createCode.
func TestTheCodeOfACreateLiesTogether(t *testing.T) {
	start, end := createCode()
	inside := func(function any) bool { at := entry(function); return at >= start && at < end }
	for name, fn := range map[string]any{
		"gpuinject.Examine": gpuinject.Examine, "driver.Discover": driver.Discover, "device.IsMIG": device.IsMIG,
		"ldcache.ReadELF": ldcache.ReadELF, "bundle.Parse": bundle.Parse, "config.Load": config.Load,
	} {
		if !inside(fn) {
			t.Errorf("%s is at %#x, not between %#x and %#x", name, entry(fn), start, end)
		}
	}
	for name, fn := range map[string]any{"(*Service).State": (*Service).State, "os.Getpagesize": os.Getpagesize, "ttrpc.NewServer": ttrpc.NewServer} {
		if inside(fn) {
			t.Errorf("%s is at %#x, between %#x and %#x", name, entry(fn), start, end)
		}
	}
}

func TestTheLineTablesAreFoundAndNeededNoMoreThanRead(t *testing.T) {
	start, end := lineTables()
	if end-start < 1<<20 {
		t.Fatalf("the line tables are from %#x to %#x", start, end)
	}
	unmap(start, end)
	if all := int(end-start) / os.Getpagesize(); present(t, start, end) > all/2 {
		t.Errorf("%d of %d pages are left", present(t, start, end), all)
	}
	if name := runtime.FuncForPC(entry(gpuinject.Examine)).Name(); !strings.HasSuffix(name, "gpuinject.Examine") {
		t.Errorf("Examine is called %q", name)
	}
}

// readCode reads every page from start to end.
func readCode(start, end uintptr) (sum byte) {
	code := reflect.ValueOf(bundle.Read).UnsafePointer()
	for at := start; at < end; at += 4096 {
		sum += *(*byte)(unsafe.Add(code, int(at)-int(entry(bundle.Read))))
	}
	return sum
}

// What the next create of the same shim pays: the code is mapped again, from the page
// cache.
func BenchmarkCodeIsMappedAgain(b *testing.B) {
	start, end := createCode()
	for b.Loop() {
		b.StopTimer()
		unmap(start, end)
		b.StartTimer()
		readCode(start, end)
	}
}

func BenchmarkTheCodeIsGivenBack(b *testing.B) {
	for b.Loop() {
		unmap(createCode())
	}
}
