package healthwatch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/health"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/idle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/status"
)

var check = testtree.Check

func recovery(action uint32) *uint32 { return &action }

func TestClassify(t *testing.T) {
	for _, tc := range []struct {
		name          string
		seen          probe.Observed
		xids          []uint64
		state, reason string
	}{
		{name: "nothing", state: health.OK},
		{name: "no action", seen: probe.Observed{Recovery: recovery(0)}, state: health.OK},
		{name: "an application's Xids", xids: []uint64{13, 31, 43, 45, 68, 8, 154, 999}, state: health.OK},
		{name: "lost", seen: probe.Observed{Lost: true, Error: "GPU is lost"}, state: health.Refuse, reason: "NVML says that the GPU is lost"},
		{name: "needs a reset", seen: probe.Observed{NeedsReset: true, Error: "x"}, state: health.Refuse, reason: "NVML says that the GPU needs a reset"},
		{name: "cannot be read", seen: probe.Observed{Error: "Unknown Error"}, state: health.Warn, reason: "Unknown Error"},
		{name: "rows not remapped", seen: probe.Observed{RemapFailed: true, RemapPending: true}, state: health.Refuse, reason: "a memory row could not be remapped; memory rows are remapped at the next reset"},
		{name: "rows to remap", seen: probe.Observed{RemapPending: true}, state: health.Warn, reason: "memory rows are remapped at the next reset"},
		{name: "unrepairable memory", seen: probe.Observed{Unrepairable: true}, state: health.Refuse, reason: "memory cannot be repaired"},
		{name: "pages to retire", seen: probe.Observed{PagesPending: true}, state: health.Warn, reason: "memory pages are retired at the next reset"},
		{name: "ECC errors", seen: probe.Observed{Uncorrected: 1}, state: health.Warn, reason: "uncorrected ECC errors since the driver was loaded"},
		{name: "an unknown action", seen: probe.Observed{Recovery: recovery(99)}, state: health.Refuse, reason: "the driver asks for recovery action 99"},
		{name: "the worst first", seen: probe.Observed{Recovery: recovery(1), Uncorrected: 2}, xids: []uint64{63, 48}, state: health.Refuse,
			reason: "Xid 48 (double bit ECC error); the driver asks for a reset of the GPU; Xid 63 (row remapping recorded); uncorrected ECC errors since the driver was loaded"},
	} {
		var list []health.Xid
		for _, n := range tc.xids {
			list = append(list, health.Xid{Number: n})
		}
		state, reason, fix := classify(tc.seen, list)
		if state != tc.state || reason != tc.reason || (fix == "") != (state == health.OK) {
			t.Errorf("%s: %s, %q, %q", tc.name, state, reason, fix)
		}
	}
	refused := map[uint64]bool{48: true, 62: true, 64: true, 79: true, 95: true, 119: true, 120: true, 140: true, 143: true}
	for number := range uint64(200) {
		state, _, _ := classify(probe.Observed{}, []health.Xid{{Number: number}})
		if (state == health.Refuse) != refused[number] {
			t.Errorf("Xid %d: %s", number, state)
		}
	}
	for action, want := range []string{health.OK, health.Refuse, health.Refuse, health.Warn, health.Refuse, health.Warn, health.Refuse, health.Refuse, health.Refuse} {
		if state, _, _ := classify(probe.Observed{Recovery: recovery(uint32(action))}, nil); state != want {
			t.Errorf("recovery action %d: %s", action, state)
		}
	}
}

// step is what a watcher observes, and the state then: "refuse Xid 79", the number of the Xids that
// count, or "".
type step struct {
	seen probe.Observed
	want string
}

