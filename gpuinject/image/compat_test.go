package image

import (
	"debug/elf"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/ldcache"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

// compatImage makes an image whose /usr/local/cuda leads to a compat directory
// over two links, as in NVIDIA's CUDA images, and returns that directory.
func compatImage(t testing.TB, dir string) string {
	t.Helper()
	const compat = "/usr/local/cuda-13.1/compat"
	mkdir(t, dir+compat)
	symlink(t, "/etc/alternatives/cuda", dir+"/usr/local/cuda")
	symlink(t, "/usr/local/cuda-13.1", dir+"/etc/alternatives/cuda")
	return dir + compat
}

func TestForwardCompatibilityIsUsedIfItServesTheHost(t *testing.T) {
	withNote, without := compatLibrary(goodNote), library(ldcache.ABI64, "libcuda.so.1")
	broken, emptyList := compatLibrary("{"), compatLibrary(`{"Format":1,"CUDA Version":"13.1"}`)
	for _, test := range []struct {
		name, library, version, host string
		use                          bool
	}{
		{"note: the host's release is listed and older", withNote, "590.44.01", "580.95.05", true},
		{"note: the host's release is listed, same release, older", withNote, "590.44.01", "590.43.02", true},
		{"note: the same version", withNote, "590.44.01", "590.44.01", false},
		{"note: the host is newer within the release", withNote, "580.82.07", "580.126.16", false},
		{"note: the host is newer by one number more", withNote, "590.44", "590.44.01", false},
		{"note: the host's release is not listed", withNote, "590.44.01", "565.57.01", false},
		{"note without a list of releases", emptyList, "590.44.01", "580.95.05", false},
		{"note that is broken", broken, "590.44.01", "580.95.05", false},
		{"no note: newer release", without, "575.57.08", "570.124.06", true},
		{"no note: newer only within the release", without, "570.211.01", "570.124.06", false},
		{"no note: older release", without, "535.54.03", "570.124.06", false},
		{"no note: releases compare as numbers", without, "1000.10.01", "999.20.02", true},
		{"no note: and not as strings", without, "999.20.02", "1000.10.01", false},
		{"version of two numbers, as in CUDA 10.0", without, "410.129", "396.37", true},
		{"the 1.1 of Tegra is no version", without, "1.1", "0.9", false},
		{"four numbers are no version", without, "590.1.2.3", "580.1", false},
		{"unknown host driver", withNote, "590.44.01", "", false},
		{"host driver that is no version", withNote, "590.44.01", "580.x", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			compat := compatImage(t, dir)
			write(t, compat+"/libcuda.so."+test.version, test.library)
			got := openRoot(t, dir).Inspect(test.host).Compat
			if got.Use != test.use || got.Reason == "" || got.Dir != "/usr/local/cuda-13.1/compat" {
				t.Errorf("got %+v", got)
			}
			if !got.Use && got.Entries != nil {
				t.Errorf("names although it is not used: %+v", got)
			}
		})
	}
}

func TestTheNamesOfTheCompatDirectoryAreThoseThatLdconfigLists(t *testing.T) {
	dir := t.TempDir()
	compat := compatImage(t, dir)
	write(t, compat+"/libcuda.so.590.44.01", compatLibrary(goodNote))
	symlink(t, "libcuda.so.590.44.01", compat+"/libcuda.so.1")
	symlink(t, "libcuda.so.1", compat+"/libcuda.so")
	write(t, compat+"/libnvidia-nvvm.so.590.44.01", library(ldcache.ABI64, "libnvidia-nvvm.so.4"))
	symlink(t, "libnvidia-nvvm.so.590.44.01", compat+"/libnvidia-nvvm.so.4")
	write(t, compat+"/libnvidia-gpucomp.so.590.44.01", library(ldcache.ABI64, "libnvidia-gpucomp.so.590.44.01"))
	write(t, compat+"/libevil.so.1", library(ldcache.ABI64, "../../etc/passwd"))
	symlink(t, "../compat/libcuda.so.1", compat+"/libaround.so.1")
	write(t, compat+"/libtext.so.1", "not a library")
	write(t, compat+"/README", "")
	symlink(t, "libdangling.so.1.2", compat+"/libdangling.so.1")
	symlink(t, "libloop.so.1", compat+"/libloop.so.1")

	got := openRoot(t, dir).Inspect("580.95.05").Compat
	want := []string{"libcuda.so", "libcuda.so.1", "libnvidia-gpucomp.so.590.44.01", "libnvidia-nvvm.so.4"}
	var names []string
	for _, e := range got.Entries {
		names = append(names, e.Name)
	}
	if !slices.Equal(names, want) {
		t.Errorf("names %q, want %q", names, want)
	}
	mkdir(t, dir+"/etc")
	write(t, dir+"/etc/ld.so.conf", got.Dir+"\n")
	check(t, os.Remove(compat+"/libevil.so.1"))
	check(t, os.Remove(compat+"/libaround.so.1"))
	testtree.Ldconfig(t, "-X", "-r", dir)
	var theirs, ours []string
	for _, e := range readCache(t, dir).Entries {
		theirs = append(theirs, fmt.Sprint(e))
	}
	for _, e := range got.Entries {
		ours = append(ours, fmt.Sprint(e))
	}
	slices.Sort(theirs)
	slices.Sort(ours)
	if !slices.Equal(theirs, ours) {
		t.Errorf("ldconfig lists %q, we list %q", theirs, ours)
	}
}

