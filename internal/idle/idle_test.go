package idle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/status"
)

const limit = time.Minute

// host is a procfs and a state directory of containerd with the container web, whose process 100 has
// GPUs 0 and 1, and with the container other, whose process is 200.
type host struct {
	testtree.Root
	*Watch
	state string
	// said are the messages, suspended the containers that Suspend suspended unless it returns fails.
	said, suspended []string
	fails           error
}

func plan(id string) gpuinject.Plan {
	return gpuinject.Plan{
		GPU: true, SuspendsGPU: true, Container: &gpuinject.PlanContainer{ID: id, Namespace: "default"},
		GPUs: []gpuinject.PlanGPU{{Index: 0, PCI: "0"}, {Index: 1, PCI: "1"}},
	}
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{Root: testtree.NewRoot(t)}
	h.state = filepath.Join(h.Dir, "shim")
	h.process(100, "web")
	h.process(200, "other")
	web := plan("web")
	web.SuspendIdle = limit.Seconds()
	h.record(web, 100)
	h.record(plan("other"), 200)
	h.restart()
	return h
}

// restart begins a new Watch.
func (h *host) restart() {
	h.Helper()
	st, err := state.Open(h.state, false)
	h.Check(err)
	source := status.Source{Proc: procfs.FS(h.Dir + "/proc"), Root: "/", StateDirs: []string{h.Dir + "/state"}}
	h.Watch = &Watch{Records: source.Read, Proc: source.Proc, State: st,
		Say: func(text string) { h.said = append(h.said, text) },
		Suspend: func(_ context.Context, r status.Record) error {
			if h.fails == nil {
				h.suspended = append(h.suspended, r.ID)
				h.suspend(true)
			}
			return h.fails
		},
	}
}

func (h *host) process(pid int, container string) {
	h.Process("proc", pid, "/bin/train", nil)
	h.Write(fmt.Sprintf("proc/%d/cgroup", pid), "0::/default/"+container+"\n")
}

func (h *host) bundle(id string) string {
	return filepath.Join("state/io.containerd.runtime.v2.task/default", id)
}

func (h *host) record(p gpuinject.Plan, pid int) {
	h.Helper()
	text, err := json.Marshal(p)
	h.Check(err)
	h.Write(filepath.Join(h.bundle(p.Container.ID), gpuinject.RecordName), string(text))
	h.Write(filepath.Join(h.bundle(p.Container.ID), "init.pid"), fmt.Sprint(pid))
}

// suspend makes web suspended, or resumes it.
func (h *host) suspend(on bool) {
	name := filepath.Join(h.bundle("web"), gpuinject.SuspendedName)
	if on {
		h.Write(name, "5")
	} else {
		h.Check(os.Remove(filepath.Join(h.Dir, name)))
	}
}

// idle are GPUs 0 and 1 when they do nothing and web has memory of the first.
func idleGPUs() []*probe.GPUUse { return []*probe.GPUUse{{Processes: []int{100}}, {}} }

// add adds an observation at a minute of the program's clock, and returns what is known about web then.
func (h *host) add(minute float64, uses []*probe.GPUUse) status.Idle {
	h.Helper()
	o := probe.Observation{Clock: time.Duration(minute * float64(time.Minute))}
	for i, use := range uses {
		o.GPUs = append(o.GPUs, probe.Observed{PCI: fmt.Sprint(i), Use: use})
	}
	h.Check(h.Add(context.Background(), o))
	return status.ReadIdle(h.state).Containers["default/web"]
}

func (h *host) want(minute float64, uses []*probe.GPUUse, suspensions int, reason string) {
	h.Helper()
	got := h.add(minute, uses)
	if len(h.suspended) != suspensions || got.Reason != reason || got.Since.IsZero() == (reason == "") {
		h.Errorf("at %v: suspended %d times, %+v, want %d times, %q", minute, len(h.suspended), got, suspensions, reason)
	}
}

func TestAnIdleContainerIsSuspendedAfterItsTime(t *testing.T) {
	h := newHost(t)
	h.want(5, idleGPUs(), 0, "")
	h.want(5.9, idleGPUs(), 0, "")
	h.want(6, idleGPUs(), 1, "it is suspended")
	if got := h.add(6.1, idleGPUs()); !got.Suspended || got.After != 60 {
		t.Errorf("%+v", got)
	}
	if text := "container web was idle for 1m0s and is suspended: nvidia-shimctl resume web"; len(h.said) != 1 || h.said[0] != text {
		t.Errorf("%q", h.said)
	}
	events := state.Events{Dir: h.state}
	if list, _ := events.Next(); len(list) != 1 || list[0].Kind != state.Suspended || list[0].Who != "web" {
		t.Errorf("%+v", list)
	}
	// Its operator resumes it.
	h.suspend(false)
	h.want(7, idleGPUs(), 1, "")
	h.want(7.9, idleGPUs(), 1, "")
	h.want(8, idleGPUs(), 2, "it is suspended")
}

func TestAContainerThatItsOperatorSuspendsAndResumesHasAWholeTime(t *testing.T) {
	h := newHost(t)
	h.want(5, idleGPUs(), 0, "")
	h.suspend(true)
	if got := h.add(5.5, idleGPUs()); got.Suspended || got.Reason != "it is suspended" {
		t.Errorf("%+v", got)
	}
	h.suspend(false)
	h.want(6, idleGPUs(), 0, "")
	h.want(6.9, idleGPUs(), 0, "")
	h.want(7, idleGPUs(), 1, "it is suspended")
}

