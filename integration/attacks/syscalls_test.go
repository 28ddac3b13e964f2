package attacks

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/api"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/mounts"
)

const (
	// soakFile names the file in which a soak keeps its state, in the environment.
	soakFile = "NVIDIA_SHIM_SOAK"
	// soakCycles is how many faults a soak tries.
	soakCycles = 10_000
	// hang bounds a container's life, on a busy machine.
	hang = 3 * time.Minute
	// stuck is after how long a new shim counts as one that its `start` waits for.
	stuck = 30 * time.Second
)

// sampled are the system calls that fail in the sample: those of our own steps. A soak takes all
// system calls of a shim, including those of Go's runtime and containerd's library.
var sampled = strings.Fields(`bind chroot clone3 connect fchdir fchmod fchmodat fchownat flock
	fsconfig fsmount fsopen fstat fstatfs getdents64 linkat listen mkdirat mknodat mount move_mount
	newfstatat open_tree openat openat2 pidfd_open pidfd_send_signal pipe2 readlinkat renameat setns
	socket statx symlinkat umount2 unlinkat unshare utimensat`)

// never are the calls that must not fail: a failed close leaves a descriptor open, and the end of a
// process whose wait failed goes unnoticed, whatever the shim does.
var never = []string{"close", "wait4", "exit", "exit_group", "restart_syscall", "rt_sigreturn"}

// onlyKilled are system calls of Go's runtime at which a process is killed only. The first end any
// Go program, the stock shim too, if they fail: the runtime throws, or writes to an address that
// does not exist, which may read "panic". Of the others it ignores how they end.
var onlyKilled = strings.Fields(`arch_prctl epoll_pwait futex munmap rt_sigaction rt_sigprocmask sigaltstack
	geteuid getpid getppid gettid madvise nanosleep sched_yield set_tid_address tgkill umask`)

const killed = "signal=KILL"

var whats = []string{"error=ENOSPC", "error=EMFILE", "error=ENOMEM", "error=EIO", "error=EINTR", killed}

// call is a system call in a phase.
type call struct{ Phase, Call string }

// fault is what happens to the nth system call of that name on each thread of the traced process.
type fault struct {
	call
	Nth  int
	What string // as strace writes it: "error=EIO", "signal=KILL"
}

func (f fault) String() string { return fmt.Sprintf("%s %s", f.Phase, f.inject()) }

// inject returns the fault in strace's syntax.
func (f fault) inject() string { return fmt.Sprintf("%s:%s:when=%d", f.Call, f.What, f.Nth) }

// faults returns the possible faults of the counted calls, ordered so that each call comes early.
func faults(count map[call]int) []fault {
	rank := map[fault]uint64{}
	for call, n := range count {
		for nth := range n {
			for _, what := range whats {
				if what != killed && slices.Contains(onlyKilled, call.Call) {
					continue
				}
				f := fault{call, nth + 1, what}
				sum := fnv.New64a()
				sum.Write([]byte(f.String()))
				rank[f] = sum.Sum64()
			}
		}
	}
	byHash := slices.SortedFunc(maps.Keys(rank), func(a, b fault) int { return cmp.Compare(rank[a], rank[b]) })
	round, next := map[fault]int{}, map[call]int{}
	for _, f := range byHash {
		round[f] = next[f.call]
		next[f.call]++
	}
	slices.SortStableFunc(byHash, func(a, b fault) int { return cmp.Compare(round[a], round[b]) })
	return byHash
}

