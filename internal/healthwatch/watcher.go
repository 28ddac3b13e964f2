package healthwatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/health"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/idle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/probe"
)

// lockName is the lock of the one watcher of a host.
const lockName = "health.lock"

// retry is how long Run waits after a failure. A variable for the tests.
var retry = health.Interval

// Watcher keeps the file of this host up to date.
type Watcher struct {
	Config func() (*config.Config, error)
	// Observe calls each with what NVML says, every interval, until ctx ends or it fails, and returns
	// why. If use is true, NVML is asked how the GPUs are used.
	Observe func(ctx context.Context, interval time.Duration, use bool, each func(probe.Observation) error) error
	// Idle returns what suspends idle containers.
	Idle func(*state.State) *idle.Watch
	// Log gets one line when watching fails for another reason than before.
	Log io.Writer
}

// errOff and errChanged end watching until the next attempt, without a message.
var (
	errOff     = errors.New("policy.health is \"off\"")
	errChanged = errors.New("the configuration has changed")
)

// Run watches until ctx ends. While another process watches, it waits for that one's end.
func (w Watcher) Run(ctx context.Context) {
	last := ""
	for ctx.Err() == nil {
		err := w.watch(ctx)
		if text := err.Error(); text != last && ctx.Err() == nil {
			last = text
			if !errors.Is(err, errOff) && !errors.Is(err, errChanged) && !errors.Is(err, state.ErrBusy) {
				fmt.Fprintf(w.Log, "nvidia-shimctl: the health of the GPUs is not watched: %s\n", text)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
}

// lock takes the lock of the one watcher, also if another program holds it.
func (w Watcher) lock(st *state.State) (*os.File, error) {
	lock, err := st.Lock(lockName, 0)
	name := filepath.Join(st.Dir(), lockName)
	if pid, _ := state.ReadHolder(name); pid == 0 && errors.Is(err, state.ErrBusy) {
		time.Sleep(state.StrangerTimeout)
		if pid, _ = state.ReadHolder(name); pid == 0 { // guard: health: a lock that another program holds
			lock, err = os.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		}
	}
	if err != nil {
		return nil, err
	}
	return lock, state.WriteHolder(lock, time.Time{})
}

// watch watches until ctx ends or watching fails, and returns why.
func (w Watcher) watch(ctx context.Context) error {
	cfg, err := w.Config()
	if err != nil {
		return err
	}
	every := idle.Interval(cfg.Policy)
	if cfg.Policy.Health == config.Off && every == 0 {
		return errOff
	}
	h, err := host.Discover(cfg.Host)
	if err != nil {
		return err
	}
	st, err := state.Open(cfg.Host.StateDir, false)
	if err != nil {
		return err
	}
	lock, err := w.lock(st)
	if err != nil {
		return err
	}
	defer lock.Close()
	var containers *idle.Watch
	if every > 0 {
		containers = w.Idle(st)
		containers.Least, _ = config.ParseIdle(cfg.Policy.SuspendIdleAfter)
	}
	k := newKeeper(cfg.Host, h.DriverVersion)
	return w.Observe(ctx, cmp.Or(every, health.Interval), every > 0, func(o probe.Observation) error {
		now, err := w.Config()
		if err != nil {
			return err
		}
		if now.Policy.Health != cfg.Policy.Health || now.Policy.SuspendIdleAfter != cfg.Policy.SuspendIdleAfter { // guard: idle: allowed still
			return errChanged
		}
		if cfg.Policy.Health != config.Off {
			k.add(o, time.Now().Truncate(time.Second))
			err = health.Write(cfg.Host.StateDir, k.file)
		}
		if err == nil && every > 0 {
			err = containers.Add(ctx, o)
		}
		return err
	})
}

// keeper turns observations into the content of the file.
type keeper struct {
	file health.File
	// asked has the GPUs, by PCI address, for which the driver has asked for a recovery action, and
	// those of an earlier watcher.
	asked map[string]bool
}

// newKeeper begins with what an earlier watcher knew, if the driver has not been loaded again since.
func newKeeper(cfg config.Host, driver string) *keeper {
	k := &keeper{asked: map[string]bool{}}
	k.file = health.File{Boot: health.BootID(), Driver: driver, Module: module(cfg), GPUs: []health.GPU{}}
	if f, err := health.Load(cfg.StateDir); err == nil && f.Boot == k.file.Boot && f.Driver == driver && f.Module == k.file.Module {
		k.file.GPUs = f.GPUs
		for _, g := range f.GPUs {
			k.asked[g.PCI] = true
		}
	}
	return k
}

// module identifies the load of the kernel module: sysfs gives each directory a new inode number.
func module(cfg config.Host) uint64 {
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(cfg.SysRoot, "module/nvidia/version"), &st); err != nil {
		return 0
	}
	return st.Ino
}

// maxXids bounds the Xids of a GPU in the file.
const maxXids = 16

// add adds an observation to the file.
func (k *keeper) add(o probe.Observation, now time.Time) {
	before := k.file.GPUs
	k.file.Time, k.file.Unwatched, k.file.GPUs = now, o.Unwatched, []health.GPU{}
	for _, g := range before { // an observation ends with a GPU that hangs
		if !slices.ContainsFunc(o.GPUs, func(seen probe.Observed) bool { return seen.PCI == g.PCI }) {
			k.file.GPUs = append(k.file.GPUs, g)
		}
	}
	for _, seen := range o.GPUs {
		var was health.GPU
		if i := slices.IndexFunc(before, func(g health.GPU) bool { return g.PCI == seen.PCI }); i >= 0 {
			was = before[i]
		}
		g := health.GPU{PCI: seen.PCI, UUID: cmp.Or(seen.UUID, was.UUID), Since: now}
		if !k.isRecovered(seen) {
			g.Xids = slices.Clone(was.Xids)
		}
		for _, number := range seen.Xids {
			g.Xids = slices.DeleteFunc(g.Xids, func(x health.Xid) bool { return x.Number == number })
			g.Xids = append(g.Xids, health.Xid{Number: number, Time: now})
		}
		g.Xids = bounded(g.Xids)
		g.State, g.Reason, g.Fix = classify(seen, g.Xids)
		switch {
		case g.State == health.OK:
			g.Since = time.Time{}
		case g.State == was.State && g.Reason == was.Reason:
			g.Since = was.Since
		}
		k.file.GPUs = append(k.file.GPUs, g)
	}
}

// isRecovered reports whether the driver asked for a recovery action, or an earlier watcher may have
// seen that, and asks for none now: the GPU was reset, and its Xids belong to the past. NVML reports
// no reset, and drivers before 570 no recovery action.
func (k *keeper) isRecovered(o probe.Observed) bool {
	if o.Recovery == nil {
		return false
	}
	asked := k.asked[o.PCI]
	k.asked[o.PCI] = *o.Recovery > 0
	return asked && *o.Recovery == 0
}

// bounded leaves out the oldest Xids, those of applications first.
func bounded(list []health.Xid) []health.Xid {
	for len(list) > maxXids {
		i := slices.IndexFunc(list, func(x health.Xid) bool { _, known := xids[x.Number]; return !known })
		i = max(i, 0)
		list = slices.Delete(list, i, i+1)
	}
	return list
}
