package integration

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// robSteps are the steps of a create at which gpuinject/fault can end or fail the
// shim, in their order: those of gpuinject.Inject, "create" just before runc is
// called, what is done while it runs, and "mask" just before the mask is attached.
var robSteps = []string{"isolation", "image", "view", "links", "linker", "edit", "create", "record", "mask-build", "mask"}

// robMeanwhile are the steps while runc is at work. The death of the shim takes a `runc
// create` with it; one that has made its cgroups and not yet its state leaves them,
// empty, under the stock shim too: robOrphaned in a snapshot.
var robMeanwhile = []string{"record", "mask-build"}

const robOrphaned = "cgroups: + "

// robCycles is how many containers the test for growth creates and deletes.
const robCycles = 500

// robKills is how often a shim is killed at a random moment of a create.
const robKills = 30

// robImage has a loader's cache, so that every step of an injection has work.
const robImage = "usrlib64"

// robFaultyShim is the shim with fault points, built once for the test binary.
var robFaultyShim = sync.OnceValues(func() ([]byte, error) {
	root, err := testenv.ModuleRoot()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "faultshim")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "shim")
	cmd := exec.Command("go", "build", "-trimpath", "-tags", "no_grpc,shimfault", "-ldflags", "-s -w", "-o", out, "./cmd/containerd-shim-nvidia-v2")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the shim with fault points: %w\n%s", err, msg)
	}
	return os.ReadFile(out)
})

// robHost is a host on which a shim can be made to fail, with a directory that
// containers leave their marks in.
type robHost struct {
	*host
	// marks is mounted on /marks in the containers that robRun describes.
	marks string
	// faultFile holds NVIDIA_SHIM_FAULT for the next shim that is started.
	faultFile string
}

// robNewHost starts a host. With faults, the shim that containerd finds is a script
// that puts the fault of the moment into the environment and becomes the shim with
// fault points: containerd need not be restarted for each.
func robNewHost(t *testing.T, o hostOptions, faults bool) *robHost {
	t.Helper()
	h := &robHost{marks: t.TempDir()}
	if faults {
		shim, err := robFaultyShim()
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		h.faultFile = filepath.Join(dir, "fault")
		real := filepath.Join(dir, "real", "containerd-shim-nvidia-v2")
		robWrite(t, real, shim, 0o755)
		script := fmt.Sprintf("#!/bin/sh\nNVIDIA_SHIM_FAULT=$(cat %s 2>/dev/null)\nexport NVIDIA_SHIM_FAULT\nexec %s \"$@\"\n", h.faultFile, real)
		robWrite(t, filepath.Join(dir, "containerd-shim-nvidia-v2"), []byte(script), 0o755)
		o.testenv.ShimDir = dir
	}
	h.host = newHost(t, o)
	return h
}

func robWrite(t *testing.T, path string, data []byte, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, mode); err != nil {
		t.Fatal(err)
	}
}

// fault sets what happens to the next shim; "" is nothing.
func (h *robHost) fault(t *testing.T, spec string) {
	t.Helper()
	robWrite(t, h.faultFile, []byte(spec), 0o644)
}

// run is a container that leaves a mark with what it sees of the masked directory,
// complete or not at all, and then does the rest.
func (h *robHost) run(t *testing.T, id string, gpu int, rest string) testenv.RunOptions {
	t.Helper()
	return testenv.RunOptions{
		ID: id, Image: h.image(t, robImage),
		Env:    []string{"NVIDIA_VISIBLE_DEVICES=" + strconv.Itoa(gpu)},
		Mounts: []string{"type=bind,src=" + h.marks + ",dst=/marks,options=rbind:rw"},
		Args:   []string{"sh", "-c", "ls /proc/driver >/marks/." + id + "; mv /marks/." + id + " /marks/" + id + "; " + rest},
	}
}

