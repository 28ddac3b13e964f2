package daemons

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// settle runs a container of each kind once, so that directories that stay (the view
// of the driver, runc's root) are there before a snapshot.
func (h *host) settle(t *testing.T) testenv.HostState {
	t.Helper()
	h.MustRun(t, testenv.RunOptions{Env: gpu(0), Args: []string{"/bin/true"}})
	return h.Snapshot(t, h.RunDir, h.State)
}

func TestAContainerGetsExactlyTheGPUItAsksFor(t *testing.T) {
	eachRelease(t, func(t *testing.T, r release) {
		h := newHost(t, r, testenv.Options{})
		before := h.settle(t)

		h.check(t, h.MustRun(t, testenv.RunOptions{Env: gpu(1), Args: h.ProbeArgs()}), 1)
		if r := h.Run(t, testenv.RunOptions{Args: []string{"/bin/sh", "-c", "ls /dev | grep nvidia; exit 5"}}); r.Output != "" || r.ExitCode != 5 {
			t.Errorf("a container that asks for nothing: %+v", r)
		}
		result := h.Run(t, testenv.RunOptions{Env: gpu(9), Args: []string{"/bin/true"}})
		if result.ExitCode == 0 || !strings.Contains(result.Error, `"9"`) || strings.Count(strings.TrimSpace(result.Error), "\n") != 0 {
			t.Errorf("an unknown GPU: %+v", result)
		}
		t.Logf("an unknown GPU: %s", strings.TrimSpace(result.Error))
		before.AssertUnchanged(t)
	})
}

// The ways to start the shim from ctr: by its path, and with a file of options, which is also the
// form that Docker and nerdctl send (type and path only).
func TestEveryWayInOfCtr(t *testing.T) {
	eachRelease(t, func(t *testing.T, r release) {
		h := newHost(t, r, testenv.Options{})
		before := h.settle(t)
		shim := filepath.Join(testenv.ShimDir(), "containerd-shim-nvidia-v2")
		if r.pathRuntime {
			h.check(t, h.MustRun(t, testenv.RunOptions{Runtime: shim, Env: gpu(2), Args: h.ProbeArgs()}), 2)
		} else {
			t.Logf("NOT TESTED by path: ctr %s takes names only", r.name)
		}

		own := filepath.Join(h.RunDir, "own")
		file := filepath.Join(h.Dir, "options.toml")
		if err := os.WriteFile(file, []byte(fmt.Sprintf("SystemdCgroup = false\nRoot = %q\n", own)), 0o600); err != nil {
			t.Fatal(err)
		}
		id := h.Start(t, testenv.RunOptions{Env: gpu(2), Extra: []string{"--runtime-config-path", file}})
		if _, err := os.Stat(filepath.Join(own, h.ID, id, "state.json")); err != nil {
			t.Errorf("the option Root is not followed: %v", err)
		}
		h.check(t, h.Exec(t, id, h.ProbeArgs()...).Output, 2)
		h.Remove(t, id)
		if err := os.RemoveAll(own); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("Nonesuch = 1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		result := h.Run(t, testenv.RunOptions{Env: gpu(2), Args: []string{"/bin/true"}, Extra: []string{"--runtime-config-path", file}})
		if result.ExitCode == 0 || !strings.Contains(result.Error, "Nonesuch") {
			t.Errorf("an unknown option: %+v", result)
		}
		before.AssertUnchanged(t)
	})
}

// A containerd that is started again finds the shim, and one whose shim was killed
// has `delete` clean up.
func TestAContainerOutlivesContainerdAndIsRemovedWithoutItsShim(t *testing.T) {
	eachRelease(t, func(t *testing.T, r release) {
		h := newHost(t, r, testenv.Options{})
		before := h.settle(t)

		id := h.Start(t, testenv.RunOptions{Env: gpu(3)})
		h.Restart(t)
		h.check(t, h.Exec(t, id, h.ProbeArgs()...).Output, 3)
		h.Remove(t, id)
		before.AssertUnchanged(t)

		id = h.Start(t, testenv.RunOptions{Env: gpu(3)})
		pids := h.ShimPIDs(id)
		if len(pids) != 1 {
			t.Fatalf("shims of %s: %v", id, pids)
		}
		if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		testenv.Await(t, "the bundle is removed after the shim was killed", func() bool {
			_, err := os.Stat(h.BundleDir(id))
			return os.IsNotExist(err)
		})
		h.Remove(t, id)
		// A killed shim cannot remove its socket; the next start of that name does.
		sockets, _ := filepath.Glob(filepath.Join(h.RunDir, "s", "*"))
		for _, socket := range sockets {
			if err := os.Remove(socket); err != nil {
				t.Error(err)
			}
		}
		before.AssertUnchanged(t)
	})
}

// bootstrapOf is what containerd noted about a container's shim.
func (h *host) bootstrapOf(t *testing.T, id string) (version int, address string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(h.BundleDir(id), "bootstrap.json"))
	if os.IsNotExist(err) {
		data, err = os.ReadFile(filepath.Join(h.BundleDir(id), "address"))
		if err != nil {
			t.Fatal(err)
		}
		return 2, string(data)
	}
	if err != nil {
		t.Fatal(err)
	}
	var boot struct {
		Version int    `json:"version"`
		Address string `json:"address"`
	}
	if err := json.Unmarshal(data, &boot); err != nil {
		t.Fatal(err)
	}
	return boot.Version, boot.Address
}