// trace attaches strace to the shim's threads, but not to its children. The function that it
// returns detaches strace and returns its output.
func (h *host) trace(t *testing.T, flags ...string) (stop func() string) {
	t.Helper()
	out := filepath.Join(h.Dir, "strace")
	args := append([]string{"-o", out}, flags...)
	threads := namesIn(fmt.Sprintf("/proc/%d/task", h.shim))
	for _, thread := range threads {
		args = append(args, "-p", thread)
	}
	cmd := exec.Command("strace", args...)
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	// strace hangs if the shim is killed while strace attaches to its threads.
	limit := time.AfterFunc(hang, func() { _ = cmd.Process.Kill() })
	lines := bufio.NewScanner(stderr)
	for range threads {
		if lines.Scan() && !strings.HasSuffix(lines.Text(), " attached") {
			t.Logf("strace: %s", lines.Text())
		}
	}
	return func() string {
		defer limit.Stop()
		_ = cmd.Process.Signal(syscall.SIGINT)
		limit.Reset(5 * time.Second)
		for lines.Scan() {
		}
		_ = cmd.Wait()
		data, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
}

var traced = regexp.MustCompile(`(?m)^(\d+) +(\w+)\(`)

// count returns, for each system call in a phase, the largest number of calls by one thread.
func (h *host) count(t *testing.T, client *api.Client, name string) map[call]int {
	t.Helper()
	p := phases[name]
	id := p.prepare(t, h, client)
	stop := p.trace(t, h, "-s", "0")
	err := p.run(t, h, client, id)
	out := stop()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	h.removed(t, client, id)
	perThread, most := map[string]int{}, map[call]int{}
	for _, m := range traced.FindAllStringSubmatch(out, -1) {
		perThread[m[1]+m[2]]++
		c := call{name, m[2]}
		most[c] = max(most[c], perThread[m[1]+m[2]])
	}
	if len(most) == 0 {
		t.Fatalf("%s: no system call was traced", name)
	}
	return most
}

// create makes a container that writes what it sees of the GPUs to a file with its name.
func (h *host) create(t *testing.T, annotations ...string) (id string) {
	t.Helper()
	args := h.ProbeArgs()
	id = h.NewID()
	args[2] = "exec >/marks/." + id + "\n" + args[2] + "\nmv /marks/." + id + " /marks/" + id
	return h.Create(t, testenv.RunOptions{
		ID: id, Annotations: annotations, Env: []string{one}, Args: args,
		Mounts: []string{"type=bind,src=" + h.marks() + ",dst=/marks,options=rbind:rw"},
	})
}

func (h *host) marks() string { return filepath.Join(h.Dir, "marks") }

// live takes a container through its life, up to the first call that fails.
func live(t *testing.T, client *api.Client, id string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(client.Context(t.Context()), hang)
	defer cancel()
	_, err := client.Create(ctx, id)
	if err == nil {
		err = client.Start(ctx, id)
	}
	if err == nil {
		// The container may end before either call.
		if _, pauseErr := client.Tasks.Pause(ctx, &tasks.PauseTaskRequest{ContainerID: id}); pauseErr == nil {
			_, err = client.Tasks.Resume(ctx, &tasks.ResumeTaskRequest{ContainerID: id})
		}
		if err != nil && strings.Contains(err.Error(), "stopped container") {
			err = nil
		}
	}
	if err == nil {
		_, err = client.Tasks.Wait(ctx, &tasks.WaitRequest{ContainerID: id})
	}
	if err == nil {
		_, err = client.Tasks.Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: id})
	}
	if ctx.Err() != nil {
		t.Errorf("it hangs: %v", err)
	}
	return err
}

// removed deletes a container whose life a fault has ended. containerd needs a moment to notice
// that a shim is dead, and to remove what is left of the task.
func (h *host) removed(t *testing.T, client *api.Client, id string) {
	t.Helper()
	testenv.Await(t, "container "+id+" can be deleted", func() bool {
		ctx, cancel := context.WithTimeout(client.Context(t.Context()), 10*time.Second)
		defer cancel()
		if _, err := client.Tasks.Get(ctx, &tasks.GetRequest{ContainerID: id}); status.Code(err) != codes.NotFound {
			_, _, _ = h.CtrErr("tasks", "resume", id)
			_, _, _ = h.CtrErr("tasks", "rm", "--force", id)
		}
		_, _, err := h.CtrErr("containers", "rm", id)
		_, bundleErr := os.Stat(h.BundleDir(id))
		return errors.Is(bundleErr, fs.ErrNotExist) && (err == nil || strings.Contains(err.Error(), "not found"))
	})
}