// mark is what the container left, nil where it never ran.
func (h *robHost) mark(t *testing.T, id string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(h.marks, id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// settle waits until the containers that run have left their marks and do the rest:
// before, they are other processes.
func (h *robHost) settle(t *testing.T) {
	t.Helper()
	marking := func() bool {
		return slices.ContainsFunc(h.snapshot(t).Section("processes"), func(s string) bool { return strings.Contains(s, "/marks/") || s == "runc init" })
	}
	for deadline := time.Now().Add(10 * time.Second); marking() && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
	}
}

// robMasked is what a container sees of the masked directory.
const robMasked = "gpus\nparams\nversion\n"

// robSeen prints what a container has of the driver: robExpect says what that is.
const robSeen = `ls /dev | grep nvidia; ls /proc/driver/gpus; /test/cucount | grep -v "^libcuda "`

// expect is what robSeen prints in a container that has the GPU alone.
func (h *robHost) expect(gpu int) string {
	g := h.Driver.GPUs[gpu]
	nodes := []string{fmt.Sprintf("nvidia%d", g.Minor), "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}
	slices.Sort(nodes)
	return strings.Join(nodes, "\n") + "\n" + g.BusID + "\n" + "driver 13000\ncount 1\n0 " + g.UUID + "\n"
}

// snapshot is the host with the directories that a container may leave something
// in: bundles, containerd's and the shim's own state.
func (h *robHost) snapshot(t *testing.T) testenv.HostState {
	t.Helper()
	return h.Snapshot(t, h.State, filepath.Join(h.Root, "io.containerd.runtime.v2.task"), h.Driver.StateDir)
}

// unchanged asserts that the host is as before, but for what but names. Shims end
// a moment after containerd has answered, so it looks again for ten seconds.
func (h *robHost) unchanged(t *testing.T, before testenv.HostState, but ...string) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		var left []string
		for line := range strings.Lines(before.Diff(h.snapshot(t))) {
			if !h.elsewhere(line) && !slices.ContainsFunc(but, func(s string) bool { return strings.Contains(line, s) }) {
				left = append(left, line)
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("the host is not as it was:\n%s", strings.Join(left, ""))
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// elsewhere tells mounts in temporary directories, and cgroups, of other tests,
// which come and go while this one runs.
func (h *robHost) elsewhere(line string) bool {
	section, rest, _ := strings.Cut(line, ": ")
	if section == "cgroups" {
		return !strings.Contains(line, h.ID)
	}
	return strings.HasSuffix(section, "mounts") && len(rest) > 2 && strings.HasPrefix(rest[2:], os.TempDir()+"/") &&
		!strings.Contains(line, h.Driver.Dir) && !strings.Contains(line, h.ID)
}

// remove deletes task and container of a shim that was killed a moment ago:
// containerd needs a moment to notice.
func (h *robHost) remove(t *testing.T, id string) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		_, _, _ = h.CtrErr("tasks", "rm", "--force", id)
		_, _, err := h.CtrErr("containers", "rm", id)
		if err == nil || strings.Contains(err.Error(), "not found") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// robKill sends a signal to processes that the caller found to be shims.
func robKill(t *testing.T, sig unix.Signal, pids ...int) {
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

// checkState asserts that the state directory holds nothing but the cache of what
// was learned about the driver, the lock, and whole views. A view's directory on
// which nothing is mounted yet may be there too: the next create mounts on it.
func (h *robHost) checkState(t *testing.T) (views []string) {
	t.Helper()
	entries, err := os.ReadDir(h.Driver.StateDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			t.Errorf("%s was left in the state directory", e.Name())
		}
	}
	roots, err := filepath.Glob(filepath.Join(h.Driver.StateDir, "view", "*", "root"))
	if err != nil {
		t.Fatal(err)
	}
	table := h.MountTable(t)
	for _, root := range roots {
		switch n := strings.Count(table, " "+root+" "); {
		case n > 1:
			t.Errorf("%d mounts lie on each other at %s", n, root)
		case n == 1:
			// Read where containerd is: it may have a mount namespace of its own.
			seen := fmt.Sprintf("/proc/%d/root%s", h.PID(), root)
			if _, err := os.Stat(filepath.Join(seen, "lib64", "libcuda.so.1")); err != nil {
				t.Errorf("the view is not whole: %v", err)
			}
			views = append(views, root)
		default:
			if rest, err := os.ReadDir(root); err != nil || len(rest) > 0 {
				t.Errorf("%s is no mount and holds %v (%v)", root, rest, err)
			}
		}
	}
	return views
}

// robInvoke calls a method of containerd's API, over gRPC's wire form: the product
// needs no gRPC library, so its tests bring none.
func robInvoke(h *testenv.Env, method string, req, resp proto.Message) error {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", h.Address)
		},
		Protocols: new(http.Protocols),
	}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	body, err := proto.Marshal(req)
	if err != nil {
		return err
	}
	// One byte says that it is not compressed, four give the length.
	frame := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://containerd/"+method, bytes.NewReader(frame))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/grpc")
	r.Header.Set("Te", "trailers")
	r.Header.Set("Containerd-Namespace", h.ID)
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	status, message := answer.Trailer.Get("Grpc-Status"), answer.Trailer.Get("Grpc-Message")
	if status == "" {
		status, message = answer.Header.Get("Grpc-Status"), answer.Header.Get("Grpc-Message")
	}
	if status != "0" {
		if text, err := url.PathUnescape(message); err == nil {
			message = text
		}
		return fmt.Errorf("%s: code %s: %s", method, status, message)
	}
	if len(data) < 5 {
		return fmt.Errorf("%s: an answer of %d bytes", method, len(data))
	}
	return proto.Unmarshal(data[5:], resp)
}

// robCreateTask creates the task of a container without starting it, which ctr
// cannot, and returns its process.
func robCreateTask(h *testenv.Env, id string) (uint32, error) {
	var mounts snapshotsapi.MountsResponse
	err := robInvoke(h, "containerd.services.snapshots.v1.Snapshots/Mounts", &snapshotsapi.MountsRequest{Snapshotter: h.Options.Snapshotter, Key: id}, &mounts)
	if err != nil {
		return 0, err
	}
	var task tasksapi.CreateTaskResponse
	err = robInvoke(h, "containerd.services.tasks.v1.Tasks/Create", &tasksapi.CreateTaskRequest{ContainerID: id, Rootfs: mounts.Mounts}, &task)
	return task.Pid, err
}

func robStartTask(h *testenv.Env, id string) error {
	return robInvoke(h, "containerd.services.tasks.v1.Tasks/Start", &tasksapi.StartRequest{ContainerID: id}, &tasksapi.StartResponse{})
}

// T31, and T30 for every step: whatever goes wrong, nothing of the container has
// run, nothing of it is left, and it can be created again.
func TestACreateThatFailsOrDiesAtAnyStepLeavesNothing(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := robNewHost(t, hostOptions{testenv: testenv.Options{Cgroup: version}}, true)
		// The view is there before and after.
		h.fault(t, "")
		if got := h.MustRun(t, h.run(t, "warm", 0, robSeen)); got != h.expect(0) {
			t.Fatalf("without a fault the container sees %q, want %q", got, h.expect(0))
		}
		for _, step := range robSteps {
			for _, action := range []string{"error", "kill"} {
				t.Run(step+" "+action, func(t *testing.T) {
					id := h.NewID()
					h.Create(t, h.run(t, id, 1, robSeen))
					t.Cleanup(func() { h.remove(t, id) })
					before := h.snapshot(t)

					h.fault(t, step+"="+action)
					r := h.StartTask(t, id)
					h.fault(t, "")
					if r.ExitCode == 0 {
						t.Errorf("the container started; it printed %q", r.Stdout)
					}
					if want := "fault injected at step " + step; action == "error" && !strings.Contains(r.Stderr, want) {
						t.Errorf("the error is %q, want %q in it", r.Stderr, want)
					}
					if strings.Count(strings.TrimSpace(r.Stderr), "\n") > 0 {
						t.Errorf("the error has several lines:\n%s", r.Stderr)
					}
					if mark := h.mark(t, id); mark != nil {
						t.Errorf("the container ran and saw %q", mark)
					}
					var ignore []string
					if action == "kill" && slices.Contains(robMeanwhile, step) {
						ignore = append(ignore, robOrphaned)
					}
					h.unchanged(t, before, ignore...)
					robRemoveCgroups(t, h, id)
					if tasks := h.Ctr(t, "tasks", "ls", "-q"); tasks != "" {
						t.Errorf("containerd still has the tasks %q", tasks)
					}
					h.checkState(t)

					if r := h.StartTask(t, id); r.Stdout != h.expect(1) || r.ExitCode != 0 {
						t.Errorf("created again it sees %q (%s), want %q", r.Stdout, r.Stderr, h.expect(1))
					}
					if mark := h.mark(t, id); string(mark) != robMasked {
						t.Errorf("created again it sees %q in the masked directory, want %q", mark, robMasked)
					}
					h.unchanged(t, before)
				})
			}
		}
	})
}

