package images

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

// cacheDir is the directory that built images are kept in: containerd-shim-nvidia/images
// in the user's cache directory, or what NVIDIA_SHIM_IMAGE_CACHE names.
func cacheDir() (string, error) {
	dir := os.Getenv("NVIDIA_SHIM_IMAGE_CACHE")
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("no place for built images: %w; set NVIDIA_SHIM_IMAGE_CACHE", err)
		}
		dir = filepath.Join(user, "containerd-shim-nvidia", "images")
	}
	return dir, os.MkdirAll(dir, 0o755)
}

// recipe says how a named image is made.
type recipe struct {
	// version is raised when make changes in a way that nothing else shows.
	version int
	// packages are the Debian packages whose files go into the image.
	packages []string
	// make fills in the builder's files and layers.
	make func(b *builder)
}

// builder is what a recipe works with. After the first error its methods do no harm, and no image
// is written.
type builder struct {
	cacheDir string
	// work is a directory of this build alone.
	work string
	arch arch
	// layers are finished; files go into the last one.
	layers []Layer
	files  []File
	err    error
}

func (b *builder) add(files ...File) { b.files = append(b.files, files...) }

// check records the first error.
func (b *builder) check(err error) { b.err = cmp.Or(b.err, err) }

// Ref is the reference of a named image in containerd.
func Ref(name string) string { return "test/" + name + ":latest" }

// Names lists what Build can make.
func Names() []string {
	var names []string
	for name := range recipes {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Build gives the path of a named image's tar, made now if it is not in the
// cache. Two processes may ask at once; one builds and the other waits.
func Build(name string) (path string, err error) {
	r, ok := recipes[name]
	if !ok {
		return "", fmt.Errorf("no image %q, only %s", name, strings.Join(Names(), ", "))
	}
	if path, err = build(name, r); err != nil {
		return "", fmt.Errorf("build image %s: %w", name, err)
	}
	return path, nil
}

func build(name string, r recipe) (string, error) {
	dir, err := cacheDir()
	if err != nil {
		return "", err
	}
	a, err := hostArch()
	if err != nil {
		return "", err
	}
	key, err := recipeKey(name, r)
	if err != nil {
		return "", err
	}
	return cached(dir, name+"-"+key+".tar", func(path, work string) error {
		b := &builder{cacheDir: dir, work: work, arch: a}
		r.make(b)
		if b.err != nil {
			return b.err
		}
		if len(b.files) > 0 {
			b.layers = append(b.layers, Layer{Files: b.files})
		}
		config := Config{Env: []string{defaultPath}, Cmd: []string{"/bin/sh"}, WorkingDir: "/"}
		return Image{Name: Ref(name), Config: config, Layers: b.layers}.write(path)
	})
}

// cached returns the path of a file or directory in dir, calling create under a lock if it does not
// exist. create gets the path to make in one step, and a working directory.
func cached(dir, name string, create func(path, work string) error) (string, error) {
	path := filepath.Join(dir, name)
	lock, err := os.OpenFile(filepath.Join(dir, "."+name+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	work, err := os.MkdirTemp(dir, ".work-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	return path, create(path, work)
}

// recipeKey is a hash of all that goes into an image: the recipe, the sources of
// the programs, and the versions of the host's packages.
func recipeKey(name string, r recipe) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, name, r.version, runtime.GOARCH)
	if err := hashPrograms(h); err != nil {
		return "", err
	}
	hashPackages(h, r.packages)
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

func hashPrograms(h hash.Hash) error {
	entries, err := programs.ReadDir("programs")
	if err != nil {
		return err
	}
	for _, e := range entries {
		data, err := programs.ReadFile("programs/" + e.Name())
		if err != nil {
			return err
		}
		fmt.Fprintln(h, e.Name(), len(data))
		h.Write(data)
	}
	return nil
}

// hashPackages adds the installed versions. Without dpkg, images are not rebuilt after an upgrade
// of the host.
func hashPackages(w io.Writer, packages []string) {
	for _, p := range packages {
		version, err := exec.Command("dpkg-query", "-W", "-f", "${Version}", p).Output()
		if err != nil {
			version = []byte("unknown")
		}
		fmt.Fprintln(w, p, string(version))
	}
}

// arch holds the names that differ between machine architectures.
type arch struct {
	// tuple is Debian's multiarch directory.
	tuple string
	// loader is the glibc loader's file name and loaderLink the path that programs
	// name, without the leading slash.
	loader, loaderLink string
	// muslLoader is musl's loader and C library.
	muslLoader string
	// hwcaps are glibc-hwcaps subdirectories, the least demanding first.
	hwcaps []string
}

func hostArch() (arch, error) {
	switch runtime.GOARCH {
	case "amd64":
		return arch{
			tuple: "x86_64-linux-gnu", loader: "ld-linux-x86-64.so.2", loaderLink: "usr/lib64/ld-linux-x86-64.so.2",
			muslLoader: "ld-musl-x86_64.so.1", hwcaps: []string{"x86-64-v2", "x86-64-v3"},
		}, nil
	case "arm64":
		return arch{
			tuple: "aarch64-linux-gnu", loader: "ld-linux-aarch64.so.1", loaderLink: "usr/lib/ld-linux-aarch64.so.1",
			muslLoader: "ld-musl-aarch64.so.1",
		}, nil
	}
	return arch{}, fmt.Errorf("no images for %s", runtime.GOARCH)
}

// tool runs a program of the host; a missing one is reported with the Debian
// package that has it.
func tool(pkg, name string, args ...string) error {
	path, err := lookTool(name)
	if err != nil {
		return fmt.Errorf("%s is missing: install Debian's %s (integration/tools/apt.sh)", name, pkg)
	}
	out, err := exec.Command(path, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// lookTool finds a program, even if the user's PATH has no sbin.
func lookTool(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", errors.New("not found")
}
