package mounts

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// RemoveAll detaches what is mounted below dir, for example a shim's state directory, and
// removes dir. Nothing that is mounted there loses a file.
func RemoveAll(dir string) error {
	if err := Unmount(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// TempDir returns a new directory, which goes with the test and what is mounted below it.
func TempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "nvgpu")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Unmount detaches the mounts below dir, the last mounted first.
func Unmount(dir string) error {
	others := func(m *mountinfo.Info) (skip, stop bool) { return !strings.HasPrefix(m.Mountpoint, dir+"/"), false }
	for range 100 {
		points, err := mountinfo.GetMounts(others)
		if err != nil || len(points) == 0 {
			return err
		}
		for _, point := range slices.Backward(points) {
			err := unix.Unmount(point.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
			if err != nil && !errors.Is(err, unix.EINVAL) {
				return fmt.Errorf("unmount %q: %w", point.Mountpoint, err)
			}
		}
	}
	return fmt.Errorf("mounts below %s do not go away", dir)
}
