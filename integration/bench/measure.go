package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/record"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/api"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/mounts"
)

// settle is how long the host is left alone before a measured call: the shim of
// the container before, and containerd's cleanup behind it, are still at work when
// the delete call returns.
const settle = 50 * time.Millisecond

// bench is a running benchmark.
type bench struct {
	*testenv.Lifetime
	// daemons are the containerds of the variants, by name; "" is that of all others.
	daemons map[string]*daemon
	result  *Result
}

// daemon is a containerd whose shims have a configuration and a state directory of their
// own: two builds that shared one could undo each other's files with every container.
type daemon struct {
	env    *testenv.Env
	client *api.Client
	// stateDir is that of our shim.
	stateDir string
	events   state.Events
}

// startDaemon starts a containerd with the images.
func startDaemon(h *testenv.Lifetime, o testenv.Options, stateDir string, imageTars []string) *daemon {
	d := &daemon{stateDir: stateDir, events: state.Events{Dir: stateDir}}
	// What the shims leave mounted is unmounted after containerd has ended.
	h.Cleanup(func() {
		if err := d.removeState(); err != nil {
			h.Error(err)
		}
	})
	d.env = testenv.Start(h, o)
	for _, tar := range imageTars {
		d.env.Import(h, tar)
	}
	d.client = api.Connect(h, d.env)
	return d
}

// daemonOf returns the containerd that starts the containers of a variant.
func (b *bench) daemonOf(v Variant) *daemon {
	if d, ok := b.daemons[v.Name]; ok {
		return d
	}
	return b.daemons[""]
}

// measure takes n rounds of create and start of all cases.
func (b *bench) measure(ctx context.Context, n int, progress func(round int)) error {
	if err := b.warmUp(ctx); err != nil {
		return err
	}
	return b.rounds(n, func(c Case, v Variant, round int) error {
		s, err := b.sample(ctx, v)
		s.Case, s.Variant, s.Round = c.Name, v.Name, round
		b.result.Samples = append(b.result.Samples, s)
		return err
	}, progress)
}

// rounds calls do for every variant of every case, n times, in random order: those of a
// case one after the other.
func (b *bench) rounds(n int, do func(c Case, v Variant, round int) error, progress func(round int)) error {
	for round := range n {
		progress(round)
		for _, i := range rand.Perm(len(b.result.Cases)) {
			c := b.result.Cases[i]
			for _, j := range rand.Perm(len(c.Variants)) {
				if err := do(c, c.Variants[j], round); err != nil {
					return fmt.Errorf("%s, %s: %w", c.Name, c.Variants[j].Name, err)
				}
			}
		}
	}
	return nil
}

// warmUp runs every variant once, unmeasured, and checks that it is what it claims to be:
// containers with the requested GPUs, or untouched.
func (b *bench) warmUp(ctx context.Context) error {
	for _, c := range b.result.Cases {
		for _, v := range c.Variants {
			if _, err := b.sample(ctx, v); err != nil {
				return fmt.Errorf("%s, %s: %w", c.Name, v.Name, err)
			}
		}
	}
	return nil
}

// sample measures create and start of one variant once.
func (b *bench) sample(ctx context.Context, v Variant) (Sample, error) {
	t, err := b.started(ctx, v)
	if err != nil {
		return Sample{}, err
	}
	s := Sample{Create: milliseconds(t.create), Start: milliseconds(t.start)}
	if events, _ := t.events.Next(); len(events) > 0 {
		s.Own = events[len(events)-1].OwnSeconds * 1e3
	}
	if err := b.check(t, v); err != nil {
		return s, err
	}
	s.CPU = processorTime(append(t.env.ShimPIDs(t.id), t.pid))
	return s, t.remove(ctx)
}

// started makes a container that runs until it is removed.
func (b *bench) started(ctx context.Context, v Variant) (*task, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d := b.daemonOf(v)
	id := d.env.Create(b, v.options("sleep", "1000"))
	if v.cold {
		if err := d.removeState(); err != nil {
			return nil, err
		}
	}
	time.Sleep(settle)
	t, err := d.start(ctx, id)
	if err != nil || !v.again {
		return t, err
	}
	if err := t.stop(ctx); err != nil {
		return nil, err
	}
	time.Sleep(settle)
	return d.start(ctx, id)
}

