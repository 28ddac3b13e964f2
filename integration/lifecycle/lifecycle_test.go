package lifecycle

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/api"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

func TestMain(m *testing.M) {
	testenv.Main(m, append([]string{"tools/runc-1.6"}, runtimeclass.Programs...)...)
}

// host is a host whose runc records what `update` is sent.
type host struct {
	*simhost.Host
	// updates is where the script in the place of runc puts the resources.
	updates string
}

// newHost makes a host with the runc of this name among the tools.
func newHost(t *testing.T, version int, runc string) *host {
	t.Helper()
	dir := t.TempDir()
	tools, err := testenv.ToolsDir()
	if err != nil {
		t.Fatal(err)
	}
	h := &host{updates: filepath.Join(dir, "updates")}
	if err := os.Mkdir(h.updates, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(testenv.ShimDir(), "containerd-shim-nvidia-v2"), filepath.Join(dir, "containerd-shim-nvidia-v2")); err != nil {
		t.Fatal(err)
	}
	simhost.Script(t, filepath.Join(dir, "runc"), fmt.Sprintf(`case " $* " in
*" update "*)
	cat >%[1]s/$$.json
	exec %[2]s "$@" <%[1]s/$$.json ;;
esac
exec %[2]s "$@"
`, h.updates, filepath.Join(tools, runc)))
	// It comes first in PATH, for both shims.
	h.Host = simhost.New(t, simhost.Options{Env: testenv.Options{Cgroup: version, ShimDir: dir}})
	return h
}

// script is one life of a container, recorded step by step.
type script struct {
	*host
	t       *testing.T
	id      string
	runtime string
	lines   []string
}

func (s *script) note(step, format string, args ...any) {
	s.lines = append(s.lines, s.normal(step+": "+fmt.Sprintf(format, args...)))
}

