package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// lifeHost is a host whose runc keeps what it is sent with `update`.
type lifeHost struct {
	*host
	image string
	// updates is where the script in the place of runc puts the resources.
	updates string
}

func lifeNewHost(t *testing.T, version int) *lifeHost {
	t.Helper()
	dir := t.TempDir()
	tools, err := testenv.ToolsDir()
	if err != nil {
		t.Fatal(err)
	}
	h := &lifeHost{updates: filepath.Join(dir, "updates")}
	if err := os.Mkdir(h.updates, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(testenv.ShimDir(), "containerd-shim-nvidia-v2"), filepath.Join(dir, "containerd-shim-nvidia-v2")); err != nil {
		t.Fatal(err)
	}
	runc := filepath.Join(tools, "runc")
	script := fmt.Sprintf(`#!/bin/sh
case " $* " in
*" update "*)
	cat >%[1]s/$$.json
	exec %[2]s "$@" <%[1]s/$$.json ;;
esac
exec %[2]s "$@"
`, h.updates, runc)
	if err := os.WriteFile(filepath.Join(dir, "runc"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	// It comes first in PATH, for both shims.
	h.host = newHost(t, hostOptions{testenv: testenv.Options{Cgroup: version, ShimDir: dir}})
	h.image = h.host.image(t, "glibc-nocache")
	return h
}

// ctr is a ctr command of which the test wants the standard streams.
func (h *lifeHost) ctr(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(h.Options.ToolsDir, "ctr"), append([]string{"--address", h.Address, "--namespace", h.ID}, args...)...)
	cmd.Dir = h.Dir
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR=" + h.Dir, "CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1"}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// lifeScript is one life of a container, written down as it goes.
type lifeScript struct {
	*lifeHost
	t       *testing.T
	id      string
	runtime string
	lines   []string
}

func (s *lifeScript) note(step, format string, args ...any) {
	s.lines = append(s.lines, s.normal(step+": "+fmt.Sprintf(format, args...)))
}

var (
	lifeSnapshot = regexp.MustCompile(`snapshots/\d+`)
	lifeTime     = regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+(Z|\+00:00)`)
	lifeTemp     = regexp.MustCompile(`/[a-z-]*\d{6,}`)
	lifePID      = regexp.MustCompile(`"pid":\d+`)
	// ctr asks for the size of a terminal once more when its process has just ended.
	lifeResize  = regexp.MustCompile(`\\x1b\[31mERRO[^\n]*?resize pty.*?\\r\\n`)
	lifeSeconds = regexp.MustCompile(`"(exited_at|timestamp)":\{[^}]*\}`)
)

// normal takes out what differs between two containers of one shim.
func (s *lifeScript) normal(text string) string {
	text = strings.ReplaceAll(text, s.ID, "ENV")
	text = regexp.MustCompile(`\b`+regexp.QuoteMeta(s.id)+`\b`).ReplaceAllString(text, "CONTAINER")
	text = lifeResize.ReplaceAllString(text, "")
	text = lifeSnapshot.ReplaceAllString(text, "snapshots/N")
	text = lifeTime.ReplaceAllString(text, "TIME")
	text = lifeTemp.ReplaceAllString(text, "/TEMP")
	text = lifePID.ReplaceAllString(text, `"pid":N`)
	return lifeSeconds.ReplaceAllString(text, `"$1":T`)
}

// step runs ctr and writes down all of what it did.
func (s *lifeScript) step(name, stdin string, args ...string) {
	cmd := s.ctr(args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	err := s.within(time.Minute, cmd)
	s.note(name, "stdout %q, stderr %q, %s", stdout.String(), stderr.String(), lifeExit(err))
}

// within runs a command and kills it, and says so, when it takes too long.
func (s *lifeScript) within(limit time.Duration, cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	timer := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	return cmd.Wait()
}

func lifeExit(err error) string {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return "exit status 0"
	case errors.As(err, &exit):
		return exit.String()
	}
	return err.Error()
}

// status writes down the state of the container's task.
func (s *lifeScript) status(name string) {
	s.note(name, "%s", s.state())
}

func (s *lifeScript) state() string {
	for line := range strings.Lines(s.Ctr(s.t, "tasks", "ls")) {
		if f := strings.Fields(line); len(f) > 2 && f[0] == s.id {
			return f[2]
		}
	}
	return "no task"
}

// wait waits for the task to stop.
func (s *lifeScript) wait() {
	for deadline := time.Now().Add(20 * time.Second); s.state() != "STOPPED" && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
	}
}

// exec is a further process in the container.
func (s *lifeScript) exec(name, stdin string, flags []string, args ...string) {
	argv := append([]string{"tasks", "exec", "--fifo-dir", filepath.Join(s.Dir, "fifo"), "--exec-id", "e" + strconv.Itoa(len(s.lines))}, flags...)
	s.step(name, stdin, append(append(argv, s.id), args...)...)
}

// terminal runs a command on a terminal of its own of 40 lines and 100 columns and
// returns what it wrote there.
func (s *lifeScript) terminal(name string, args ...string) {
	master, slave := lifePTY(s.t)
	defer master.Close()
	cmd := s.ctr(args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	var output bytes.Buffer
	var reader sync.WaitGroup
	reader.Go(func() {
		// Ends with EIO when nobody has the other side any more.
		_, _ = output.ReadFrom(master)
	})
	err := s.within(time.Minute, cmd)
	slave.Close()
	reader.Wait()
	s.note(name, "%q, %s", output.String(), lifeExit(err))
}

// lifePTY opens a new pseudo terminal.
func lifePTY(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 100}); err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// metrics writes down which figures there are, and the value of one.
func (s *lifeScript) metrics(name string, values ...string) {
	var seen []string
	for line := range strings.Lines(s.Ctr(s.t, "tasks", "metrics", s.id)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] == s.id {
			continue
		}
		if slices.Contains(values, f[0]) {
			seen = append(seen, f[0]+"="+f[1])
			continue
		}
		seen = append(seen, f[0])
	}
	s.note(name, "%v", seen)
}

// update changes the number of processes the container may have. It sends device
// rules too, as the kubelet does.
func (s *lifeScript) update(name string) {
	resources := `{"pids":{"limit":77},"devices":[{"allow":false,"access":"rwm"}]}`
	err := robInvoke(s.Env, "containerd.services.tasks.v1.Tasks/Update", &tasksapi.UpdateTaskRequest{
		ContainerID: s.id,
		Resources:   &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources", Value: []byte(resources)},
	}, &emptypb.Empty{})
	s.note(name, "%v", err)
	sent, _ := filepath.Glob(filepath.Join(s.updates, "*.json"))
	if len(sent) != 1 {
		s.t.Fatalf("%s: runc update was called %d times, want once", s.runtime, len(sent))
	}
	data, err := os.ReadFile(sent[0])
	if err != nil {
		s.t.Fatal(err)
	}
	if err := os.Remove(sent[0]); err != nil {
		s.t.Fatal(err)
	}
	var got map[string]json.RawMessage
	if err := json.Unmarshal(data, &got); err != nil {
		s.t.Fatal(err)
	}
	_, devices := got["devices"]
	if devices != (s.runtime == testenv.StockRuntime) {
		s.t.Errorf("%s: runc was sent %s", s.runtime, data)
	}
	if string(got["pids"]) != `{"limit":77}` {
		s.t.Errorf("%s: runc was sent the limit %s, want 77", s.runtime, got["pids"])
	}
}

// life takes a container with a GPU through everything that a task can do and
// returns what was seen.
func (s *lifeScript) life(events *lifeEvents) []string {
	options := []string{"--runtime", s.runtime, "--snapshotter", s.Options.Snapshotter, "--env", "NVIDIA_VISIBLE_DEVICES=1"}
	s.id = s.NewID()
	id := s.id
	create := append(append([]string{"containers", "create"}, options...),
		s.image, s.id, "sh", "-c", `sleep 600 & trap "exit 9" TERM; wait`)
	s.step("create the container", "", create...)
	s.t.Cleanup(func() {
		_, _, _ = s.CtrErr("tasks", "rm", "--force", id)
		_, _, _ = s.CtrErr("containers", "rm", id)
	})
	s.step("start", "", "tasks", "start", "--detach", "--null-io", s.id)
	s.status("started")
	s.step("start again", "", "tasks", "start", "--detach", "--null-io", s.id)

	for _, code := range []string{"0", "3", "255"} {
		s.exec("exec exits with "+code, "", nil, "sh", "-c", "echo out; echo err >&2; exit "+code)
	}
	s.exec("exec with input", "first\nsecond\n", nil, "sh", "-c", "cat; exit 4")
	s.exec("exec with much input", strings.Repeat("x", 1<<20), nil, "wc", "-c")
	s.exec("exec of what is not there", "", nil, "/not/there")
	s.exec("exec in a directory", "", []string{"--cwd", "/tmp"}, "pwd")
	s.exec("exec as a user", "", []string{"--user", "1000"}, "id", "-u")
	s.exec("exec that kills itself", "", nil, "sh", "-c", "kill -KILL $$")
	s.terminal("exec on a terminal", "tasks", "exec", "--tty", "--fifo-dir", filepath.Join(s.Dir, "fifo"), "--exec-id", "tty", s.id, "sh", "-c", "sleep 1; tty; stty size; exit 6")

	s.step("pause", "", "tasks", "pause", s.id)
	s.status("paused")
	s.step("pause again", "", "tasks", "pause", s.id)
	s.exec("exec while paused", "", nil, "true")
	s.step("resume", "", "tasks", "resume", s.id)
	s.status("resumed")
	s.step("resume again", "", "tasks", "resume", s.id)

	s.note("ps", "%d lines", strings.Count(s.Ctr(s.t, "tasks", "ps", s.id), "\n"))
	s.metrics("metrics")
	s.update("update")
	s.metrics("metrics after the update", "pids.limit")
	s.step("checkpoint", "", "tasks", "checkpoint", s.id)
	s.status("after the checkpoint")

	s.step("delete while it runs", "", "tasks", "delete", s.id)
	s.step("kill with a signal that is none", "", "tasks", "kill", "-s", "NOSIG", s.id)
	s.step("kill", "", "tasks", "kill", "-s", "TERM", s.id)
	s.wait()
	s.status("killed")
	s.step("kill what has ended", "", "tasks", "kill", "-s", "TERM", s.id)
	s.exec("exec in what has ended", "", nil, "true")
	s.step("delete", "", "tasks", "delete", s.id)
	s.status("deleted")
	s.step("delete again", "", "tasks", "delete", s.id)

	s.step("start a second time", "", "tasks", "start", "--detach", "--null-io", s.id)
	s.step("kill at once", "", "tasks", "kill", "-s", "KILL", s.id)
	s.wait()
	s.step("delete a second time", "", "tasks", "delete", s.id)
	s.step("delete the container", "", "containers", "rm", s.id)
	s.lines = append(s.lines, events.of(s)...)

	// Short lives of other containers.
	run := func(name string, flags []string, args ...string) {
		s.id = s.NewID()
		id := s.id
		s.t.Cleanup(func() {
			_, _, _ = s.CtrErr("tasks", "rm", "--force", id)
			_, _, _ = s.CtrErr("containers", "rm", id)
		})
		argv := append([]string{"run", "--rm", "--fifo-dir", filepath.Join(s.Dir, "fifo")}, options...)
		if s.Options.Cgroup == 2 {
			argv = append(argv, "--cpu-shares", "0")
		}
		argv = append(append(argv, flags...), s.image, s.id)
		if slices.Contains(flags, "--tty") {
			s.terminal(name, append(argv, args...)...)
			return
		}
		s.step(name, "in\n", append(argv, args...)...)
	}
	run("run to the end", nil, "sh", "-c", "head -n 1; echo err >&2; exit 42")
	run("run what is not there", nil, "/not/there")
	run("run in a directory that is not there", []string{"--cwd", "/dev/null"}, "true")
	run("run on a terminal", []string{"--tty"}, "sh", "-c", "sleep 1; tty; stty size; exit 7")
	return s.lines
}

// lifeEvents is what containerd publishes.
type lifeEvents struct {
	cmd *exec.Cmd
	out lifeBuffer
}

// lifeBuffer is a buffer that is written and read at the same time.
type lifeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lifeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lifeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// watch starts to listen, and returns when it does.
func (h *lifeHost) watch(t *testing.T) *lifeEvents {
	t.Helper()
	e := &lifeEvents{cmd: h.ctr("events")}
	e.cmd.Stdout = &e.out
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = e.cmd.Process.Kill()
		_ = e.cmd.Wait()
	})
	for i := 0; !strings.Contains(e.out.String(), "/namespaces/"); i++ {
		if i > 200 {
			t.Fatal("ctr events says nothing")
		}
		h.Ctr(t, "namespaces", "label", h.ID, fmt.Sprintf("watch=%d", i))
		time.Sleep(50 * time.Millisecond)
	}
	return e
}

var lifeEvent = regexp.MustCompile(` (/\S+) (\{.*\})$`)

// of lists the task events of the script's container, sorted: those of two
// processes may come in either order.
//
// Those of deleted tasks are left out. A shim ends as soon as its last task is
// deleted, and the stock one often ends before it has published that.
func (e *lifeEvents) of(s *lifeScript) []string {
	var lines []string
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		lines = nil
		exits := 0
		for line := range strings.Lines(e.out.String()) {
			m := lifeEvent.FindStringSubmatch(strings.TrimSpace(line))
			if m == nil || !strings.HasPrefix(m[1], "/tasks/") || !strings.Contains(m[2], `"container_id":"`+s.id+`"`) {
				continue
			}
			if m[1] == "/tasks/exit" && strings.Contains(m[2], `"id":"`+s.id+`"`) {
				exits++
			}
			if m[1] != "/tasks/delete" {
				lines = append(lines, s.normal("event "+m[1]+" "+m[2]))
			}
		}
		if exits == 2 || time.Now().After(deadline) {
			break
		}
	}
	if len(lines) == 0 {
		s.t.Fatalf("%s: no events of the container in\n%s", s.runtime, e.out.String())
	}
	if !strings.HasPrefix(lines[0], "event /tasks/create ") {
		s.t.Errorf("%s: the first event is %s", s.runtime, lines[0])
	}
	creates := 0
	for _, line := range lines {
		if strings.HasPrefix(line, "event /tasks/create ") {
			creates++
			if !strings.Contains(line, `"rootfs":[{`) || !strings.Contains(line, "upperdir=") {
				s.t.Errorf("%s: the event has no mounts of the root file system: %s", s.runtime, line)
			}
		}
	}
	if creates != 2 {
		s.t.Errorf("%s: %d create events, want 2", s.runtime, creates)
	}
	slices.Sort(lines)
	return lines
}

// Whoever uses containers with GPUs sees the tasks that they know: every answer,
// error, exit status and event is what the stock shim gives.
func TestAContainerWithAGPULivesAsItDoesUnderTheStockShim(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := lifeNewHost(t, version)
		if criu, err := exec.LookPath("criu"); err == nil {
			t.Logf("checkpoints are made by %s", criu)
		} else {
			t.Log("there is no criu: the error of a checkpoint is compared")
		}
		events := h.watch(t)
		lives := map[string][]string{}
		for _, runtime := range []string{testenv.StockRuntime, testenv.DefaultRuntime} {
			s := &lifeScript{lifeHost: h, t: t, runtime: runtime}
			lives[runtime] = s.life(events)
		}
		stock, ours := lives[testenv.StockRuntime], lives[testenv.DefaultRuntime]
		for i := range stock {
			stock[i] = strings.ReplaceAll(stock[i], testenv.StockRuntime, testenv.DefaultRuntime)
		}
		// The events are sorted: a line that one side lacks would shift all that follow.
		for _, line := range stock {
			if lifeCount(ours, line) < lifeCount(stock, line) {
				t.Errorf("only under the stock shim: %s", line)
			}
		}
		for _, line := range ours {
			if lifeCount(stock, line) < lifeCount(ours, line) {
				t.Errorf("only under ours: %s", line)
			}
		}
		t.Logf("%d steps and events; those of the stock shim:\n%s", len(stock), strings.Join(stock, "\n"))
	})
}

func lifeCount(lines []string, line string) (n int) {
	for _, l := range lines {
		if l == line {
			n++
		}
	}
	return n
}

// Device rules that come with an update must not take the GPU away, and what else
// comes with it must arrive.
func TestAnUpdateWithDeviceRulesLeavesTheGPUUsable(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := lifeNewHost(t, version)
		o := testenv.RunOptions{Image: h.image, Env: []string{"NVIDIA_VISIBLE_DEVICES=1"}, Args: []string{"sleep", "600"}, Detach: true}
		s := &lifeScript{lifeHost: h, t: t, runtime: testenv.DefaultRuntime, id: h.Run(t, o).ID}
		opened := func() string {
			return h.Exec(t, s.id, "sh", "-c", "/test/opendev /dev/nvidia*; /test/mkdev 195:15").Stdout
		}
		before := opened()
		minor := h.Driver.GPUs[1].Minor
		if want := fmt.Sprintf("/dev/nvidia%d E", minor); !strings.Contains(before, "195:15 EPERM") || strings.Contains(before, want+"PERM") {
			t.Fatalf("before the update: %s", before)
		}
		s.update("update")
		switch noPids := strings.Contains(s.lines[0], "pids.max: no such file"); {
		case noPids && version == 2 && slices.Contains(testenv.CgroupVersions(), 1):
			t.Log("the cgroup2 tree beside v1 hierarchies has no pids controller: runc was sent the limit and could not set it")
		case s.lines[0] != "update: <nil>":
			t.Error(s.lines[0])
		}
		if after := opened(); after != before {
			t.Errorf("after the update the nodes are\n%sbefore they were\n%s", after, before)
		}
		h.Remove(t, s.id)
	})
}