func (v Variant) options(args ...string) testenv.RunOptions {
	return testenv.RunOptions{Image: v.image, Runtime: v.runtime, Env: v.env, Extra: v.extra, Args: args}
}

// check compares the shim's record of a running container with what the variant
// is for.
func (b *bench) check(t *task, v Variant) error {
	for _, name := range v.nodes {
		info, err := os.Stat(fmt.Sprintf("/proc/%d/root%s", t.pid, name))
		if err != nil {
			return fmt.Errorf("a device node of the container: %w", err)
		}
		if info.Mode()&fs.ModeCharDevice == 0 {
			return fmt.Errorf("%s in the container is no device node", name)
		}
	}
	plan, err := record.Read(t.env.BundleDir(t.id))
	if errors.Is(err, fs.ErrNotExist) && v.gpus < 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the shim's record: %w", err)
	}
	if len(plan.GPUs) != v.gpus || len(plan.MIG) != v.mig {
		return fmt.Errorf("the container got %d GPUs and %d MIG devices, want %d (-1: no record) and %d", len(plan.GPUs), len(plan.MIG), v.gpus, v.mig)
	}
	return nil
}

// bursts is how often containers are started at once.
const bursts = 5

// The two ways in which a burst starts its containers.
const (
	startTasks  = "64 tasks created and started at once"
	runDetached = "64 times `ctr run --detach` at once"
)

// burst starts burstSize containers at once, in both ways, and returns how many started a second,
// by way and variant.
func (b *bench) burst(ctx context.Context, variants ...Variant) (map[string]map[string][]float64, error) {
	out := map[string]map[string][]float64{startTasks: {}, runDetached: {}}
	for range bursts {
		for way, rates := range out {
			for _, i := range rand.Perm(len(variants)) {
				rate, err := b.oneBurst(ctx, variants[i], way)
				if err != nil {
					return nil, fmt.Errorf("%s, %s: %w", way, variants[i].Name, err)
				}
				rates[variants[i].Name] = append(rates[variants[i].Name], rate)
			}
		}
	}
	return out, nil
}

func (b *bench) oneBurst(ctx context.Context, v Variant, way string) (rate float64, err error) {
	d, o := b.daemonOf(v), v.options("sleep", "1000")
	o.Detach = true
	tasks, errs := make([]*task, burstSize), make([]error, burstSize)
	for i := range tasks {
		tasks[i] = &task{daemon: d, id: d.env.NewID()}
		if way == startTasks {
			tasks[i].id = d.env.Create(b, o)
		}
	}
	time.Sleep(settle)
	var group sync.WaitGroup
	began := time.Now()
	for i, t := range tasks {
		group.Go(func() {
			if way == startTasks {
				_, errs[i] = d.start(ctx, t.id)
				return
			}
			run := o
			run.ID = t.id
			r, err := d.env.TryRun(b, run)
			if err == nil && r.ExitCode != 0 {
				err = errors.New(r.Error)
			}
			errs[i] = err
		})
	}
	group.Wait()
	rate = burstSize / time.Since(began).Seconds()
	for _, t := range tasks {
		if errs[0] == nil {
			errs[0] = t.remove(ctx)
		}
	}
	return rate, errors.Join(errs...)
}

// removeState makes the next GPU container the first one since boot.
func (d *daemon) removeState() error {
	return mounts.RemoveAll(d.stateDir)
}

func milliseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

// ticks are a second in the fields of /proc/PID/stat (USER_HZ).
const ticks = 100

// processorTime is what processes, and those that they waited for, have used, in
// milliseconds: proc_pid_stat(5), fields utime, stime, cutime and cstime. Each is in
// whole ticks, so that only means of many say anything.
func processorTime(pids []int) float64 {
	sum := 0
	for _, pid := range pids {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0
		}
		// The name of the program is in parentheses and may have anything in it.
		fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
		if len(fields) < 15 {
			return 0
		}
		for _, f := range fields[11:15] {
			n, _ := strconv.Atoi(f)
			sum += n
		}
	}
	return float64(sum) * 1000 / ticks
}
