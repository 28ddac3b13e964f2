package systemd

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
)

// treeVersion is raised when makeTree changes in a way that nothing else shows.
const treeVersion = 1

// treePackages is what a machine consists of, besides a minimal Debian 12.
const treePackages = "systemd,systemd-sysv,dbus,crun"

// debianTree is a directory with Debian and treePackages in it, made once and kept
// in the cache. It must not be written to.
func debianTree(t testing.TB) string {
	t.Helper()
	tree, err := cachedTree()
	if err != nil {
		t.Fatalf("a Debian tree with systemd is missing: %v", err)
	}
	return tree
}

func cachedTree() (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	tree := filepath.Join(cache, fmt.Sprintf("debian12-%d-%s", treeVersion, runtime.GOARCH))
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
	root := filepath.Join(work, "root")
	if err := makeTree(root); err != nil {
		return "", err
	}
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
	if err := images.Debootstrap(root, treePackages); err != nil {
		return err
	}
	for _, name := range []string{"var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"} {
		if err := os.RemoveAll(filepath.Join(root, name)); err != nil {
			return err
		}
	}
	return nil
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
