package systemd

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// treeVersion is raised when makeTree changes in a way that nothing else shows.
const treeVersion = 1

// treeRelease and treePackages are what a machine consists of.
const (
	treeRelease  = "bookworm"
	treePackages = "systemd,systemd-sysv,dbus,crun"
)

// debianTree is a directory with Debian and treePackages in it, made once and kept
// in the cache. It must not be written to.
func debianTree(t testing.TB) string {
	t.Helper()
	tree, err := cachedTree(t.Logf)
	if err != nil {
		t.Fatalf("a Debian tree with systemd is missing: %v", err)
	}
	return tree
}

func cachedTree(logf func(string, ...any)) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	tree := filepath.Join(cache, fmt.Sprintf("%s-%d-%s", treeRelease, treeVersion, runtime.GOARCH))
	lock, err := os.OpenFile(filepath.Join(cache, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	// Two test processes may ask at once; one makes the tree and the other waits.
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if _, err := os.Stat(tree); err == nil {
		return tree, nil
	}
	work, err := os.MkdirTemp(cache, ".work-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	start := time.Now()
	root := filepath.Join(work, "root")
	if err := makeTree(root); err != nil {
		return "", err
	}
	logf("debootstrap took %v", time.Since(start).Round(time.Second))
	return tree, os.Rename(root, tree)
}

// cacheDir is where trees are kept: only root looks into it, since a tree has
// set-user-id programs.
func cacheDir() (string, error) {
	base := os.Getenv("NVIDIA_SHIM_IMAGE_CACHE")
	if base == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("no place for it: %w; set NVIDIA_SHIM_IMAGE_CACHE", err)
		}
		base = filepath.Join(user, "containerd-shim-nvidia")
	}
	dir := filepath.Join(base, "systemd")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o700)
}

func makeTree(root string) error {
	program, err := lookTool("debootstrap")
	if err != nil {
		return err
	}
	mirror, err := debianMirror()
	if err != nil {
		return err
	}
	cmd := exec.Command(program, "--variant=minbase", "--include="+treePackages, treeRelease, root, mirror)
	cmd.Env = append(append(os.Environ(), aptProxy()...), "LC_ALL=C", "PATH="+systemPath)
	// It mounts proc and sys below root; in a namespace of its own these mounts end
	// with it, whatever happens.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("debootstrap: %w\n%s", err, lastLines(string(out), 20))
	}
	for _, name := range []string{"var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"} {
		if err := os.RemoveAll(filepath.Join(root, name)); err != nil {
			return err
		}
	}
	return nil
}

// debianMirror is the mirror from which the host's own apt takes Debian: the one
// that has the wanted release, or else any with Debian's main component.
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
		if f[1] == treeRelease {
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

// systemPath is where the host's and the machine's programs are.
const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// lookTool finds a program that may be in a directory for root's programs, which is
// often missing from PATH.
func lookTool(name string) (string, error) {
	for _, dir := range filepath.SplitList(systemPath) {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("the program %s is missing: install its Debian package (integration/tools/apt.sh)", name)
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
