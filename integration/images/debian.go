package images

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// codename is the Debian release of the image debian12.
const codename = "bookworm"

// debianPackages are added to debootstrap's minimal set: a compiler, and Python
// with what ctypes.util needs.
const debianPackages = "gcc,libc6-dev,python3-minimal,libpython3-stdlib"

// LibfooDeb is a package in the image debian12 that installs libfoo.so.1 and
// has the package manager run ldconfig.
const LibfooDeb = "/opt/test/libfoo.deb"

// debian12 is a base layer made by debootstrap, cached by itself, and a layer
// with the programs.
func debian12(b *builder) {
	base, err := cached(b.cacheDir, "debian12-base-1-"+runtime.GOARCH+".tar", debootstrap)
	b.check(err)
	b.layers = []Layer{{Tar: base}}
	b.libfooDeb()
	b.staticPrograms()
	b.programs(glibc, "dlopen", "cucount")
}

// DebianTree is a directory with Debian of the release of the image debian12 and more packages,
// separated by commas. It is made once, kept in the cache and must not be written to.
func DebianTree(packages string) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	// Only root may enter it, since a tree has set-user-id programs.
	dir := filepath.Join(cache, "trees")
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return cached(dir, fmt.Sprintf("debian12-%x-%s", sha256.Sum256([]byte(packages)), runtime.GOARCH), func(path, work string) error {
		root := filepath.Join(work, "root")
		if err := bootstrap(root, packages); err != nil {
			return err
		}
		return os.Rename(root, path)
	})
}

// bootstrap makes a Debian tree of that release in the directory root, with packages besides the
// minimal ones, from the mirror that the host's own apt uses. It takes about a minute.
func bootstrap(root, packages string) error {
	if os.Geteuid() != 0 {
		return errors.New("debootstrap needs root")
	}
	program, err := lookTool("debootstrap")
	if err != nil {
		return errors.New("debootstrap is missing: install Debian's debootstrap (integration/tools/apt.sh)")
	}
	mirror, err := debianMirror()
	if err != nil {
		return err
	}
	cmd := exec.Command(program, "--variant=minbase", "--include="+packages, codename, root, mirror)
	cmd.Env = append(os.Environ(), aptProxy()...)
	cmd.Env = append(cmd.Env, "LC_ALL=C", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	// It mounts proc and sys below root; in a namespace of its own these mounts
	// end with it, whatever happens.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("debootstrap: %w\n%s", err, lastLines(string(out), 20))
	}
	return nil
}

// debootstrap makes the base layer's tar.
func debootstrap(path, work string) (err error) {
	root := filepath.Join(work, "root")
	if err := bootstrap(root, debianPackages); err != nil {
		return err
	}
	// The user that the other images have as well.
	for name, line := range map[string]string{"passwd": testerPasswd, "group": testerGroup} {
		if err := appendTo(filepath.Join(root, "etc", name), line); err != nil {
			return err
		}
	}
	return writeFile(path, func(f *os.File) error { return Layer{Dir: root, Skip: skipInDebian}.write(f) })
}

// appendTo adds a line to a file of a tree that debootstrap has just made.
func appendTo(path, line string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line)
	return errors.Join(err, f.Close())
}

// skipInDebian lists what came from the host (names, mirror, device nodes), downloads, logs, and
// documentation.
var skipInDebian = []string{
	"etc/resolv.conf", "etc/hostname", "etc/apt/sources.list",
	"usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "var/cache/ldconfig",
	"dev/*", "proc/*", "sys/*", "run/*", "tmp/*", "var/lib/apt/lists/*", "var/cache/apt/*", "var/log/*", "var/tmp/*",
}

// debianMirror is the mirror from which the host's own apt takes Debian: the
// one that has the wanted release, or else any with Debian's main component.
func debianMirror() (string, error) {
	out, err := exec.Command("apt-get", "indextargets",
		"--format", "$(REPO_URI) $(CODENAME) $(COMPONENT) $(ORIGIN)", "Created-By: Packages").Output()
	if err != nil {
		return "", fmt.Errorf("ask apt for Debian's mirror: %w", err)
	}
	other := ""
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) != 4 || f[2] != "main" || f[3] != "Debian" {
			continue
		}
		if f[1] == codename {
			return f[0], nil
		}
		if other == "" && !strings.Contains(f[1], "-") { // "-security" is another archive
			other = f[0]
		}
	}
	if other == "" {
		return "", errors.New("apt has no Debian mirror configured, or no package lists yet (apt-get update)")
	}
	return other, nil
}

// aptProxy is the proxy that the host's apt is configured to use, as the
// environment that debootstrap understands.
func aptProxy() []string {
	var env []string
	for _, scheme := range []string{"http", "https"} {
		out, err := exec.Command("apt-config", "shell", "proxy", "Acquire::"+scheme+"::Proxy").Output()
		if err != nil {
			continue
		}
		value := strings.Trim(strings.TrimPrefix(strings.TrimSpace(string(out)), "proxy="), "'")
		if value != "" && value != "DIRECT" {
			env = append(env, scheme+"_proxy="+value)
		}
	}
	return env
}

// libfooDeb builds the package of LibfooDeb.
func (b *builder) libfooDeb() {
	root := filepath.Join(b.work, "deb")
	b.check(os.Mkdir(root, 0o755))
	control := "Package: libfoo\nVersion: 1.0\nArchitecture: " + runtime.GOARCH +
		"\nMaintainer: tests <tests@example.invalid>\nDescription: a library that a test installs\n"
	b.libraries(library{path: "usr/lib/" + b.arch.tuple + "/libfoo.so.1.0", soname: "libfoo.so.1", value: 12})
	b.add(
		Dir("DEBIAN", 0o755),
		Text("DEBIAN/control", 0o644, control),
		Text("DEBIAN/triggers", 0o644, "activate-noawait ldconfig\n"))
	b.check(Populate(root, b.files))
	out := filepath.Join(b.work, "libfoo.deb")
	b.check(tool("dpkg", "dpkg-deb", "--root-owner-group", "--build", root, out))
	b.files = []File{FromHost(strings.TrimPrefix(LibfooDeb, "/"), 0o644, out)}
}

// writeFile writes a file by temporary name and rename.
func writeFile(path string, write func(*os.File) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".tar-")
	if err != nil {
		return err
	}
	if err := errors.Join(write(f), f.Close()); err != nil {
		os.Remove(f.Name())
		return err
	}
	return os.Rename(f.Name(), path)
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
