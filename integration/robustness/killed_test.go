package robustness

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/api"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/mounts"
)

// kills is how often a shim is killed at a random moment of Create.
const kills = 20

// kill sends a signal to processes that the caller found to be shims.
func kill(t *testing.T, sig unix.Signal, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && strings.HasPrefix(filepath.Base(exe), "containerd-shim-") {
			if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				t.Error(err)
			}
		}
		unix.Close(fd)
	}
}

// The shim is killed from outside at a random moment. If the container ran nevertheless, it ran
// with the mask.
func TestT65AShimKilledAtARandomMomentOfACreateLeavesNothing(t *testing.T) {
	h := newHost(t, simhost.Options{}, false)
	h.MustRun(t, h.run(t, "warm", 0, "true"))
	libraries := countEntries(t, h)
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	ran, mountless := 0, 0
	client := api.Connect(t, h.Env)
	for i := range kills {
		cold := i%3 == 0
		if cold {
			if err := mounts.RemoveAll(h.Driver.StateDir); err != nil {
				t.Fatal(err)
			}
		}
		id := h.NewID()
		h.Create(t, h.run(t, id, i%4, "sleep 60"))
		before := h.snapshot(t)
		started := make(chan error, 1)
		go func() {
			_, err := client.Create(t.Context(), id)
			if err == nil {
				err = client.Start(t.Context(), id)
			}
			started <- err
		}()
		testenv.Await(t, "there is a shim", func() bool { return len(h.ShimPIDs(id)) > 0 })
		wait := time.Duration(random.IntN(150)) * time.Millisecond
		time.Sleep(wait)
		kill(t, unix.SIGKILL, h.ShimPIDs(id)...)
		startErr := <-started
		if startErr != nil && strings.Contains(startErr.Error(), "start failed: ") {
			// `start` was killed just when it had started the shim, which containerd then does not know.
			kill(t, unix.SIGKILL, h.ShimPIDs(id)...)
		}
		h.remove(t, id)
		if mark := h.mark(t, id); mark != nil {
			ran++
			if string(mark) != masked {
				t.Errorf("killed after %v: the container ran and saw %q in the masked directory", wait, mark)
			}
		}
		views := h.checkState(t)
		if len(views) == 0 {
			mountless++
		}
		if len(views) > 1 {
			t.Errorf("killed after %v: there are %d views", wait, len(views))
		}
		// What a cold Create makes for later containers is not a leftover.
		before.AssertUnchanged(t, h.Driver.StateDir, orphaned)
		removeCgroups(t, h, id)
		if t.Failed() {
			t.Fatalf("iteration %d, seed %d, killed after %v (%v)", i, seed, wait, startErr)
		}
	}
	t.Logf("%d creates were killed (seed %d): %d containers had started, %d had made no view yet", kills, seed, ran, mountless)
	if got := h.MustRun(t, h.run(t, "last", 2, look)); got != h.expect(2) {
		t.Errorf("after all the kills a container sees %q, want %q", got, h.expect(2))
	}
	if got := countEntries(t, h); got != libraries {
		t.Errorf("after all the kills the view has %d entries, want %d", got, libraries)
	}
}

// orphaned ignores cgroups in a snapshot: when a shim dies, so does its `runc create`; if that has
// made its cgroups but not yet its state, they stay, empty, under the stock shim too.
const orphaned = "cgroups: + "

// removeCgroups removes the cgroups of a container, in which no process may be.
func removeCgroups(t *testing.T, h *host, id string) {
	t.Helper()
	for _, pattern := range []string{"*", ""} {
		left, err := filepath.Glob(filepath.Join("/sys/fs/cgroup", pattern, h.ID, id))
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range left {
			if err := os.Remove(dir); err != nil {
				t.Errorf("a cgroup was left that is in use: %v", err)
			}
		}
	}
}