func TestTheContainersOfAPodShareOneShimAndNotTheirGPUs(t *testing.T) {
	eachRelease(t, func(t *testing.T, r release) {
		h := newHost(t, r, testenv.Options{})
		before := h.settle(t)

		// The group's name need not be a container's.
		pod := []string{"io.containerd.runc.v2.group=some-group"}
		first := h.Start(t, testenv.RunOptions{Annotations: pod})
		second := h.Start(t, testenv.RunOptions{Env: gpu(0), Annotations: pod})
		third := h.Start(t, testenv.RunOptions{Env: gpu(2), Annotations: pod})
		if pids := h.ShimPIDs(first); len(pids) != 1 {
			t.Errorf("shims of the pod: %v, want one", pids)
		}
		want := 2
		if r.bootstrap {
			want = 3
		}
		_, address := h.bootstrapOf(t, first)
		for _, id := range []string{first, second, third} {
			if version, at := h.bootstrapOf(t, id); version != want || at != address {
				t.Errorf("%s: shim of version %d at %s, want %d at %s", id, version, at, want, address)
			}
		}
		for _, id := range []string{second, third} {
			if pids := h.ShimPIDs(id); len(pids) != 0 {
				t.Errorf("%s has shims of its own: %v", id, pids)
			}
		}
		h.Restart(t)
		if got := h.Exec(t, first, "/bin/sh", "-c", "ls /dev | grep nvidia"); got.Output != "" {
			t.Errorf("the container without a GPU sees %q", got.Output)
		}
		for id, index := range map[string]int{second: 0, third: 2} {
			h.check(t, h.Exec(t, id, h.ProbeArgs()...).Output, index)
		}
		for _, id := range []string{third, second, first} {
			h.Remove(t, id)
		}
		before.AssertUnchanged(t)
	})
}

// A node's containerd is upgraded under its pods: they go on, take part in what the
// new daemon does.
func TestContainerdIsUpgradedWhileAPodRuns(t *testing.T) {
	for _, from := range releases[1:3] {
		t.Run("from "+from.name, func(t *testing.T) {
			h := newHost(t, from, testenv.Options{})
			h.settle(t)
			pod := h.NewID()
			group := []string{"io.containerd.runc.v2.group=" + pod}
			h.Start(t, testenv.RunOptions{ID: pod, Env: gpu(0), Annotations: group})
			ids := map[string]int{pod: 0}
			for n, to := range releases[3:] {
				h.Options.DaemonDir = to.daemonDir()
				h.Restart(t)
				id := h.Start(t, testenv.RunOptions{Env: gpu(n + 1), Annotations: group})
				ids[id] = n + 1
				for id, index := range ids {
					h.check(t, h.Exec(t, id, h.ProbeArgs()...).Output, index)
				}
			}
			for id := range ids {
				want := 0
				if id == pod {
					want = 1
				}
				if pids := h.ShimPIDs(id); len(pids) != want {
					t.Errorf("shims of %s: %v, want %d", id, pids, want)
				}
			}
			for id := range ids {
				h.Remove(t, id)
			}
		})
	}
}

// A node's containerd is downgraded and upgraded again over a container with a GPU, which goes on.
// Containerd 1.7.36 kills those of the stock shim of 2.4.2.
func TestContainerdIsDowngradedAndUpgradedAgain(t *testing.T) {
	newest := releases[len(releases)-1]
	for _, older := range releases[1:3] {
		t.Run("to "+older.name, func(t *testing.T) {
			first := newest
			first.config = older.config // one that both read
			h := newHost(t, first, testenv.Options{})
			h.settle(t)
			id := h.Start(t, testenv.RunOptions{Env: gpu(2)})
			pids := h.ShimPIDs(id)
			for n, to := range []release{older, newest} {
				h.Options.DaemonDir = to.daemonDir()
				h.Restart(t)
				h.check(t, h.Exec(t, id, h.ProbeArgs()...).Output, 2)
				h.check(t, h.MustRun(t, testenv.RunOptions{Env: gpu(n), Args: h.ProbeArgs()}), n)
			}
			if now := h.ShimPIDs(id); len(now) != 1 || !slices.Equal(now, pids) {
				t.Errorf("shims before: %v, after: %v", pids, now)
			}
			h.Remove(t, id)
		})
	}
}