func TestWhatAWatcherRemembers(t *testing.T) {
	const restarted, reloaded, rebooted = "restarted", "reloaded", "rebooted"
	xid := func(n uint64, action *uint32) probe.Observed {
		return probe.Observed{PCI: "0000:01:00.0", Xids: []uint64{n}, Recovery: action}
	}
	quiet := func(action *uint32) probe.Observed { return probe.Observed{PCI: "0000:01:00.0", Recovery: action} }
	for _, tc := range []struct {
		name    string
		first   []step
		between string
		then    []step
	}{
		{"an Xid stays", []step{{xid(79, recovery(0)), "79"}, {quiet(recovery(0)), "79"}}, "", nil},
		{"until the driver asks for nothing any more", []step{{xid(48, recovery(1)), "48"}, {quiet(recovery(1)), "48"}, {quiet(recovery(0)), ""}}, "", nil},
		{"an old driver does not say that", []step{{xid(48, nil), "48"}}, restarted, []step{{quiet(nil), "48"}}},
		{"an earlier watcher's Xid, still sick", []step{{xid(48, recovery(1)), "48"}}, restarted, []step{{quiet(recovery(1)), "48"}, {quiet(recovery(0)), ""}}},
		{"an earlier watcher's Xid, reset meanwhile", []step{{xid(48, recovery(1)), "48"}}, restarted, []step{{quiet(recovery(0)), ""}}},
		{"the driver was loaded again", []step{{xid(48, nil), "48"}}, reloaded, []step{{quiet(nil), ""}}},
		{"the host was booted again", []step{{xid(48, nil), "48"}}, rebooted, []step{{quiet(nil), ""}}},
		{"an observation without the GPU", []step{{xid(48, nil), "48"}, {probe.Observed{PCI: "0000:02:00.0"}, "48"}}, "", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := testtree.NewHost(t, 1)
			cfg, err := config.Load(d.Config)
			check(t, err)
			check(t, os.Mkdir(cfg.Host.StateDir, 0o700))
			k := newKeeper(cfg.Host, testtree.Version)
			take := func(steps []step) {
				for _, s := range steps {
					k.add(probe.Observation{GPUs: []probe.Observed{s.seen}}, time.Now())
					if got := strings.Trim(fmt.Sprint(numbers(k.file)), "[]"); got != s.want {
						t.Errorf("after %+v: %q, want %q", s.seen, got, s.want)
					}
				}
			}
			take(tc.first)
			switch f := k.file; tc.between {
			case reloaded:
				d.LoadModule(testtree.Version)
			case rebooted:
				f.Boot = "another"
				k.file = f
			}
			check(t, health.Write(cfg.Host.StateDir, k.file))
			k = newKeeper(cfg.Host, testtree.Version)
			take(tc.then)
		})
	}
}

func numbers(f health.File) (list []uint64) {
	for _, g := range f.GPUs {
		for _, x := range g.Xids {
			list = append(list, x.Number)
		}
	}
	return list
}

// A state begins when it is first seen.
func TestSinceWhen(t *testing.T) {
	k := &keeper{asked: map[string]bool{}}
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	for i, tc := range []struct {
		pending bool
		since   int
	}{{false, 0}, {true, 1}, {true, 1}, {false, 0}} {
		k.add(probe.Observation{GPUs: []probe.Observed{{PCI: "a", RemapPending: tc.pending}}}, now.Add(time.Duration(i)*time.Minute))
		want := time.Time{}
		if tc.since > 0 {
			want = now.Add(time.Duration(tc.since) * time.Minute)
		}
		if !k.file.GPUs[0].Since.Equal(want) {
			t.Errorf("%d: %+v", i, k.file.GPUs)
		}
	}
	for n := range uint64(100) {
		k.add(probe.Observation{GPUs: []probe.Observed{{PCI: "a", Xids: []uint64{79, 1000 + n}}}}, now)
	}
	if list := numbers(k.file); len(list) != maxXids || list[maxXids-1] != 1099 {
		t.Errorf("%d", list)
	}
}