// The shim is killed from outside wherever it happens to be. Where the container
// came to run all the same, it ran under the mask.
func TestAShimKilledAtARandomMomentOfACreateLeavesNothing(t *testing.T) {
	h := robNewHost(t, hostOptions{}, false)
	h.MustRun(t, h.run(t, "warm", 0, "true"))
	libraries := robCount(t, h)
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	ran, mountless := 0, 0
	for i := range robKills {
		cold := i%3 == 0
		if cold {
			state, err := view.OpenState(h.Driver.StateDir)
			if err != nil {
				t.Fatal(err)
			}
			if err := state.Remove(); err != nil {
				t.Fatal(err)
			}
		}
		id := h.NewID()
		h.Create(t, h.run(t, id, i%4, "sleep 60"))
		before := h.snapshot(t)
		started := make(chan error, 1)
		go func() {
			_, err := robCreateTask(h.Env, id)
			if err == nil {
				err = robStartTask(h.Env, id)
			}
			started <- err
		}()
		deadline := time.Now().Add(20 * time.Second)
		for len(h.ShimPIDs(id)) == 0 && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
		wait := time.Duration(random.IntN(150)) * time.Millisecond
		time.Sleep(wait)
		robKill(t, unix.SIGKILL, h.ShimPIDs(id)...)
		startErr := <-started
		h.remove(t, id)
		if mark := h.mark(t, id); mark != nil {
			ran++
			if string(mark) != robMasked {
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
		// What a cold create made for those that follow is not left behind.
		h.unchanged(t, before, h.Driver.StateDir, robOrphaned)
		robRemoveCgroups(t, h, id)
		if t.Failed() {
			t.Fatalf("iteration %d, seed %d, killed after %v (%v)", i, seed, wait, startErr)
		}
	}
	t.Logf("%d creates were killed (seed %d): %d containers had started, %d had made no view yet", robKills, seed, ran, mountless)
	if got := h.MustRun(t, h.run(t, "last", 2, robSeen)); got != h.expect(2) {
		t.Errorf("after all the kills a container sees %q, want %q", got, h.expect(2))
	}
	if got := robCount(t, h); got != libraries {
		t.Errorf("after all the kills the view has %d entries, want %d", got, libraries)
	}
}

// robRemoveCgroups removes the cgroups of a container, in which no process may be.
func robRemoveCgroups(t *testing.T, h *robHost, id string) {
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

// robCount counts the entries of the only view.
func robCount(t *testing.T, h *robHost) int {
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

// T30: created, the mask attached or not, and then the shim is gone. Nobody can
// start the container then, whether or not containerd has noticed.
func TestAContainerWhoseShimDiesBetweenCreateAndStartNeverRuns(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := robNewHost(t, hostOptions{testenv: testenv.Options{Cgroup: version}}, false)
		h.MustRun(t, h.run(t, "warm", 0, "true"))
		before := h.snapshot(t)
		for name, pause := range map[string]time.Duration{"started at once": 0, "started when containerd has noticed": 2 * time.Second} {
			t.Run(name, func(t *testing.T) {
				id := h.NewID()
				h.Create(t, h.run(t, id, 1, "sleep 60"))
				t.Cleanup(func() { h.remove(t, id) })
				pid, err := robCreateTask(h.Env, id)
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
				robKill(t, unix.SIGKILL, shims...)
				time.Sleep(pause)
				if err := robStartTask(h.Env, id); err == nil {
					t.Error("the task was started without its shim")
				}
				h.remove(t, id)
				if mark := h.mark(t, id); mark != nil {
					t.Errorf("the container ran and saw %q", mark)
				}
				h.unchanged(t, before)
			})
		}
	})
}

// The death of a shim ends its container, as with the stock shim; others keep
// theirs, and the driver view serves the next ones without being made again.
func TestAShimKilledWhileItsContainerRunsTakesNothingElseWithIt(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := robNewHost(t, hostOptions{testenv: testenv.Options{Cgroup: version}}, false)
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
			count := robSockets(t, h)
			robKill(t, unix.SIGKILL, h.ShimPIDs(victim.ID)...)
			h.remove(t, victim.ID)
			h.unchanged(t, before)
			sockets[runtime] = robSockets(t, h) - count
		}
		// The file of its socket is all that a killed shim leaves, the stock one too.
		if sockets[testenv.DefaultRuntime] > sockets[testenv.StockRuntime] {
			t.Errorf("sockets that killed shims leave: %v", sockets)
		}
		if got := h.Exec(t, "neighbour", "sh", "-c", robSeen).Stdout; got != h.expect(0) {
			t.Errorf("the neighbour sees %q, want %q", got, h.expect(0))
		}
		if got := h.MustRun(t, h.run(t, "next", 1, robSeen)); got != h.expect(1) {
			t.Errorf("the next container sees %q, want %q", got, h.expect(1))
		}
		if got := h.checkState(t); !slices.Equal(got, views) {
			t.Errorf("the views are %v, they were %v", got, views)
		}
		h.Remove(t, "neighbour")
	})
}