func TestALibraryWithoutItsLinkIsListedByItsFile(t *testing.T) {
	dir := t.TempDir()
	compat := compatImage(t, dir)
	write(t, compat+"/libcuda.so.590.44.01", compatLibrary(goodNote))
	got := openRoot(t, dir).Inspect("580.95.05").Compat
	want := []ldcache.Entry{entry("libcuda.so.1", "/usr/local/cuda-13.1/compat/libcuda.so.590.44.01")}
	if !slices.Equal(got.Entries, want) {
		t.Errorf("got %+v", got.Entries)
	}
}

func TestAnOddCompatDirectoryIsNotUsed(t *testing.T) {
	lib := compatLibrary(goodNote)
	const good = "/libcuda.so.590.44.01"
	for _, test := range []struct {
		name string
		make func(t *testing.T, dir string)
	}{
		{"none", func(t *testing.T, dir string) {}},
		{"a file", func(t *testing.T, dir string) { write(t, dir+"/usr/local/cuda/compat", "") }},
		{"empty", func(t *testing.T, dir string) { mkdir(t, dir+"/usr/local/cuda/compat") }},
		{"a link to itself", func(t *testing.T, dir string) { symlink(t, "compat", dir+"/usr/local/cuda/compat") }},
		{"a link to the host", func(t *testing.T, dir string) { symlink(t, "/proc/1/root/etc", dir+"/usr/local/cuda/compat") }},
		{"two versions", func(t *testing.T, dir string) {
			write(t, dir+"/usr/local/cuda/compat"+good, lib)
			write(t, dir+"/usr/local/cuda/compat/libcuda.so.591.1.1", lib)
		}},
		{"the version is a link", func(t *testing.T, dir string) {
			write(t, dir+"/opt/lib", lib)
			symlink(t, "/opt/lib", dir+"/usr/local/cuda/compat"+good)
		}},
		{"the version is a FIFO", func(t *testing.T, dir string) { fifo(t, dir+"/usr/local/cuda/compat"+good) }},
		{"the version is a directory", func(t *testing.T, dir string) { mkdir(t, dir+"/usr/local/cuda/compat"+good) }},
		{"the version is a terabyte", func(t *testing.T, dir string) { sparse(t, dir+"/usr/local/cuda/compat"+good, 1<<40) }},
		{"the version is text", func(t *testing.T, dir string) { write(t, dir+"/usr/local/cuda/compat"+good, "x") }},
		{"the version is for another machine", func(t *testing.T, dir string) {
			write(t, dir+"/usr/local/cuda/compat"+good, testtree.Library(elf.ELFCLASS64, elf.EM_SPARCV9, "libcuda.so.1"))
		}},
		{"a directory with a line feed in its name", func(t *testing.T, dir string) {
			write(t, dir+"/opt/a\n/evil"+good, lib)
			symlink(t, "/opt/a\n/evil", dir+"/usr/local/cuda/compat")
		}},
		{"where the driver will be mounted", func(t *testing.T, dir string) {
			write(t, dir+"/usr/local/nvidia/compat"+good, lib)
			symlink(t, "/usr/local/nvidia/compat", dir+"/usr/local/cuda/compat")
		}},
		{"too many files", func(t *testing.T, dir string) {
			write(t, dir+"/usr/local/cuda/compat"+good, lib)
			for i := range maxCompatFiles {
				write(t, fmt.Sprintf("%s/usr/local/cuda/compat/x%d", dir, i), "")
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			test.make(t, dir)
			if got := openRoot(t, dir).Inspect("580.95.05").Compat; got.Use || got.Reason == "" || strings.ContainsAny(got.Reason, "\n") {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// FuzzVersion takes any name in the compatibility directory, and any version of the host's driver.
func FuzzVersion(f *testing.F) {
	f.Add("580.95.05", "580.95.05")
	f.Add("1.1", "")
	f.Add("+610.043.02.1", "99999999999999999999.1")
	f.Fuzz(func(t *testing.T, name, host string) {
		version, reason := libcudaVersion(map[string]string{"libcuda.so." + name: "libcuda.so." + name})
		if (version == "") == (reason == "") || strings.Trim(version, "0123456789.") != "" {
			t.Fatalf("%q, %q", version, reason)
		}
		if version == "" {
			return
		}
		use, reason := useCompat(version, ldcache.ELF{Class: elf.ELFCLASS64, Machine: ldcache.ABI64.Machine}, host)
		if use && !strings.Contains(reason, "newer release") || strings.ContainsAny(reason, "\n\r\x1b\x00") {
			t.Errorf("%v, %q", use, reason)
		}
	})
}