// One watcher of a host writes; the next one takes over. "off" writes nothing.
func TestRun(t *testing.T) {
	defer func(d time.Duration) { retry = d }(retry)
	retry = time.Millisecond
	d := testtree.NewHost(t, 1)
	load := func() (*config.Config, error) { return config.Load(d.Config) }
	name := filepath.Join(d.State, health.Name)
	var log strings.Builder
	run := func(ctx context.Context, xid uint64) chan bool {
		ended := make(chan bool)
		go func() {
			defer close(ended)
			Watcher{Config: load, Log: &log, Observe: func(ctx context.Context, _ time.Duration, _ bool, each func(probe.Observation) error) error {
				check(t, each(probe.Observation{GPUs: []probe.Observed{{PCI: "a", Xids: []uint64{xid}}}}))
				<-ctx.Done()
				return ctx.Err()
			}}.Run(ctx)
		}()
		return ended
	}
	written := func(want string) {
		t.Helper()
		for start := time.Now(); ; time.Sleep(time.Millisecond) {
			f, err := health.Read(d.State, testtree.Version, time.Now())
			if got := fmt.Sprint(numbers(f)); err == nil && got == want {
				return
			}
			if time.Since(start) > 30*time.Second {
				t.Fatalf("%+v, %v, want %s", f, err, want)
			}
		}
	}
	first, stopFirst := context.WithCancel(t.Context())
	ended := run(first, 48)
	written("[48]")
	second, stopSecond := context.WithCancel(t.Context())
	endedSecond := run(second, 63)
	written("[48]")
	stopFirst()
	<-ended
	written("[48 63]")
	stopSecond()
	<-endedSecond
	if log.String() != "" {
		t.Errorf("log %q", log.String())
	}
	check(t, os.Remove(name))
	d.Write("config.toml", readFile(t, d.Config)+"[policy]\nhealth = \"off\"\n")
	off, stopOff := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stopOff()
	<-run(off, 79)
	if _, err := os.Stat(name); err == nil {
		t.Error("\"off\" wrote the file")
	}
}

// Idle containers are watched whatever policy.health is, while the configuration allows it.
func TestIdleContainersAreWatched(t *testing.T) {
	d := testtree.NewHost(t, 1)
	text := readFile(t, d.Config)
	allow := func(after string) {
		d.Write("config.toml", text+"[policy]\nhealth = \"off\"\nsuspend-idle-after = \""+after+"\"\n")
	}
	allow("30m")
	read := 0
	w := Watcher{
		Config: func() (*config.Config, error) { return config.Load(d.Config) },
		Idle: func(st *state.State) *idle.Watch {
			return &idle.Watch{State: st, Records: func() []status.Record { read++; return nil }}
		},
		Observe: func(_ context.Context, interval time.Duration, use bool, each func(probe.Observation) error) error {
			check(t, each(probe.Observation{}))
			if !use || interval != 10*time.Second || read != 1 {
				t.Errorf("use %v every %s, containers were read %d times", use, interval, read)
			}
			allow("")
			return each(probe.Observation{})
		},
	}
	if err := w.watch(t.Context()); !errors.Is(err, errChanged) || read != 1 {
		t.Errorf("%v, containers were read %d times", err, read)
	}
	if err := w.watch(t.Context()); !errors.Is(err, errOff) {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(d.State, health.Name)); err == nil {
		t.Error("\"off\" wrote the file")
	}
}

// flock(2) needs no write access: root in a container that sees the host's /run can hold the lock.
func TestALockThatAnotherProgramHoldsStopsNoWatcher(t *testing.T) {
	d := testtree.NewHost(t, 1)
	name := filepath.Join(d.State, lockName)
	check(t, os.MkdirAll(d.State, 0o700))
	check(t, os.WriteFile(name, nil, 0o600))
	f, err := os.Open(name)
	check(t, err)
	defer f.Close()
	check(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	observed := errors.New("observed")
	w := Watcher{
		Config: func() (*config.Config, error) { return config.Load(d.Config) },
		Observe: func(context.Context, time.Duration, bool, func(probe.Observation) error) error {
			return observed
		},
	}
	if err := w.watch(t.Context()); !errors.Is(err, observed) {
		t.Error(err)
	}
}

// A failure is reported once.
func TestAFailureIsReportedOnce(t *testing.T) {
	defer func(d time.Duration) { retry = d }(retry)
	retry = time.Microsecond
	d := testtree.NewHost(t, 1)
	ctx, stop := context.WithCancel(t.Context())
	var log strings.Builder
	n := 0
	Watcher{Log: &log, Config: func() (*config.Config, error) { return config.Load(d.Config) },
		Observe: func(context.Context, time.Duration, bool, func(probe.Observation) error) error {
			if n++; n == 5 {
				stop()
			}
			return errors.New("NVML is gone")
		}}.Run(ctx)
	if log.String() != "nvidia-shimctl: the health of the GPUs is not watched: NVML is gone\n" {
		t.Errorf("%q", log.String())
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	check(t, err)
	return string(data)
}