// afterKill makes the pod again if its shim was killed, and removes what the stock shim leaves as
// well: the cgroups of a container without a process.
func (h *host) afterKill(t *testing.T, client *api.Client, id string) {
	t.Helper()
	if h.alive() {
		return
	}
	for _, pattern := range []string{"*", ""} {
		left, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup", pattern, h.ID, id))
		for _, dir := range left {
			if err := os.Remove(dir); err != nil {
				t.Errorf("a cgroup was left that is in use: %v", err)
			}
		}
	}
	h.removed(t, client, h.pod)
	h.startPod(t)
}

// disconnected kills the pod's shim if a fault has ended a connection to containerd. As with the
// stock one containerd then kills and deletes the containers, and the shim still has them.
func (h *host) disconnected(f fault, failed error) {
	if !slices.Contains(connection, f.Call) {
		return
	}
	closed := failed != nil && strings.Contains(failed.Error(), "ttrpc: closed")
	if closed || strings.Contains(h.Log(), `msg="shim disconnected" id=`+h.pod+" ") {
		h.kill()
	}
	h.deaf()
}

// deaf kills the pod's shim if a read from containerd failed. As in the stock one the connection
// stays, and is never read again: every call would hang. No such read fails in practice.
func (h *host) deaf() bool {
	if !strings.Contains(h.Log(), `msg="error receiving message"`) {
		return false
	}
	h.kill()
	return true
}