// The first thirty creates after a boot come together.
func TestThirtyCreatesAtOnceGetTheirOwnGPUAndShareOneView(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		const creates = 30
		h := robNewHost(t, hostOptions{Options: sim.Options{GPUs: sim.MaxGPUs}, testenv: testenv.Options{Cgroup: version}}, false)
		h.image(t, robImage)
		if views := h.checkState(t); len(views) > 0 {
			t.Fatalf("the views %v are there before the first create", views)
		}
		// The Import of the image, and the options, are made by the test itself.
		var options []testenv.RunOptions
		for i := range creates {
			o := h.run(t, h.NewID(), i%sim.MaxGPUs, robSeen)
			o.Timeout = 3 * time.Minute
			options = append(options, o)
		}
		results := make([]testenv.Result, creates)
		var group sync.WaitGroup
		for i := range creates {
			group.Go(func() {
				r, err := h.TryRun(t, options[i])
				if err != nil {
					r.Stderr += err.Error()
				}
				results[i] = r
			})
		}
		group.Wait()
		for i, r := range results {
			if want := h.expect(i % sim.MaxGPUs); r.Stdout != want {
				t.Errorf("container %d sees %q (%s), want %q", i, r.Stdout, r.Stderr, want)
			}
			if mark := h.mark(t, r.ID); string(mark) != robMasked {
				t.Errorf("container %d sees %q in the masked directory, want %q", i, mark, robMasked)
			}
		}
		if views := h.checkState(t); len(views) != 1 {
			t.Errorf("there are the views %v, want one", views)
		}
		if rest := h.Ctr(t, "tasks", "ls", "-q"); rest != "" {
			t.Errorf("containerd still has the tasks %q", rest)
		}
	})
}