// Work, and whatever is not known, ends the time.
func TestWhatIsNotIdle(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		uses         []*probe.GPUUse
		plan         func(*gpuinject.Plan)
	}{
		{name: "works", reason: "GPU 0 works", uses: []*probe.GPUUse{{Busy: true, Processes: []int{100}}, {}}},
		{name: "one of its GPUs works", reason: "GPU 1 works", uses: []*probe.GPUUse{{Processes: []int{100}}, {Busy: true}}},
		{name: "unknown", reason: "GPU 1 cannot be judged: MIG", uses: []*probe.GPUUse{{Processes: []int{100}}, {Unknown: "MIG"}}},
		{name: "not asked", reason: "GPU 1 was not observed", uses: []*probe.GPUUse{{Processes: []int{100}}, nil}},
		{name: "not observed", reason: "GPU 1 was not observed", uses: []*probe.GPUUse{{Processes: []int{100}}}},
		{name: "another container's process", reason: "GPU 0 is used by process 200, too", uses: []*probe.GPUUse{{Processes: []int{100, 200}}, {}}},
		{name: "a process of the host", reason: "GPU 1 is used by process 300, too", uses: []*probe.GPUUse{{Processes: []int{100}}, {Processes: []int{300}}}},
		{name: "nothing to give back", reason: "no process has memory of its GPUs", uses: []*probe.GPUUse{{}, {}}},
		{name: "MIG devices", reason: "it has MIG devices", plan: func(p *gpuinject.Plan) { p.MIG = []gpuinject.PlanMIG{{GPU: 2}} }},
		{name: "no GPU", reason: "it has MIG devices", plan: func(p *gpuinject.Plan) { p.GPUs = nil }},
		{name: "MPS", reason: "it may use MPS", plan: func(p *gpuinject.Plan) { p.Sockets = []string{config.MPS} }},
		{name: "keeps its GPUs", reason: "it keeps its GPUs when it is paused", plan: func(p *gpuinject.Plan) { p.SuspendsGPU = false }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHost(t)
			h.want(5, idleGPUs(), 0, "")
			p := plan("web")
			p.SuspendIdle = limit.Seconds()
			if tc.plan != nil {
				tc.plan(&p)
				tc.uses = idleGPUs()
			}
			h.record(p, 100)
			h.want(6, tc.uses, 0, tc.reason)
			if tc.plan != nil {
				return
			}
			h.want(6.1, idleGPUs(), 0, "")
			h.want(7, idleGPUs(), 0, "")
			h.want(7.1, idleGPUs(), 1, "it is suspended")
		})
	}
}

func TestAContainerThatDidNotAskIsLeftAlone(t *testing.T) {
	h := newHost(t)
	h.record(plan("web"), 100)
	for minute := range 10 {
		h.add(float64(minute), idleGPUs())
	}
	if len(h.suspended) > 0 || len(status.ReadIdle(h.state).Containers) > 0 {
		t.Errorf("%q, %+v", h.suspended, status.ReadIdle(h.state))
	}
}

// Nothing is known about the time in which nothing watched, or about another container of that name.
func TestATimeBeginsAgain(t *testing.T) {
	h := newHost(t)
	h.want(5, idleGPUs(), 0, "")
	h.restart()
	h.want(0.1, idleGPUs(), 0, "")
	h.want(1, idleGPUs(), 0, "")
	h.process(101, "web")
	p := plan("web")
	p.SuspendIdle = limit.Seconds()
	h.record(p, 101)
	mine := []*probe.GPUUse{{Processes: []int{101}}, {}}
	h.want(1.2, mine, 0, "")
	h.want(2.1, mine, 0, "")
	h.want(2.2, mine, 1, "it is suspended")
	h.restart()
	if got := h.add(0, mine); !got.Suspended {
		t.Errorf("after a restart: %+v", got)
	}
}

func TestTheOperatorsTimeNow(t *testing.T) {
	h := newHost(t)
	h.Least = 3 * time.Minute
	h.want(1, idleGPUs(), 0, "")
	h.want(3.9, idleGPUs(), 0, "")
	h.want(4, idleGPUs(), 1, "it is suspended")
}

// Each attempt that fails doubles the time to the next one, and the same error is reported once.
func TestASuspendThatFails(t *testing.T) {
	h := newHost(t)
	h.fails = errors.New("it uses MPS")
	attempts := []int{}
	for minute := range 200 {
		got := h.add(float64(minute), idleGPUs())
		if (got.Reason == "it could not be suspended: it uses MPS") != (minute > 0) {
			t.Errorf("at %d: %+v", minute, got)
		}
		if got.Since.IsZero() {
			attempts = append(attempts, minute)
		}
	}
	if got := fmt.Sprint(attempts); got != "[1 4 9 18 35 68 133 198]" {
		t.Errorf("attempts at %s", got)
	}
	if want := "container web is idle and cannot be suspended; the next attempt is when it has been idle for 2m0s: it uses MPS"; len(h.said) != 1 || h.said[0] != want {
		t.Errorf("%q", h.said)
	}
	h.fails = errors.New("another error")
	h.add(300, idleGPUs())
	h.add(400, idleGPUs())
	if len(h.said) != 2 || !strings.HasSuffix(h.said[1], "another error") {
		t.Errorf("%q", h.said)
	}
	h.fails = nil
	h.add(500, idleGPUs())
	h.want(600, idleGPUs(), 1, "it is suspended")
}

func TestInterval(t *testing.T) {
	for least, want := range map[string]time.Duration{"": 0, "1s": time.Second, "6s": 2 * time.Second, "30m": 10 * time.Second} {
		if got := Interval(config.Policy{SuspendIdleAfter: least}); got != want {
			t.Errorf("%q: %s", least, got)
		}
	}
}
