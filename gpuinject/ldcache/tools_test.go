package ldcache

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/image"
	"golang.org/x/sys/unix"
)

// tool returns the path of a program that these tests need, and fails loudly
// where it is missing.
func tool(t testing.TB, name, install string) string {
	t.Helper()
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/sbin") {
		if p := filepath.Join(dir, name); isExecutable(p) {
			return p
		}
	}
	t.Fatalf("%s is missing: install it (Debian: apt-get install %s)", name, install)
	return ""
}

func isExecutable(p string) bool {
	info, err := os.Stat(p)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// command runs a program and returns its standard output.
func command(t testing.TB, name string, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %q: %v\n%s%s", name, args, err, stdout.Bytes(), stderr.Bytes())
	}
	return stdout.String()
}

func ldconfig(t testing.TB, args ...string) string {
	t.Helper()
	return command(t, tool(t, "ldconfig", "libc-bin"), args...)
}

func gcc(t testing.TB, source string, args ...string) {
	t.Helper()
	src := filepath.Join(t.TempDir(), "source.c")
	write(t, src, source)
	command(t, tool(t, "gcc", "gcc libc6-dev"), append(args, src)...)
}

// library builds a shared library that says who it is.
func library(t testing.TB, file, soname, says string, args ...string) {
	t.Helper()
	mkdir(t, filepath.Dir(file))
	args = append([]string{"-shared", "-fPIC", "-nostdlib", "-o", file}, args...)
	if soname != "" {
		args = append(args, "-Wl,-soname,"+soname)
	}
	gcc(t, fmt.Sprintf("const char *who(void) { return %q; }\n", says), args...)
}

// compatLibrary builds a libcuda.so with a note section of the given bytes.
func compatLibrary(t testing.TB, file string, section []byte, align int) {
	t.Helper()
	var asm strings.Builder
	fmt.Fprintf(&asm, ".section .note.cuda.fwd_compatibility,\"a\",%%note\n.balign %d\n", align)
	for _, b := range section {
		fmt.Fprintf(&asm, ".byte %d\n", b)
	}
	asm.WriteString(".previous\n")
	mkdir(t, filepath.Dir(file))
	source := fmt.Sprintf("asm(%q);\nconst char *who(void) { return \"compat\"; }\n", asm.String())
	gcc(t, source, "-shared", "-fPIC", "-nostdlib", "-o", file, "-Wl,-soname,libcuda.so.1")
}