// One shim, as a pod has it, creates and deletes containers all day. Nothing in
// it, in containerd or in the mount table may become more.
func TestFiveHundredCreatesAndDeletesMakeNothingGrow(t *testing.T) {
	const workers, limit = 4, 3 * time.Minute
	h := robNewHost(t, hostOptions{}, false)
	group := []string{"io.containerd.runc.v2.group=pod"}
	holder := h.run(t, "holder", 0, "sleep 3600")
	holder.Detach, holder.Annotations = true, group
	h.Run(t, holder)
	h.settle(t)
	shims := h.ShimPIDs("holder")
	if len(shims) != 1 {
		t.Fatalf("shims of the pod: %v", shims)
	}
	// Containers that are made beforehand, so that a cycle is the task's alone.
	ids := make([]string, workers)
	for i := range ids {
		o := h.run(t, h.NewID(), i%4, "test -c /dev/nvidiactl")
		o.Annotations = group
		ids[i] = h.Create(t, o)
	}
	cycle := func(id string) error {
		_, stderr, err := h.CtrErr("tasks", "start", "--null-io", id)
		if err != nil {
			return fmt.Errorf("%w: %s", err, stderr)
		}
		return nil
	}
	// What is allocated once is allocated now.
	for _, id := range ids {
		if err := cycle(id); err != nil {
			t.Fatal(err)
		}
	}
	before, snapshot := robMeasure(t, h, shims[0]), h.snapshot(t)
	begin := time.Now()
	errs := make([]error, workers)
	var running sync.WaitGroup
	for w, id := range ids {
		running.Go(func() {
			for range robCycles / workers {
				if errs[w] = cycle(id); errs[w] != nil {
					return
				}
			}
		})
	}
	running.Wait()
	took := time.Since(begin)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	after := robMeasure(t, h, shims[0])
	// Handles of processes that the shim library waited for are closed with its collection
	// of garbage, every 30 seconds.
	for deadline := time.Now().Add(40 * time.Second); !after.within(before) && time.Now().Before(deadline); after = robMeasure(t, h, shims[0]) {
		time.Sleep(100 * time.Millisecond)
	}
	t.Logf("%d cycles in %v (%v each); before: %+v; after: %+v", robCycles, took.Round(time.Second), (took / robCycles).Round(time.Millisecond), before, after)
	if !after.within(before) {
		t.Errorf("something grew in %d cycles: before %+v, after %+v", robCycles, before, after)
	}
	if took > limit {
		t.Errorf("%d cycles took %v, more than %v", robCycles, took, limit)
	}
	if got := h.ShimPIDs("holder"); !slices.Equal(got, shims) {
		t.Errorf("the pod's shims are %v, they were %v", got, shims)
	}
	h.unchanged(t, snapshot)
	h.checkState(t)
	for _, id := range append(ids, "holder") {
		h.Remove(t, id)
	}
}

