package daemons

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// settle runs a container of each kind once, so that directories that stay (the view
// of the driver, runc's root) are there before a snapshot.
func (h *host) settle(t *testing.T) testenv.HostState {
	t.Helper()
	h.MustRun(t, testenv.RunOptions{Image: h.Image, Env: gpu(0), Args: []string{"/bin/true"}})
	return h.Snapshot(t, h.RunDir, h.State)
}

func TestAContainerGetsExactlyTheGPUItAsksFor(t *testing.T) {
	eachRelease(t, func(t *testing.T, r release) {
		h := newHost(t, r, testenv.Options{})
		before := h.settle(t)

		got := h.MustRun(t, testenv.RunOptions{Image: h.Image, Env: gpu(1), Args: h.probe()})
		if want := h.wantProbe(1); got != want {
			t.Errorf("by name:\ngot  %q\nwant %q", got, want)
		}
		if r := h.Run(t, testenv.RunOptions{Image: h.Image, Args: []string{"/bin/sh", "-c", "ls /dev | grep nvidia; exit 5"}}); r.Stdout != "" || r.ExitCode != 5 {
			t.Errorf("a container that asks for nothing: %+v", r)
		}
		result := h.Run(t, testenv.RunOptions{Image: h.Image, Env: gpu(9), Args: []string{"/bin/true"}})
		if result.ExitCode == 0 || !strings.Contains(result.Stderr, `"9"`) || strings.Count(strings.TrimSpace(result.Stderr), "\n") != 0 {
			t.Errorf("an unknown GPU: %+v", result)
		}
		t.Logf("an unknown GPU: %s", strings.TrimSpace(result.Stderr))
		h.AssertUnchanged(t, before)
	})
}

// The ways in that ctr has: by the path of the shim, and with a file of options, which
// is the form that Docker and nerdctl send too (type and path only).
func TestEveryWayInOfCtr(t *testing.T) {
	eachRelease(t, func(t *testing.T, r release) {
		h := newHost(t, r, testenv.Options{})
		before := h.settle(t)
		shim := filepath.Join(testenv.ShimDir(), "containerd-shim-nvidia-v2")
		if r.pathRuntime {
			got := h.MustRun(t, testenv.RunOptions{Image: h.Image, Runtime: shim, Env: gpu(2), Args: h.probe()})
			if want := h.wantProbe(2); got != want {
				t.Errorf("by path:\ngot  %q\nwant %q", got, want)
			}
		} else {
			t.Logf("NOT TESTED by path: ctr %s takes names only", r.name)
		}

		own := filepath.Join(h.RunDir, "own")
		file := filepath.Join(h.Dir, "options.toml")
		if err := os.WriteFile(file, []byte(fmt.Sprintf("SystemdCgroup = false\nRoot = %q\n", own)), 0o600); err != nil {
			t.Fatal(err)
		}
		id := h.sleep(t, testenv.RunOptions{Env: gpu(2), Extra: []string{"--runtime-config-path", file}})
		if _, err := os.Stat(filepath.Join(own, h.ID, id, "state.json")); err != nil {
			t.Errorf("the option Root is not followed: %v", err)
		}
		if got := h.Exec(t, id, h.probe()...); got.Stdout != h.wantProbe(2) {
			t.Errorf("with options: %+v", got)
		}
		h.Remove(t, id)
		if err := os.RemoveAll(own); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("Nonesuch = 1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		result := h.Run(t, testenv.RunOptions{Image: h.Image, Env: gpu(2), Args: []string{"/bin/true"}, Extra: []string{"--runtime-config-path", file}})
		if result.ExitCode == 0 || !strings.Contains(result.Stderr, "Nonesuch") {
			t.Errorf("an unknown option: %+v", result)
		}
		h.AssertUnchanged(t, before)
	})
}

// A containerd that is started again finds the shim, and one whose shim was killed
// has `delete` clean up.
func TestAContainerOutlivesContainerdAndIsRemovedWithoutItsShim(t *testing.T) {
	eachRelease(t, func(t *testing.T, r release) {
		h := newHost(t, r, testenv.Options{})
		before := h.settle(t)

		id := h.sleep(t, testenv.RunOptions{Env: gpu(3)})
		h.Restart(t)
		if got := h.Exec(t, id, h.probe()...); got.Stdout != h.wantProbe(3) {
			t.Errorf("exec after a restart:\ngot  %+v\nwant %q", got, h.wantProbe(3))
		}
		h.Remove(t, id)
		h.AssertUnchanged(t, before)

		id = h.sleep(t, testenv.RunOptions{Env: gpu(3)})
		pids := h.ShimPIDs(id)
		if len(pids) != 1 {
			t.Fatalf("shims of %s: %v", id, pids)
		}
		if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		deadline := time.Now().Add(20 * time.Second)
		for {
			if _, err := os.Stat(h.BundleDir(id)); os.IsNotExist(err) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("the bundle is still there, 20 s after the shim was killed")
			}
			time.Sleep(50 * time.Millisecond)
		}
		h.Remove(t, id)
		// A killed shim cannot remove its socket; the next start of that name does.
		sockets, _ := filepath.Glob(filepath.Join(h.RunDir, "s", "*"))
		for _, socket := range sockets {
			if err := os.Remove(socket); err != nil {
				t.Error(err)
			}
		}
		h.AssertUnchanged(t, before)
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

		first := h.NewID()
		pod := []string{"io.containerd.runc.v2.group=" + first}
		h.sleep(t, testenv.RunOptions{ID: first, Annotations: pod})
		second := h.sleep(t, testenv.RunOptions{Env: gpu(0), Annotations: pod})
		third := h.sleep(t, testenv.RunOptions{Env: gpu(2), Annotations: pod})
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
		if got := h.Exec(t, first, "/bin/sh", "-c", "ls /dev | grep nvidia"); got.Stdout != "" {
			t.Errorf("the container without a GPU sees %q", got.Stdout)
		}
		for id, index := range map[string]int{second: 0, third: 2} {
			if got := h.Exec(t, id, h.probe()...); got.Stdout != h.wantProbe(index) {
				t.Errorf("%s:\ngot  %+v\nwant %q", id, got, h.wantProbe(index))
			}
		}
		for _, id := range []string{third, second, first} {
			h.Remove(t, id)
		}
		h.AssertUnchanged(t, before)
	})
}