// noteBytes is a note of NVIDIA with a descriptor.
func noteBytes(desc string) []byte {
	b := le.AppendUint32(nil, uint32(len(compatOwner)+1))
	b = le.AppendUint32(b, uint32(len(desc)))
	b = le.AppendUint32(b, 1)
	b = append(append(b, compatOwner...), 0, 0) // 20 bytes: a multiple of 4
	b = append(b, desc...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func mkdir(t testing.TB, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, file, text string) {
	t.Helper()
	mkdir(t, filepath.Dir(file))
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func symlink(t testing.TB, target, name string) {
	t.Helper()
	mkdir(t, filepath.Dir(name))
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func openRoot(t testing.TB, dir string) *image.Root {
	t.Helper()
	root, err := image.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

// hostCache is the machine's own cache, or one that its ldconfig makes.
func hostCache(t testing.TB) []byte {
	t.Helper()
	if data, err := os.ReadFile("/etc/ld.so.cache"); err == nil {
		return data
	}
	file := filepath.Join(t.TempDir(), "ld.so.cache")
	ldconfig(t, "-X", "-C", file)
	return []byte(read(t, file))
}

// hostLib is the directory where an image for this machine has its libc.
func hostLib() string {
	if runtime.GOARCH == "arm64" {
		return "/usr/lib/aarch64-linux-gnu"
	}
	return "/usr/lib/x86_64-linux-gnu"
}

func hostFlags() int32 {
	a, _ := hostABIs()
	return a.flags()
}

// image makes a root file system with this machine's glibc, a merged /usr and a
// program /dlopen that loads its argument and prints what the library says.
func writeImage(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	lib := hostLib()
	mkdir(t, dir+lib)
	mkdir(t, dir+"/etc")
	symlink(t, "usr/lib", dir+"/lib")
	if filepath.Base(filepath.Dir(loaderOf(t))) == "lib64" {
		mkdir(t, dir+"/usr/lib64")
		symlink(t, "usr/lib64", dir+"/lib64")
	}
	a, _ := hostABIs()
	libc := strings.TrimSpace(command(t, tool(t, "gcc", "gcc libc6-dev"), "-print-file-name=libc.so.6"))
	write(t, dir+lib+"/libc.so.6", read(t, libc))
	loader := dir + a.loader
	write(t, loader, read(t, a.loader))
	if err := os.Chmod(loader, 0o755); err != nil {
		t.Fatal(err)
	}
	gcc(t, `#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
	for (int i = 1; i < argc; i++) {
		void *h = dlopen(argv[i], RTLD_NOW);
		if (!h) { puts(dlerror()); continue; }
		const char *(*who)(void) = dlsym(h, "who");
		puts(who ? who() : "nobody");
	}
	return 0;
}
`, "-o", dir+"/dlopen", "-ldl")
	return dir
}

func loaderOf(t testing.TB) string {
	t.Helper()
	a, _ := hostABIs()
	if _, err := os.Stat(a.loader); err != nil {
		t.Fatalf("these tests run the machine's own glibc loader: %v", err)
	}
	return a.loader
}

// driver puts a simulated driver into an image and returns what Update is told.
func driver(t testing.TB, dir string) ([]string, []Library) {
	t.Helper()
	const lib64 = "/usr/local/nvidia/lib64"
	var libs []Library
	for _, base := range []string{"libcuda", "libnvidia-ml"} {
		real := base + ".so.580.95.05"
		library(t, dir+lib64+"/"+real, base+".so.1", "driver "+base)
		symlink(t, real, dir+lib64+"/"+base+".so.1")
		symlink(t, base+".so.1", dir+lib64+"/"+base+".so")
		for _, name := range []string{base + ".so.1", base + ".so"} {
			libs = append(libs, Library{Name: name, Path: lib64 + "/" + name, Flags: hostFlags()})
		}
	}
	return []string{lib64, "/usr/local/nvidia/lib"}, libs
}

// apply inspects an image, writes what Update says, and proves that doing so
// again changes nothing.
func apply(t testing.TB, dir, hostDriver string, dirs []string, libs []Library) (*Image, []string) {
	t.Helper()
	root := openRoot(t, dir)
	img, err := Inspect(root, hostDriver)
	if err != nil {
		t.Fatal(err)
	}
	files, notes := img.Update(root, dirs, libs)
	writeFiles(t, root, files)
	again, _ := img.Update(root, dirs, libs)
	for _, f := range again {
		if got := read(t, filepath.Join(dir, f.Path)); got != string(f.Data) {
			t.Errorf("a second run changes %s:\n%q\n%q", f.Path, got, f.Data)
		}
	}
	return img, notes
}

func writeFiles(t testing.TB, root *image.Root, files []File) {
	t.Helper()
	for _, f := range files {
		if err := root.WriteFile(f.Path, f.Data, f.Mode, f.Mkdir); err != nil {
			t.Fatal(err)
		}
	}
}

// run starts a program inside an image.
func run(t testing.TB, dir string, args ...string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root, for chroot: run it with sudo")
	}
	return command(t, tool(t, "chroot", "coreutils"), append([]string{dir}, args...)...)
}

func mustParse(t testing.TB, data []byte) *Cache {
	t.Helper()
	c, err := ParseCache(data)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// paths are the paths of a name in the order of a cache.
func paths(c *Cache, name string) []string {
	var out []string
	for _, e := range c.Entries {
		if e.Name == name {
			out = append(out, e.Path)
		}
	}
	return out
}

func files(list []File) []string {
	var out []string
	for _, f := range list {
		out = append(out, f.Path)
	}
	slices.Sort(out)
	return out
}

func x86(name, path string) Entry {
	f, _ := FlagsFor(elf.ELFCLASS64, elf.EM_X86_64)
	return Entry{Name: name, Path: path, Flags: f}
}

func fifo(t testing.TB, name string) {
	t.Helper()
	mkdir(t, filepath.Dir(name))
	if err := unix.Mkfifo(name, 0o644); err != nil {
		t.Fatal(err)
	}
}

// sparse makes a file of size bytes without a block.
func sparse(t testing.TB, name string, size int64) {
	t.Helper()
	write(t, name, "")
	if err := os.Truncate(name, size); err != nil {
		t.Fatal(err)
	}
}
