package mounts

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

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

// Unmount detaches the mounts below dir, the last mounted first.
func Unmount(dir string) error {
	for range 100 {
		points := pointsBelow(dir)
		if len(points) == 0 {
			return nil
		}
		for i := len(points) - 1; i >= 0; i-- {
			if err := unix.Unmount(points[i], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
				return fmt.Errorf("unmount %q: %w", points[i], err)
			}
		}
	}
	return fmt.Errorf("mounts below %s do not go away: %v", dir, pointsBelow(dir))
}

func pointsBelow(dir string) []string {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	var points []string
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 4 {
			if point := unescape(f[4]); strings.HasPrefix(point, dir+"/") {
				points = append(points, point)
			}
		}
	}
	return points
}

// unescape undoes mountinfo's \ooo for space, tab, newline and backslash.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