// whenStuck ends what waits for good after a failed read, until it is stopped: a shim that is deaf,
// and the new shim if `start` could not read whether it was executed. Go then waits for the end of
// a process that it takes for failed (syscall.forkExec), in the stock shim as well.
func (h *host) whenStuck(t *testing.T, f fault, id string) (stop func()) {
	t.Helper()
	stopped, done, begin := make(chan bool), make(chan bool), time.Now()
	go func() {
		defer close(done)
		for f.Call == "read" && !h.deaf() {
			if f.Phase == "start" && time.Since(begin) > stuck {
				h.killShims(id)
			}
			select {
			case <-stopped:
				return
			case <-t.Context().Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	return func() { close(stopped); <-done }
}

var connection = strings.Fields("accept4 epoll_ctl fcntl read write")

// kill kills the pod's shim, but not the program that containerd may execute to clean up.
func (h *host) kill() {
	if h.alive() {
		_ = syscall.Kill(h.shim, syscall.SIGKILL)
		testenv.Until(func() bool { return !h.alive() })
	}
}

func (h *host) killShims(id string) {
	for _, pid := range h.ShimPIDs(id) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// onlyPod removes all containers and makes the pod again, after a cycle that failed the test.
func (h *host) onlyPod(t *testing.T, client *api.Client) {
	t.Helper()
	ids := strings.Fields(h.Ctr(t, "containers", "ls", "-q"))
	for _, id := range ids {
		h.killShims(id)
	}
	restarted(t, h, client, "", errors.New("the test failed"))
	for _, id := range ids {
		h.removed(t, client, id)
	}
	h.startPod(t)
}

// socket is that of the pod's shim.
func (h *host) socket(t *testing.T) fs.FileInfo {
	t.Helper()
	address, err := os.ReadFile(filepath.Join(h.BundleDir(h.pod), "address"))
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(strings.TrimPrefix(string(address), "unix://"))
	if err != nil {
		t.Fatalf("the socket of the pod's shim: %v", err)
	}
	return info
}

// temporary are files that a process leaves if it dies while it stores a value.
var temporary = regexp.MustCompile(`^\.[a-z]+\.json\.nvidia-shim-\d+$`)

// died is what strace writes of a process that was killed, or that Go's runtime ended.
var died = regexp.MustCompile(`\+\+\+ (killed|exited with [^0])`)

// cycle is the life of a container under a fault, by the oracle: whatever happens, the container
// has seen the GPU that is its own or has not run, nothing is left, and the next containers start.
func (h *host) cycle(t *testing.T, client *api.Client, f fault) (hit bool, failed error) {
	log, out := filepath.Join(h.Dir, "containerd.log"), ""
	if err := os.Truncate(log, 0); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			t.Logf("strace:\n%s\ncontainerd's log of the cycle:\n%s", out, h.Log())
		}
	}()
	testenv.Await(t, "no process of the last cycle exits", func() bool {
		return !slices.Contains(h.Snapshot(t).Section("processes"), "")
	})
	h.unharmed(t, func() {
		// Without kept values and views there is more to do.
		if err := mounts.RemoveAll(h.Driver.StateDir); err != nil {
			t.Fatal(err)
		}
		shim, socket := h.shim, h.socket(t)
		p := phases[f.Phase]
		id := p.prepare(t, h, client)
		stop := p.trace(t, h, "-e", "trace="+f.Call, "-e", "inject="+f.inject())
		stopWaiting := h.whenStuck(t, f, id)
		failed = p.run(t, h, client, id)
		out = stop()
		dead := died.MatchString(out)
		if f.Phase == "start" && failed != nil && (dead || strings.Contains(failed.Error(), "/dev/stdout")) {
			// As the stock one would, a shim stays of which `start` did not tell containerd.
			h.killShims(id)
		}
		hit = strings.Contains(out, "(INJECTED)") || strings.Contains(out, "killed by SIGKILL")
		h.disconnected(f, failed)
		if p.check != nil {
			p.check(t, h, client, id, failed)
		}
		h.removed(t, client, id)
		stopWaiting()
		h.disconnected(f, failed)
		h.afterKill(t, client, id)
		h.checkMark(t, id)
		for _, name := range namesIn(h.Driver.StateDir) {
			if temporary.MatchString(name) && (dead || strings.HasPrefix(f.Call, "unlink") || strings.HasPrefix(f.Call, "rename")) {
				_ = os.Remove(filepath.Join(h.Driver.StateDir, name))
			}
		}
		h.MustRun(t, testenv.RunOptions{Annotations: []string{inPod}, Args: []string{"/bin/true"}})
		next := h.MustRun(t, testenv.RunOptions{Annotations: []string{inPod}, Env: []string{one}, Args: h.ProbeArgs()})
		simhost.Compare(t, simhost.Parse(next), h.Expect([]int{0}))
		if shim == h.shim && !os.SameFile(socket, h.socket(t)) {
			t.Error("another shim has the socket of the pod's")
		}
	})
	return hit, failed
}

// checkMark compares what a container has seen with what it must see, if it ran to its end.
func (h *host) checkMark(t *testing.T, id string) {
	t.Helper()
	name := filepath.Join(h.marks(), id)
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		_ = os.Remove(filepath.Join(h.marks(), "."+id))
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	simhost.Compare(t, simhost.Parse(string(data)), h.Expect([]int{0}))
	if err := os.Remove(name); err != nil {
		t.Error(err)
	}
}

// T30, T31, T65: a system call of the shim fails, or the shim is killed at it, at any point of a
// container's life. `make soak` tries many more.
func TestT30T31T65ASystemCallFailsOrKillsTheShim(t *testing.T) {
	h := newFaultHost(t)
	client := api.Connect(t, h.Env)
	if err := mounts.RemoveAll(h.Driver.StateDir); err != nil {
		t.Fatal(err)
	}
	count := map[call]int{}
	for name := range phases {
		maps.Copy(count, h.count(t, client, name))
	}
	if name := os.Getenv(soakFile); name != "" {
		h.soak(t, client, name, count)
		return
	}
	maps.DeleteFunc(count, func(c call, _ int) bool { return !slices.Contains(sampled, c.Call) })
	r, all, tried := report{}, map[string]int{}, map[string]int{}
	for _, f := range faults(count) {
		if all[f.Phase]++; tried[f.Phase] < phases[f.Phase].sample {
			tried[f.Phase]++
			r.run(t, h, client, f)
		}
	}
	r.log(t)
	t.Logf("of %v faults %v were tried", all, tried)
}

// report counts the outcomes of cycles.
type report struct {
	Faults []fault // all, in their order
	Next   int     // how many cycles were run
	Hit    map[string]int
	Failed map[string]int
	Bad    []string // faults whose cycle failed the test
	before []string // the last cycles
}

func (r *report) run(t *testing.T, h *host, client *api.Client, f fault) {
	if r.Hit == nil {
		r.Hit, r.Failed = map[string]int{}, map[string]int{}
	}
	key := f.Phase + " " + f.Call + " " + f.What
	before := r.before
	good := t.Run(f.String(), func(t *testing.T) {
		defer func() {
			if t.Failed() {
				t.Logf("the cycles before:\n%s", strings.Join(before, "\n"))
			}
		}()
		hit, err := h.cycle(t, client, f)
		t.Logf("hit: %v, error: %v", hit, err)
		r.before = append(before[max(0, len(before)-4):], fmt.Sprintf("%v: hit: %v, error: %v", f, hit, err))
		if hit {
			r.Hit[key]++
		}
		if err != nil {
			r.Failed[key]++
		}
	})
	if !good {
		r.Bad, r.before = append(r.Bad, f.String()), nil
		h.onlyPod(t, client)
	}
	r.Next++
}

func (r *report) log(t *testing.T) {
	t.Helper()
	hit, failed := 0, 0
	for _, key := range slices.Sorted(maps.Keys(r.Hit)) {
		hit, failed = hit+r.Hit[key], failed+r.Failed[key]
		t.Logf("%-40s %4d lives with it, %4d failed", key, r.Hit[key], r.Failed[key])
	}
	t.Logf("%d lives, %d with a fault, %d of them failed; found: %q", r.Next, hit, failed, r.Bad)
	if hit == 0 {
		t.Error("no fault hit the shim")
	}
}

// soak tries faults of all system calls until it is stopped (SIGINT) or has tried soakCycles. It
// continues where an earlier soak with the same file ended.
func (h *host) soak(t *testing.T, client *api.Client, name string, count map[call]int) {
	t.Helper()
	var r report
	data, err := os.ReadFile(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		maps.DeleteFunc(count, func(c call, _ int) bool { return slices.Contains(never, c.Call) })
		all := faults(count)
		r.Faults = all[:min(len(all), soakCycles)] // those that can be reached
	case err == nil:
		err = json.Unmarshal(data, &r)
		fallthrough
	default:
		if err != nil || len(r.Faults) == 0 {
			t.Fatalf("%s: %v", name, err)
		}
	}
	t.Logf("%d faults, %d cycles were run", len(r.Faults), r.Next)
	stopped := make(chan os.Signal, 1)
	signal.Notify(stopped, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(stopped)
	for r.Next < soakCycles {
		r.run(t, h, client, r.Faults[r.Next%len(r.Faults)])
		if len(stopped) > 0 { // a terminal's Ctrl-C ends ctr and strace too: repeat this cycle
			break
		}
		data, err := json.Marshal(r)
		if err == nil {
			err = os.WriteFile(name+".new", data, 0o644)
		}
		if err == nil {
			err = os.Rename(name+".new", name)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r.log(t)
}

// exitStored is strace's output of a delayed renameat(2) to exit.json that succeeded.
var exitStored = regexp.MustCompile(`/exit\.json"( <unfinished \.\.\.>\n(.*\n)*.*<\.\.\. renameat resumed>)?\) += 0 \(DELAYED\)`)

// containerd removes the bundle as soon as a task is deleted, and a client may delete it as soon as
// the exit is reported. A shim that writes to the bundle then can leave a part of it behind.
func TestATaskIsDeletedWhenItsExitStatusIsInTheBundle(t *testing.T) {
	h := newFaultHost(t)
	client := api.Connect(t, h.Env)
	ctx := client.Context(t.Context())
	id := h.Create(t, testenv.RunOptions{Annotations: []string{inPod}, Env: []string{one}, Args: []string{"/bin/sleep", "1000000"}})
	started(t, client, id)
	stop := h.trace(t, "-s", "4096", "-e", "trace=renameat", "-e", "inject=renameat:delay_enter=500000")
	_, err := client.Tasks.Kill(ctx, &tasks.KillRequest{ContainerID: id, Signal: uint32(syscall.SIGKILL)})
	if err == nil {
		_, err = client.Tasks.Wait(ctx, &tasks.WaitRequest{ContainerID: id})
	}
	if err == nil {
		_, err = client.Tasks.Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: id})
	}
	if out := stop(); err != nil || !exitStored.MatchString(out) {
		t.Errorf("error %v; the exit status was not stored before Delete returned:\n%s", err, out)
	}
	h.removed(t, client, id)
}
