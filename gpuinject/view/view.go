package view

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
)

// Dir is where a container finds the driver: the PATH and LD_LIBRARY_PATH of CUDA images have
// always pointed there.
const Dir = "/usr/local/nvidia"

// Dirs are the places for a view, the best first. Another than Dir is for a container that has a
// volume of its own there.
var Dirs = []string{Dir, "/opt/nvidia-driver"}

// Spec lists what a view holds.
type Spec struct {
	// Driver identifies the current driver files; a view of another driver is out of date.
	Driver string
	Files  []File
}

// grace is how long a view of an older driver stays after its last use, so that a container
// creation that has just chosen it still finds it.
const grace = time.Hour

// maxViews bounds the views of a host, which differ by capabilities and by the image's forward
// compatibility package: each has a mount for every file, and every new mount namespace copies them
// all. A view used more recently than recent is not removed for this reason.
const (
	maxViews = 32
	recent   = 10 * time.Second
)

// key returns the name of the view's directory. The driver comes first, so that a name shows
// whether the view is of another driver.
func (s Spec) key() string {
	files, _ := json.Marshal(s.Files) // strings and bytes always have a JSON form
	return hash([]byte(s.Driver)) + "-" + hash(files)
}

func hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}

func viewDir(stateDir string) string { return filepath.Join(stateDir, "view") }

// Path returns where the view for spec is, or would be.
func Path(stateDir string, spec Spec) string {
	return filepath.Join(viewDir(stateDir), spec.key(), "root")
}

// Holds reports whether a path of the host is in a view.
func Holds(stateDir, name string) bool { return strings.HasPrefix(name, viewDir(stateDir)+"/") }

// lockName is the lock in the directory of views. lockTimeout bounds the wait for a view that
// another process builds. Building takes milliseconds.
const (
	lockName    = "lock"
	lockTimeout = time.Second
)

// Ensure builds the view for spec if this host does not have it yet. Its directory is a mount whose
// whole tree is read-only, nosuid and nodev.
func Ensure(s *state.State, spec Spec) error {
	root := Path(s.Dir(), spec)
	if mounted(root) {
		// The time of last use, for collect.
		_ = unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Dir(root), nil, 0)
		collectRest(s, spec.Driver) // guard: view: 32 at most, later
		return nil
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return fmt.Errorf("driver view: %w", err)
	}
	lock, err := s.Lock(filepath.Join("view", lockName), lockTimeout)
	// flock(2) needs no write access, so root in a container that sees the host's /run can hold the
	// lock forever. The lock only saves work.
	if err != nil && !errors.Is(err, state.ErrBusy) { // guard: view: built unlocked
		return fmt.Errorf("driver view: lock: %w", err)
	}
	defer lock.Close()
	if mounted(root) {
		return nil
	}
	err = makePrivate(viewDir(s.Dir())) // guard: view: private
	if err == nil {
		err = build(root, spec.Files)
	}
	if err != nil {
		return fmt.Errorf("driver view: %w", err)
	}
	s.AddEvent(state.Event{Kind: state.ViewBuilt})
	collect(viewDir(s.Dir()), spec.Driver)
	if !mounted(root) { // guard: view: not covered
		// Without the lock, another builder may have made the directory of views private at the
		// same time, covering this view.
		return fmt.Errorf("driver view: %s was covered by another mount: start the container again", root)
	}
	return nil
}

// makePrivate makes dir a private mount. The state directory usually is on a shared one, as /run is
// under systemd: a view attached to a shared mount would be propagated, file by file, to every
// mount namespace of its peer group.
func makePrivate(dir string) error {
	if !mounted(dir) {
		if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s: %w", dir, err)
		}
	}
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make %s private: %w", dir, err)
	}
	return nil
}

// IsMounted reports whether the view at root, a result of Path, is there.
func IsMounted(root string) bool { return mounted(root) }

func unmount(dir string) error {
	for mounted(dir) {
		if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return &os.PathError{Op: "unmount", Path: dir, Err: err}
		}
	}
	return nil
}

// Remove removes all views of this host. Containers keep theirs. Removing a mount point detaches
// its mounts in every mount namespace (kernel 3.18), so this works from a pod, too.
func Remove(s *state.State) error {
	views := viewDir(s.Dir())
	if err := unmount(views); err != nil { // with the views on it
		return err
	}
	entries, _ := os.ReadDir(views)
	for _, e := range entries {
		root := filepath.Join(views, e.Name(), "root")
		if err := unmount(root); err != nil { // whatever was below that mount
			return err
		}
		// Only rmdir, so that nothing in a view is ever removed.
		_ = unix.Rmdir(root)
		_ = unix.Rmdir(filepath.Dir(root))
	}
	_ = os.Remove(filepath.Join(views, lockName))
	_ = unix.Rmdir(views)
	return nil
}

// collectRest removes views that had just been used when the last one was built. Without it, an
// image that is started with every set of capabilities within seconds would leave them all for
// good.
func collectRest(s *state.State, driver string) {
	views := viewDir(s.Dir())
	var st unix.Stat_t
	if err := unix.Lstat(views, &st); err != nil || 2 <= st.Nlink && st.Nlink <= maxViews+2 {
		return // the usual case: each view is a subdirectory
	}
	if lock, err := s.Lock(filepath.Join("view", lockName), 0); err == nil {
		collect(views, driver)
		lock.Close()
	}
}

// collect removes views of other drivers that have not been used for a long time and, above
// maxViews, the least recently used ones. Failures are retried with the next new view.
func collect(views, driver string) {
	entries, _ := os.ReadDir(views)
	used := map[string]time.Duration{} // how long ago
	for _, e := range entries {
		if info, err := e.Info(); err == nil && e.IsDir() {
			used[e.Name()] = time.Since(info.ModTime())
		}
	}
	names := slices.SortedFunc(maps.Keys(used), func(a, b string) int { return cmp.Compare(used[a], used[b]) })
	for i, name := range names {
		otherDriver := !strings.HasPrefix(name, hash([]byte(driver))+"-")
		// guard: view: 32 at most
		// guard: view: just used
		if !(otherDriver && used[name] >= grace) && !(i >= maxViews && used[name] >= recent) {
			continue
		}
		dir := filepath.Join(views, name)
		root := filepath.Join(dir, "root")
		if unmount(root) == nil {
			_ = os.Remove(root)
			_ = os.Remove(dir)
		}
	}
}
