package testenv

import (
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/moby/sys/mountinfo"
)

// The names of other test processes are not those of this one.
func TestOwned(t *testing.T) {
	stopped, running, other := &Env{ID: "nse-00000001"}, &Env{ID: "nse-00000002"}, &Env{ID: "nse-00000003"}
	for _, e := range []*Env{stopped, running, other} {
		known.Store(e.ID, e)
		defer known.Delete(e.ID)
	}
	for _, e := range []*Env{running, other} {
		live.Store(e.ID, e)
		defer live.Delete(e.ID)
	}
	for text, want := range map[string]bool{
		temp:                                 true,
		temp + "/nvsim1/d/state":             true,
		"/" + filepath.Base(temp) + "/a b":   true,
		temp + "0/nvsim1":                    false,
		"/x" + filepath.Base(temp):           false,
		"/tmp/nt-123/nvsim1":                 false,
		"/sys/fs/cgroup/nse-00000001/c1":     true,
		"/sys/fs/cgroup/x/nse-00000002.left": true,
		temp + "/nse-00000002/state":         true,
		temp + "/nse-00000003/state":         false,
		"/sys/fs/cgroup/nse-00000004":        false,
		temp + "/nse-00000004/root":          true,
		"/run/crun":                          false,
		"/run/criu.kdat":                     false,
		"/run/xtables.lock":                  false,
		"/var/lib/docker/overlay2/a/merged":  false,
	} {
		if got := owned(text, []*Env{running}); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}

// A mount over the system counts, no matter who made it.
func TestMountsOverTheSystemAreSeen(t *testing.T) {
	for point, want := range map[string]bool{
		"/": true, "/etc/passwd": true, "/proc/driver": true, "/usr/lib": true, temp + "/view": true,
		"/proc/sys/fs/binfmt_misc": false, "/run/netns/cni-1": false, "/var/lib/containerd/a": false, "/usrlocal": false,
	} {
		if got := isOwnMount(&mountinfo.Info{Mountpoint: point, Root: "/", Source: "none"}, nil); got != want {
			t.Errorf("%s: %v, want %v", point, got, want)
		}
	}
}

func TestDevicesThatAreSeen(t *testing.T) {
	const character = fs.ModeDevice | fs.ModeCharDevice
	for _, c := range []struct {
		path string
		mode fs.FileMode
		want bool
	}{
		{"/dev/null", character, true}, {"/dev/nvidia0", character, true}, {"/dev/nvidia-caps", fs.ModeDir, true},
		{"/dev/escaped", 0, true}, {"/dev/core", fs.ModeSymlink, true},
		{"/dev/loop7", fs.ModeDevice, false}, {"/dev/disk/by-uuid/1", fs.ModeSymlink, false}, {"/dev/mapper/pool", fs.ModeSymlink, false},
		{"/dev/ttyS0", character, false}, {"/dev/pts/3", character, false}, {"/dev/shm/sem.x", 0, false},
	} {
		if got := isDevice(c.path, c.mode); got != c.want {
			t.Errorf("%s: %v, want %v", c.path, got, c.want)
		}
	}
}