var (
	snapshotNumber = regexp.MustCompile(`snapshots/\d+`)
	timestamp      = regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+(Z|\+00:00)`)
	temporary      = regexp.MustCompile(`/[a-z-]*\d{6,}`)
	pidField       = regexp.MustCompile(`"pid":\d+`)
	seconds        = regexp.MustCompile(`"(exited_at|timestamp)":\{[^}]*\}`)
)

// normal removes what differs between two containers of one shim.
func (s *script) normal(text string) string {
	text = strings.ReplaceAll(text, s.ID, "ENV")
	text = regexp.MustCompile(`\b`+regexp.QuoteMeta(s.id)+`\b`).ReplaceAllString(text, "CONTAINER")
	text = snapshotNumber.ReplaceAllString(text, "snapshots/N")
	text = timestamp.ReplaceAllString(text, "TIME")
	text = temporary.ReplaceAllString(text, "/TEMP")
	text = pidField.ReplaceAllString(text, `"pid":N`)
	return seconds.ReplaceAllString(text, `"$1":T`)
}

// step runs ctr and records everything that it did.
func (s *script) step(name string, args ...string) { s.input(name, "", args...) }

// input is step with a standard input.
func (s *script) input(name, stdin string, args ...string) {
	cmd := s.CtrCommand(args...)
	cmd.Stdin = strings.NewReader(stdin)
	r, err := testenv.Output(time.Minute, cmd)
	s.note(name, "%q, %q, exit status %d, %v", r.Output, r.Error, r.ExitCode, err)
}

// logged is step with a command's output, by way of a file: ctr loses what
// it has not read from FIFOs when the command has ended.
func (s *script) logged(name string, verb []string, args ...string) {
	file := filepath.Join(s.Dir, "output")
	s.step(name, append(append(verb, "--log-uri", "file://"+file), args...)...)
	data, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		s.t.Fatal(err)
	}
	_ = os.Remove(file)
	s.note(name+", output", "%q", data)
}

// status records the state of the container's task.
func (s *script) status(name string) {
	s.note(name, "%s", s.state())
}

func (s *script) state() string {
	for line := range strings.Lines(s.Ctr(s.t, "tasks", "ls")) {
		if f := strings.Fields(line); len(f) > 2 && f[0] == s.id {
			return f[2]
		}
	}
	return "no task"
}

// wait waits for the task to stop.
func (s *script) wait() {
	testenv.Await(s.t, "the task stops", func() bool { return s.state() == "STOPPED" })
}

// exec is a further process in the container.
func (s *script) exec(name string, flags []string, args ...string) {
	s.logged(name, append(s.execVerb(), flags...), append([]string{s.id}, args...)...)
}

func (s *script) execVerb() []string {
	return []string{"tasks", "exec", "--exec-id", "e" + strconv.Itoa(len(s.lines))}
}

// metrics records which figures there are, and some of their values.
func (s *script) metrics(name string, values ...string) {
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
func (s *script) update(name string) {
	resources := `{"pids":{"limit":77},"devices":[{"allow":false,"access":"rwm"}]}`
	client := api.Connect(s.t, s.Env)
	_, err := client.Tasks.Update(client.Context(s.t.Context()), &tasksapi.UpdateTaskRequest{
		ContainerID: s.id,
		Resources:   &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources", Value: []byte(resources)},
	})
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
func (s *script) life(published *events) []string {
	options := []string{"--runtime", s.runtime, "--snapshotter", testenv.Snapshotter, "--env", "NVIDIA_VISIBLE_DEVICES=1"}
	s.id = s.NewID()
	defer s.Gone(s.t, s.id)
	s.step("create the container", append(append([]string{"containers", "create"}, options...),
		s.Image, s.id, "sh", "-c", `sleep 600 & trap "exit 9" TERM; wait`)...)
	s.step("start", "tasks", "start", "--detach", "--null-io", s.id)
	s.status("started")
	s.step("start again", "tasks", "start", "--detach", "--null-io", s.id)

	for _, code := range []string{"0", "3", "255"} {
		s.exec("exec exits with "+code, nil, "sh", "-c", "echo out; exit "+code)
	}
	input := append(append(s.execVerb(), "--fifo-dir", filepath.Join(s.Dir, "fifo"), s.id), "sh", "-c", "[ $(wc -c) -eq 1048576 ] && exit 4")
	s.input("exec with much input", strings.Repeat("x", 1<<20), input...)
	s.exec("exec of what is not there", nil, "/not/there")
	s.exec("exec in a directory", []string{"--cwd", "/tmp"}, "pwd")
	s.exec("exec as a user", []string{"--user", "1000"}, "id", "-u")
	s.exec("exec that kills itself", nil, "sh", "-c", "kill -KILL $$")

	s.step("pause", "tasks", "pause", s.id)
	s.status("paused")
	s.step("pause again", "tasks", "pause", s.id)
	s.exec("exec while paused", nil, "true")
	s.step("resume", "tasks", "resume", s.id)
	s.status("resumed")
	s.step("resume again", "tasks", "resume", s.id)

	s.note("ps", "%d lines", strings.Count(s.Ctr(s.t, "tasks", "ps", s.id), "\n"))
	s.metrics("metrics")
	s.update("update")
	s.metrics("metrics after the update", "pids.limit")
	s.step("checkpoint", "tasks", "checkpoint", s.id)
	s.status("after the checkpoint")

	s.step("delete while it runs", "tasks", "delete", s.id)
	s.step("kill with a signal that is none", "tasks", "kill", "-s", "NOSIG", s.id)
	s.step("kill", "tasks", "kill", "-s", "TERM", s.id)
	s.wait()
	s.status("killed")
	s.step("kill what has ended", "tasks", "kill", "-s", "TERM", s.id)
	s.exec("exec in what has ended", nil, "true")
	s.step("delete", "tasks", "delete", s.id)
	s.status("deleted")
	s.step("delete again", "tasks", "delete", s.id)

	s.step("start a second time", "tasks", "start", "--detach", "--null-io", s.id)
	s.step("kill at once", "tasks", "kill", "-s", "KILL", s.id)
	s.wait()
	s.step("delete a second time", "tasks", "delete", s.id)
	s.step("delete the container", "containers", "rm", s.id)
	s.lines = append(s.lines, published.of(s)...)

	// Short lives of other containers.
	run := func(name string, flags []string, args ...string) {
		s.id = s.NewID()
		defer s.Gone(s.t, s.id)
		argv := append([]string{"run", "--rm"}, options...)
		if s.Options.Cgroup == 2 {
			argv = append(argv, "--cpu-shares", "0")
		}
		rest := append([]string{s.Image, s.id}, args...)
		s.logged(name, append(argv, flags...), rest...)
	}
	run("run to the end", nil, "sh", "-c", "echo out; exit 42")
	run("run what is not there", nil, "/not/there")
	run("run in a directory that is not there", []string{"--cwd", "/dev/null"}, "true")
	return s.lines
}

// events is the file with what containerd publishes.
type events struct{ path string }

func (e *events) text(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(e.path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// watch starts to listen, and returns when it listens.
func (h *host) watch(t *testing.T) *events {
	t.Helper()
	e := &events{path: filepath.Join(t.TempDir(), "events")}
	out, err := os.Create(e.path)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close() // ctr has its own
	cmd := h.CtrCommand("events")
	cmd.Stdout = out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	n := 0
	testenv.Await(t, "ctr prints an event", func() bool {
		n++
		h.Ctr(t, "namespaces", "label", h.ID, fmt.Sprintf("watch=%d", n))
		return strings.Contains(e.text(t), "/namespaces/")
	})
	return e
}

var eventLine = regexp.MustCompile(` (/\S+) (\{.*\})$`)

// of lists the task events of the script's container, sorted: those of two
// processes may come in either order.
//
// Those of deleted tasks are left out. A shim ends as soon as its last task is
// deleted, and the stock one often ends before it has published that.
func (e *events) of(s *script) []string {
	var lines []string
	testenv.Await(s.t, "events of two ends of the container", func() bool {
		lines = nil
		exits := 0
		for line := range strings.Lines(e.text(s.t)) {
			m := eventLine.FindStringSubmatch(strings.TrimSpace(line))
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
		return exits == 2
	})
	if len(lines) == 0 {
		s.t.Fatalf("%s: no events of the container in\n%s", s.runtime, e.text(s.t))
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

// A container with GPUs behaves as under the stock shim: every answer, error, exit status and event
// is the same.
func TestAContainerWithAGPULivesAsItDoesUnderTheStockShim(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) { livesAsUnderTheStockShim(t, newHost(t, version, "runc")) })
}

// The same with the release candidate of the next runc.
func TestAContainerWithAGPULivesWithTheNextRunc(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) { livesAsUnderTheStockShim(t, newHost(t, version, "runc-1.6")) })
}

func livesAsUnderTheStockShim(t *testing.T, h *host) {
	t.Helper()
	published := h.watch(t)
	lives := map[string][]string{}
	for _, runtime := range []string{testenv.StockRuntime, testenv.DefaultRuntime} {
		s := &script{host: h, t: t, runtime: runtime}
		lives[runtime] = s.life(published)
	}
	stock, ours := lives[testenv.StockRuntime], lives[testenv.DefaultRuntime]
	// A container with GPUs is written to a checkpoint only if policy.allow-checkpoints is true.
	const refusal = `checkpoint: "", "ctr: nvidia: container CONTAINER has GPUs: it is written to a checkpoint only outside Kubernetes and if policy.allow-checkpoints is true`
	if !slices.ContainsFunc(ours, func(step string) bool { return strings.HasPrefix(step, refusal) }) {
		t.Errorf("a checkpoint is not refused:\n%s", strings.Join(ours, "\n"))
	}
	ofCheckpoints := func(step string) bool {
		return strings.HasPrefix(step, "checkpoint: ") || strings.HasPrefix(step, "event /tasks/checkpointed")
	}
	stock, ours = slices.DeleteFunc(stock, ofCheckpoints), slices.DeleteFunc(ours, ofCheckpoints)
	for i := range stock {
		stock[i] = strings.ReplaceAll(stock[i], testenv.StockRuntime, testenv.DefaultRuntime)
	}
	t.Logf("%d steps and events; those of the stock shim:\n%s", len(stock), strings.Join(stock, "\n"))
	slices.Sort(stock)
	slices.Sort(ours)
	simhost.Same(t, "steps and events", stock, ours)
	if len(stock) != len(ours) {
		t.Errorf("%d steps and events under the stock shim, %d under ours", len(stock), len(ours))
	}
}

