package testenv

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// KubeletSettings are what a kubelet sets on its host (pkg/kubelet/cm, setupKernelTunables).
var KubeletSettings = []string{
	"/proc/sys/vm/overcommit_memory", "/proc/sys/vm/panic_on_oom", "/proc/sys/kernel/panic", "/proc/sys/kernel/panic_on_oops",
	"/proc/sys/kernel/keys/root_maxkeys", "/proc/sys/kernel/keys/root_maxbytes",
}

// notes has a file for each place of the host that test processes have changed: empty for a directory
// that they made, else with what the file had.
var notes = "/run/nvtest"

// Share makes directories that programs use whatever they are told, and notes the content of files
// that they change. The function that it returns, in the last test process that shares any,
// gives all files their content back and removes the directories that are empty. No earlier one may:
// in another one's mount namespace something may be mounted on such a directory, and the kernel would
// take that mount away.
func Share(dirs, files []string) (restore func() error, err error) {
	lock, err := os.Open(filepath.Dir(notes))
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_SH)
	}
	if err == nil {
		err = os.MkdirAll(notes, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("share the host with other test processes: %w", err)
	}
	for _, dir := range dirs {
		if os.Mkdir(dir, 0o755) == nil {
			err = errors.Join(err, note(dir, nil))
		}
	}
	for _, file := range files {
		content, readErr := os.ReadFile(file)
		if errors.Is(readErr, fs.ErrNotExist) {
			continue // this kernel has no such setting
		}
		err = errors.Join(err, readErr, note(file, content))
	}
	return func() error {
		defer lock.Close()
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			return nil // another test process runs
		}
		return restoreAll()
	}, err
}

// ShareForTest makes shared directories until the test ends.
func ShareForTest(t testing.TB, dirs ...string) {
	t.Helper()
	restore, err := Share(dirs, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := restore(); err != nil {
			t.Error(err)
		}
	})
}

// note keeps the first note about a place: later test processes see what others have made of it.
func note(place string, content []byte) error {
	f, err := os.OpenFile(filepath.Join(notes, url.PathEscape(place)), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Close())
}

// restoreAll does what the notes say.
func restoreAll() error {
	entries, err := os.ReadDir(notes)
	for _, entry := range slices.Backward(entries) { // what is in a directory, before it
		place, e := url.PathUnescape(entry.Name())
		content, readErr := os.ReadFile(filepath.Join(notes, entry.Name()))
		if e = errors.Join(e, readErr); e == nil && len(content) > 0 {
			e = os.WriteFile(place, content, 0)
		} else if e == nil {
			_ = os.Remove(place) // fails if it is in use
		}
		err = errors.Join(err, e)
	}
	return errors.Join(err, os.RemoveAll(notes))
}
