package main

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// administrator is procfs' status of a daemon that may do everything.
const administrator = "Name:\tx\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nCapBnd:\t000001ffffffffff\nCapEff:\t000001ffffffffff\n"

// disguises turn a daemon of the fixture into a process that has its name only.
var disguises = []func(t *testing.T, dir string){
	func(t *testing.T, dir string) { // another user's
		write(t, filepath.Join(dir, "status"), strings.Replace(administrator, "Uid:\t0\t0", "Uid:\t65534\t0", 1), 0o644)
	},
	func(t *testing.T, dir string) { // root of a container, by default
		write(t, filepath.Join(dir, "status"), strings.Replace(administrator, "CapEff:\t000001ffffffffff", "CapEff:\t00000000a80425fb", 1), 0o644)
	},
	func(t *testing.T, dir string) { // root of a user namespace
		if err := os.Remove(filepath.Join(dir, "ns/user")); err != nil {
			t.Fatal(err)
		}
		link(t, "user:[2]", filepath.Join(dir, "ns/user"))
	},
	func(t *testing.T, dir string) { // one that is gone, or hidden
		if err := os.Remove(filepath.Join(dir, "status")); err != nil {
			t.Fatal(err)
		}
	},
}

func TestAProgramIsNotExecutedBecauseAProcessCallsItselfContainerd(t *testing.T) {
	for i, change := range disguises {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			n := healthy(t)
			n.containerd = ""
			fixtureProcess(t, n, 10, "/tmp/evil/containerd", []string{"PATH=/tmp/evil"}, "--config=/tmp/evil/config.toml")
			change(t, n.proc.of("10", ""))
			execute := n.execute
			n.execute = func(ctx context.Context, program string, args ...string) (string, error) {
				if strings.HasPrefix(program, "/tmp/evil") {
					t.Errorf("executed %s", program)
				}
				return execute(ctx, program, args...)
			}
			n.check(t.Context())
			if strings.Contains(n.path+n.containerdConfig, "evil") {
				t.Errorf("PATH %s, configuration %s", n.path, n.containerdConfig)
			}
		})
	}
}

func TestRootMayAdministerTheHostByTheKernelsOwnProcfs(t *testing.T) {
	var caps [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0]); err != nil {
		t.Fatal(err)
	}
	want := os.Geteuid() == 0 && caps[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
	if got := hostProcfs.administers("/proc/self"); got != want {
		t.Errorf("this process: %v, want %v", got, want)
	}
}