// A group may have a name of its own; its socket goes with its shim as well.
func TestNothingIsLeftOfAGroupThatIsNamedOtherwise(t *testing.T) {
	eachRelease(t, func(t *testing.T, r release) {
		h := newHost(t, r, testenv.Options{})
		before := h.settle(t)
		group := []string{"io.containerd.runc.v2.group=some-group"}
		first := h.sleep(t, testenv.RunOptions{Env: gpu(1), Annotations: group})
		second := h.sleep(t, testenv.RunOptions{Env: gpu(2), Annotations: group})
		if n := len(h.ShimPIDs(first)) + len(h.ShimPIDs(second)); n != 1 {
			t.Errorf("%d shims, want one", n)
		}
		h.Remove(t, first)
		if got := h.Exec(t, second, h.probe()...); got.Stdout != h.wantProbe(2) {
			t.Errorf("the second container, when the first is gone: %+v", got)
		}
		h.Remove(t, second)
		h.AssertUnchanged(t, before)
	})
}

// A node's containerd is upgraded under its pods: they go on, take part in what the
// new daemon does, and keep the version of the Task API that they were started with.
func TestContainerdIsUpgradedWhileAPodRuns(t *testing.T) {
	for _, from := range releases[1:3] {
		t.Run("from "+from.name, func(t *testing.T) {
			h := newHost(t, from, testenv.Options{})
			h.settle(t)
			pod := h.NewID()
			group := []string{"io.containerd.runc.v2.group=" + pod}
			h.sleep(t, testenv.RunOptions{ID: pod, Env: gpu(0), Annotations: group})
			ids := map[string]int{pod: 0}
			for n, to := range releases[3:] {
				h.Options.DaemonDir = to.daemonDir()
				h.Restart(t)
				id := h.sleep(t, testenv.RunOptions{Env: gpu(n + 1), Annotations: group})
				ids[id] = n + 1
				if version, _ := h.bootstrapOf(t, id); version != 2 {
					t.Errorf("under %s the pod's shim has become version %d", to.name, version)
				}
				for id, index := range ids {
					if got := h.Exec(t, id, h.probe()...); got.Stdout != h.wantProbe(index) {
						t.Errorf("%s under %s:\ngot  %+v\nwant %q", id, to.name, got, h.wantProbe(index))
					}
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