// killer is a runc that kills a container's init process once it is created, and ends when that is
// gone. Its argument is the real one.
const killer = `
%s "$@" || exit
case " $* " in *" create "*) ;; *) exit 0 ;; esac
while [ "$1" != --pid-file ]; do shift; done
pid=$(cat "$2")
kill -9 $pid
while [ -d /proc/$pid ]; do :; done
exit 0
`

// The kernel may kill a container's init process, for want of memory, before it is started.
func TestAContainerWhoseProcessEndsBeforeItsMask(t *testing.T) {
	dir := t.TempDir()
	tools, err := testenv.ToolsDir()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(testenv.ShimDir(), "containerd-shim-nvidia-v2"), filepath.Join(dir, "containerd-shim-nvidia-v2")); err != nil {
		t.Fatal(err)
	}
	simhost.Script(t, filepath.Join(dir, "runc"), fmt.Sprintf(killer, filepath.Join(tools, "runc")))
	h := &host{Host: simhost.New(t, simhost.Options{Env: testenv.Options{ShimDir: dir}})}
	published := h.watch(t)
	client := api.Connect(t, h.Env)
	for _, runtime := range []string{testenv.StockRuntime, testenv.DefaultRuntime} {
		id := h.Create(t, testenv.RunOptions{Runtime: runtime, Env: []string{"NVIDIA_VISIBLE_DEVICES=0"}})
		s := &script{host: h, t: t, id: id, runtime: runtime}
		ctx := client.Context(t.Context())
		if _, err := client.Create(t.Context(), id); err != nil {
			t.Errorf("%s: create: %v", runtime, err)
			h.Remove(t, id)
			continue
		}
		s.wait()
		if err := client.Start(t.Context(), id); err == nil {
			t.Errorf("%s: it was started", runtime)
		}
		deleted, err := client.Tasks.Delete(ctx, &tasksapi.DeleteTaskRequest{ContainerID: id})
		if err != nil || deleted.GetExitStatus() != 137 {
			t.Errorf("%s: deleted with status %d, %v", runtime, deleted.GetExitStatus(), err)
		}
		testenv.Await(t, "the exit event", func() bool {
			return strings.Contains(published.text(t), `/tasks/exit {"container_id":"`+id+`"`)
		})
		h.Ctr(t, "containers", "rm", id)
		if strings.Contains(h.MountTable(t), h.BundleDir(id)) {
			t.Errorf("%s: its root file system is still mounted", runtime)
		}
	}
}
