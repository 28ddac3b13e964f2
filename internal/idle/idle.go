package idle

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/status"
)

// Interval returns how often the use of GPUs is observed if a container may be suspended after it has
// been idle for least: some times in that time, and before the driver forgets samples. It is 0 if none
// is suspended.
func Interval(p config.Policy) time.Duration {
	least, err := config.ParseIdle(p.SuspendIdleAfter)
	if err != nil {
		return 0
	}
	return min(max(least/3, time.Second), 10*time.Second)
}

// Watch watches the containers of a host.
type Watch struct {
	// Records reads the containers.
	Records func() []status.Record
	// Suspend suspends one.
	Suspend func(context.Context, status.Record) error
	// Say tells people what was done, in one line.
	Say   func(text string)
	Proc  procfs.FS
	State *state.State
	// Least is policy.suspend-idle-after now; a container may have been created under another one.
	Least time.Duration

	windows map[string]window
}

// window is the time in which a container was idle.
type window struct {
	// pid is the container's first process: a later container may have its id.
	pid int
	// open is true while the container is idle, since clock, an Observation.Clock, which is the time since.
	open  bool
	clock time.Duration
	since time.Time
	// suspended is true if this Watch suspended the container. failures counts how often that has
	// failed since it last succeeded; failed is the last error.
	suspended bool
	failures  int
	failed    string
}

// Add looks at each container that asks to be suspended, and suspends those that have been idle for
// long enough.
func (w *Watch) Add(ctx context.Context, o probe.Observation) error {
	before, windows := status.ReadIdle(w.State.Dir()).Containers, map[string]window{}
	file := status.IdleFile{Containers: map[string]status.Idle{}}
	records := w.Records()
	for _, r := range records {
		if r.IdleAfter() == 0 || r.PID == 0 {
			continue
		}
		was, known := w.windows[r.Key()]
		if !known || was.pid != r.PID {
			was = window{pid: r.PID, suspended: r.Suspended != nil && before[r.Key()].Suspended}
		}
		now := w.next(ctx, r, was, w.busy(r, records, o), o.Clock)
		windows[r.Key()] = now.window
		file.Containers[r.Key()] = status.Idle{
			After: w.after(r).Seconds(), Since: now.since, Reason: now.reason, Suspended: now.suspended,
		}
	}
	w.windows, file.Time = windows, time.Now()
	return status.WriteIdle(w.State.Dir(), file)
}

type judged struct {
	window
	reason string // why it is not idle
}

// next returns the window of a container after an observation at clock, and suspends the container if
// the window is long enough. busy is why the container is not idle, or "".
func (w *Watch) next(ctx context.Context, r status.Record, now window, busy string, clock time.Duration) judged {
	switch {
	case r.Suspended != nil:
		now.open, now.since = false, time.Time{} // guard: idle: a whole window after it was resumed
		return judged{now, "it is suspended"}
	case busy != "":
		now.open, now.since, now.suspended = false, time.Time{}, false
		return judged{now, busy}
	case !now.open:
		now.open, now.clock, now.since, now.suspended = true, clock, time.Now().Truncate(time.Second), false
	}
	if clock-now.clock < w.after(r)<<now.failures { // guard: idle: after the whole time
		return judged{now, now.failed}
	}
	idle := clock - now.clock
	now.open, now.since = false, time.Time{}
	ctx, cancel := context.WithTimeout(ctx, suspendLimit)
	defer cancel()
	if err := w.Suspend(ctx, r); err != nil {
		now.failures = min(now.failures+1, maxFailures) // guard: idle: no attempt after another
		if text := "it could not be suspended: " + err.Error(); text != now.failed {
			now.failed = text
			w.Say(fmt.Sprintf("container %s is idle and cannot be suspended; the next attempt is when it has been idle for %s: %s",
				r.Label(), w.after(r)<<now.failures, err))
		}
		return judged{now, now.failed}
	}
	now.suspended, now.failures, now.failed = true, 0, ""
	w.State.AddEvent(state.Event{Kind: state.Suspended, GPU: true, Who: r.Label()})
	w.Say(fmt.Sprintf("container %s was idle for %s and is suspended: nvidia-shimctl resume %s", r.Label(), idle.Truncate(time.Second), r.ID))
	return judged{now, "it is suspended"}
}

// maxFailures is how often the time that a container has to be idle is doubled after a failure.
const maxFailures = 6

// suspendLimit bounds suspending a container. The health of the GPUs is not watched meanwhile.
const suspendLimit = 5 * time.Minute

func (w *Watch) after(r status.Record) time.Duration { return max(r.IdleAfter(), w.Least) }

// busy returns why a container is not idle, or "". What cannot be judged is not idle.
func (w *Watch) busy(r status.Record, records []status.Record, o probe.Observation) string {
	plan := r.Plan()
	switch {
	case !r.SuspendsGPU:
		return "it keeps its GPUs when it is paused"
	case len(plan.MIG) > 0 || len(plan.GPUs) == 0: // guard: idle: whole GPUs
		return "it has MIG devices"
	case slices.Contains(plan.Sockets, config.MPS): // guard: idle: no socket of MPS
		return "it may use MPS"
	}
	processes := 0
	for _, g := range plan.GPUs {
		i := slices.IndexFunc(o.GPUs, func(seen probe.Observed) bool { return seen.PCI == g.PCI })
		if i < 0 || o.GPUs[i].Use == nil {
			return fmt.Sprintf("GPU %d was not observed", g.Index)
		}
		use := o.GPUs[i].Use
		if use.Unknown != "" { // guard: idle: what is not known is work
			return fmt.Sprintf("GPU %d cannot be judged: %s", g.Index, use.Unknown)
		}
		for _, pid := range use.Processes {
			if status.Owner(w.Proc, records, pid) != r.ID { // guard: idle: no GPU of others
				return fmt.Sprintf("GPU %d is used by process %d, too", g.Index, pid)
			}
		}
		if use.Busy {
			return fmt.Sprintf("GPU %d works", g.Index)
		}
		processes += len(use.Processes)
	}
	if processes == 0 {
		return "no process has memory of its GPUs"
	}
	return ""
}