// robSockets counts the sockets of shims.
func robSockets(t *testing.T, h *robHost) int {
	t.Helper()
	list, err := os.ReadDir(filepath.Join(h.Dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// robUse is what must not grow.
type robUse struct {
	ShimFiles, ShimThreads, ContainerdFiles, Mounts, Shims, Sockets int
}

func robMeasure(t *testing.T, h *robHost, shim int) robUse {
	t.Helper()
	entries := func(dir string) int {
		list, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	return robUse{
		ShimFiles:       entries(fmt.Sprintf("/proc/%d/fd", shim)),
		ShimThreads:     entries(fmt.Sprintf("/proc/%d/task", shim)),
		ContainerdFiles: entries(fmt.Sprintf("/proc/%d/fd", h.PID())),
		Mounts:          strings.Count(h.MountTable(t), h.Dir+"/") + strings.Count(h.MountTable(t), h.Driver.Dir+"/"),
		Shims:           len(h.ShimPIDs("holder")),
		Sockets:         robSockets(t, h),
	}
}

// within allows what comes and goes: a connection that is being closed, threads of
// the Go runtime. 500 cycles that each lost one thing would be far outside.
func (u robUse) within(before robUse) bool {
	return u.ShimFiles <= before.ShimFiles+4 && u.ShimThreads <= before.ShimThreads+12 &&
		u.ContainerdFiles <= before.ContainerdFiles+8 && u.Mounts <= before.Mounts &&
		u.Shims <= before.Shims && u.Sockets <= before.Sockets
}

// SIGTERM means to a shim what it means to the stock one, and nothing is left.
func TestSIGTERMEndsNoMoreThanItDoesWithTheStockShim(t *testing.T) {
	h := robNewHost(t, hostOptions{}, false)
	h.MustRun(t, h.run(t, "warm", 0, "true"))
	before := h.snapshot(t)
	outcome := map[string]string{}
	for _, runtime := range []string{testenv.StockRuntime, testenv.DefaultRuntime} {
		o := h.run(t, h.NewID(), 0, "sleep 600")
		o.Runtime, o.Detach = runtime, true
		h.Run(t, o)
		shims := h.ShimPIDs(o.ID)
		if len(shims) != 1 {
			t.Fatalf("%s: shims %v", runtime, shims)
		}
		robKill(t, unix.SIGTERM, shims...)
		time.Sleep(time.Second)
		status := "no task"
		for line := range strings.Lines(h.Ctr(t, "tasks", "ls")) {
			if f := strings.Fields(line); len(f) > 2 && f[0] == o.ID {
				status = f[2]
			}
		}
		outcome[runtime] = fmt.Sprintf("shims %d, task %s", len(h.ShimPIDs(o.ID)), status)
		h.remove(t, o.ID)
		h.unchanged(t, before)
	}
	t.Log(outcome)
	if outcome[testenv.DefaultRuntime] != outcome[testenv.StockRuntime] {
		t.Errorf("after SIGTERM: %s; with the stock shim: %s", outcome[testenv.DefaultRuntime], outcome[testenv.StockRuntime])
	}
}

// T65: the user reads what is wrong with the state directory, and nothing is left.
func TestAStateDirectoryThatCannotBeWrittenIsAClearErrorAndLeavesNothing(t *testing.T) {
	for _, c := range []struct{ name, options, want string }{
		{"full", "mode=0700,size=4k", "no space left on device"},
		{"out of inodes", "mode=0700,nr_inodes=2", "no space left on device"},
		{"read-only", "mode=0700,ro", "read-only file system"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := robNewHost(t, hostOptions{}, false)
			image := h.image(t, robImage)
			if err := os.Mkdir(h.Driver.StateDir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("state", h.Driver.StateDir, "tmpfs", 0, c.options); err != nil {
				t.Fatal(err)
			}
			// Containers without a GPU do not need it.
			plain := testenv.RunOptions{Image: image, Args: []string{"true"}}
			h.MustRun(t, plain)
			before := h.snapshot(t)
			r := h.Run(t, h.run(t, h.NewID(), 0, "true"))
			t.Log(strings.TrimSpace(r.Stderr))
			if r.ExitCode == 0 {
				t.Error("the container started")
			}
			if mark := h.mark(t, r.ID); mark != nil {
				t.Errorf("the container ran and saw %q", mark)
			}
			line := strings.TrimSpace(r.Stderr)
			if !strings.Contains(line, c.want) || !strings.Contains(line, h.Driver.StateDir) || strings.Contains(line, "\n") {
				t.Errorf("the error is %q, want one line with %q and the directory %s", line, c.want, h.Driver.StateDir)
			}
			// What fitted stays: it is whole.
			h.unchanged(t, before, filepath.Join(h.Driver.StateDir, "driver.json"))
			h.MustRun(t, plain)

			if err := unix.Unmount(h.Driver.StateDir, unix.MNT_DETACH); err != nil {
				t.Fatal(err)
			}
			if got := h.MustRun(t, h.run(t, h.NewID(), 0, robSeen)); got != h.expect(0) {
				t.Errorf("with a good state directory the container sees %q, want %q", got, h.expect(0))
			}
		})
	}
}

// containerd is upgraded while containers run.
func TestContainersWithGPUsOutliveARestartOfContainerd(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		if version == 2 && !slices.Equal(testenv.CgroupVersions(), []int{2}) {
			// The restarted containerd would be in a new private namespace, without the
			// mounts of the old one; a host has one namespace for both.
			t.Logf("NOT TESTED with cgroup v2 beside v1 hierarchies: containerd's mount namespace is private there and ends with it")
			return
		}
		h := robNewHost(t, hostOptions{testenv: testenv.Options{Cgroup: version}}, false)
		h.MustRun(t, h.run(t, "warm", 0, "true"))
		before := h.snapshot(t)
		var ids []string
		for gpu := range 3 {
			o := h.run(t, h.NewID(), gpu, "sleep 600")
			o.Detach = true
			h.Run(t, o)
			ids = append(ids, o.ID)
		}
		h.Restart(t)
		for gpu, id := range ids {
			if got := h.Exec(t, id, "sh", "-c", robSeen).Stdout; got != h.expect(gpu) {
				t.Errorf("after the restart container %d sees %q, want %q", gpu, got, h.expect(gpu))
			}
			h.Remove(t, id)
		}
		if got := h.MustRun(t, h.run(t, "next", 3, robSeen)); got != h.expect(3) {
			t.Errorf("after the restart a new container sees %q, want %q", got, h.expect(3))
		}
		h.unchanged(t, before)
	})
}

// A host without faults in its driver never sees the fault points: the product
// does not read the variable.
func TestTheProductKnowsNoFaults(t *testing.T) {
	h := newHost(t, hostOptions{testenv: testenv.Options{Env: []string{"NVIDIA_SHIM_FAULT=mask=error"}}})
	image := h.image(t, "busybox")
	h.MustRun(t, testenv.RunOptions{Image: image, Env: []string{"NVIDIA_VISIBLE_DEVICES=0"}, Args: []string{"true"}})
	shim, err := os.ReadFile(filepath.Join(testenv.ShimDir(), "containerd-shim-nvidia-v2"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(shim, []byte("NVIDIA_SHIM_FAULT")) {
		t.Error("the product's shim has the variable's name in it")
	}
	if image != images.Ref("busybox") {
		t.Error(image)
	}
}