// countEntries counts the entries of the only view.
func countEntries(t *testing.T, h *host) int {
	t.Helper()
	views := h.checkState(t)
	if len(views) != 1 {
		t.Fatalf("there are the views %v, want one", views)
	}
	n := 0
	err := filepath.WalkDir(fmt.Sprintf("/proc/%d/root%s", h.PID(), views[0]), func(string, fs.DirEntry, error) error {
		n++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// The container is created, with or without its mask, and then the shim is killed. Nothing can
// start the container then, whether or not containerd has noticed.
func TestT30AContainerWhoseShimDiesBetweenCreateAndStartNeverRuns(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := newHost(t, simhost.Options{Env: testenv.Options{Cgroup: version}}, false)
		h.MustRun(t, h.run(t, "warm", 0, "true"))
		before := h.snapshot(t)
		client := api.Connect(t, h.Env)
		for name, noticed := range map[string]bool{"started at once": false, "started when containerd has noticed": true} {
			t.Run(name, func(t *testing.T) {
				id := h.NewID()
				h.Create(t, h.run(t, id, 1, "sleep 60"))
				t.Cleanup(func() { h.remove(t, id) })
				pid, err := client.Create(t.Context(), id)
				if err != nil {
					t.Fatal(err)
				}
				if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err != nil || !strings.HasPrefix(string(comm), "runc") {
					t.Fatalf("the waiting process is %q (%v)", comm, err)
				}
				shims := h.ShimPIDs(id)
				if len(shims) != 1 {
					t.Fatalf("shims of the container: %v", shims)
				}
				kill(t, unix.SIGKILL, shims...)
				if noticed {
					testenv.Await(t, "containerd notices", func() bool {
						return regexp.MustCompile(`"shim disconnected".* id=` + id + `\b`).MatchString(h.Log())
					})
				}
				if err := client.Start(t.Context(), id); err == nil {
					t.Error("the task was started without its shim")
				}
				h.remove(t, id)
				if mark := h.mark(t, id); mark != nil {
					t.Errorf("the container ran and saw %q", mark)
				}
				before.AssertUnchanged(t)
			})
		}
	})
}

// The death of a shim ends its container, as with the stock shim; others keep theirs, and the
// driver view serves the next ones without being made again.
func TestAShimKilledWhileItsContainerRunsTakesNothingElseWithIt(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := newHost(t, simhost.Options{Env: testenv.Options{Cgroup: version}}, false)
		neighbour := h.run(t, "neighbour", 0, "sleep 600")
		neighbour.Detach = true
		h.Run(t, neighbour)
		h.settle(t)
		views := h.checkState(t)
		before := h.snapshot(t)
		sockets := map[string]int{}
		for _, runtime := range []string{testenv.StockRuntime, testenv.DefaultRuntime, testenv.DefaultRuntime} {
			victim := h.run(t, h.NewID(), 1, "sleep 600")
			victim.Detach, victim.Runtime = true, runtime
			h.Run(t, victim)
			count := socketsOf(t, h)
			kill(t, unix.SIGKILL, h.ShimPIDs(victim.ID)...)
			h.remove(t, victim.ID)
			before.AssertUnchanged(t)
			sockets[runtime] = socketsOf(t, h) - count
		}
		// The file of its socket is all that a killed shim leaves, the stock one too.
		if sockets[testenv.DefaultRuntime] > sockets[testenv.StockRuntime] {
			t.Errorf("sockets that killed shims leave: %v", sockets)
		}
		if got := h.Exec(t, "neighbour", "sh", "-c", look).Output; got != h.expect(0) {
			t.Errorf("the neighbour sees %q, want %q", got, h.expect(0))
		}
		if got := h.MustRun(t, h.run(t, "next", 1, look)); got != h.expect(1) {
			t.Errorf("the next container sees %q, want %q", got, h.expect(1))
		}
		if got := h.checkState(t); !slices.Equal(got, views) {
			t.Errorf("the views are %v, they were %v", got, views)
		}
		h.Remove(t, "neighbour")
	})
}

// SIGTERM ends a shim and its container, as it does with the stock one, and nothing is left.
func TestT65SIGTERMEndsAShimAndItsContainer(t *testing.T) {
	h := newHost(t, simhost.Options{}, false)
	h.MustRun(t, h.run(t, "warm", 0, "true"))
	before := h.snapshot(t)
	for _, runtime := range []string{testenv.StockRuntime, testenv.DefaultRuntime} {
		o := h.run(t, h.NewID(), 0, "sleep 600")
		o.Runtime, o.Detach = runtime, true
		h.Run(t, o)
		shims := h.ShimPIDs(o.ID)
		if len(shims) != 1 {
			t.Fatalf("%s: shims %v", runtime, shims)
		}
		kill(t, unix.SIGTERM, shims...)
		testenv.Await(t, runtime+": no shim and no task", func() bool {
			return len(h.ShimPIDs(o.ID)) == 0 && h.Ctr(t, "tasks", "ls", "-q") == ""
		})
		h.remove(t, o.ID)
		before.AssertUnchanged(t)
	}
}
