package grant

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/question"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

// probed is a host whose NVML counts how often it is asked.
type probed struct {
	testtree.Host
	cfg   config.Host
	asked atomic.Int32
	// answer, if not nil, replaces the answer of NVML.
	answer func() (device.Facts, error)
}

func newProbed(t *testing.T) *probed {
	t.Helper()
	d := testtree.NewHost(t, 4)
	cfg, err := config.Load(d.Config)
	testtree.Check(t, err)
	return &probed{Host: d, cfg: cfg.Host}
}

// complete is an answer about every GPU.
func complete(p *probed) device.Facts {
	f := device.Facts{Driver: testtree.Version, CUDA: "13.0"}
	for i := range 4 {
		f.GPUs = append(f.GPUs, device.GPUFacts{Index: i, BusID: testtree.BusID(i)})
	}
	return f
}

// facts returns the kept answer or a new one, as the creation of a container does.
func (p *probed) facts() (device.Facts, error) {
	h, err := host.Discover(p.cfg)
	if err != nil {
		return device.Facts{}, err
	}
	seen := loadFacts(p.cfg, h)
	if seen.Facts.Driver != "" {
		return seen.Facts, nil
	}
	k, _, err := askFacts(p.cfg, h, seen, question.Questions{Facts: true}, func(q question.Questions) (a question.Answers) {
		if !q.Facts {
			return a
		}
		p.asked.Add(1)
		f := complete(p)
		f.Driver, f.GPUs = h.DriverVersion, f.GPUs[:len(h.GPUs)]
		if p.answer != nil {
			if f, err = p.answer(); err != nil {
				return question.Answers{FactsError: err.Error()}
			}
		}
		return question.Answers{Facts: &f}
	})
	return k.Facts, err
}

func (p *probed) kept() string { return filepath.Join(p.cfg.StateDir, factsFile) }

func TestAnAnswerIsKeptUntilItMayBeAnother(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, p *probed) error{
		"":                          nil,
		"another driver was loaded": func(_ *testing.T, p *probed) error { p.LoadModule("599.11.22"); return nil },
		"a boot": func(t *testing.T, p *probed) error {
			st, err := state.Open(p.cfg.StateDir, false)
			if err != nil {
				return err
			}
			var k keptFacts
			if !st.Load(factsFile, &k) {
				t.Fatal("nothing was kept")
			}
			k.Key = "8f3b6f0e-0000-0000-0000-000000000000" + k.Key[36:]
			return st.Store(factsFile, &k)
		},
		"a GPU was removed": func(_ *testing.T, p *probed) error {
			return os.RemoveAll(filepath.Join(p.cfg.ProcRoot, "driver/nvidia/gpus", testtree.BusID(3)))
		},
		"a MIG device was made": func(t *testing.T, p *probed) error {
			p.Write("proc/driver/nvidia-caps/mig-minors", "gpu1/gi1/access 12\ngpu1/gi1/ci0/access 13\n")
			p.Write("proc/driver/nvidia/capabilities/gpu1/mig/gi1/access", "DeviceFileMinor: 12\n")
			p.Write("proc/driver/nvidia/capabilities/gpu1/mig/gi1/ci0/access", "DeviceFileMinor: 13\n")
			return nil
		},
		"an answer that others can write": func(_ *testing.T, p *probed) error { return os.Chmod(p.kept(), 0o666) },
		"no answer":                       func(_ *testing.T, p *probed) error { return os.Remove(p.kept()) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newProbed(t)
			for range 2 {
				if _, err := p.facts(); err != nil {
					t.Fatal(err)
				}
			}
			if n := p.asked.Load(); n != 1 {
				t.Fatalf("two containers asked NVML %d times", n)
			}
			if change == nil {
				return
			}
			testtree.Check(t, change(t, p))
			if f, err := p.facts(); err != nil || f.CUDA != "13.0" || p.asked.Load() != 2 {
				t.Errorf("asked %d times, %+v, %v", p.asked.Load(), f, err)
			}
		})
	}
}

func TestContainersThatStartTogetherAskOnce(t *testing.T) {
	p := newProbed(t)
	asking, reply := make(chan struct{}), make(chan struct{})
	p.answer = func() (device.Facts, error) {
		close(asking)
		<-reply
		return complete(p), nil
	}
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			if _, err := p.facts(); err != nil {
				t.Error(err)
			}
		})
	}
	<-asking
	close(reply)
	group.Wait()
	if n := p.asked.Load(); n != 1 {
		t.Errorf("NVML was asked %d times", n)
	}
}

func TestAnIncompleteAnswerIsNotKept(t *testing.T) {
	answer := func(change func(*device.Facts)) func(*probed) (device.Facts, error) {
		return func(p *probed) (device.Facts, error) {
			f := complete(p)
			change(&f)
			return f, nil
		}
	}
	for name, tc := range map[string]struct {
		answer func(*probed) (device.Facts, error)
		fails  bool
	}{
		"a failure":             {func(*probed) (device.Facts, error) { return device.Facts{}, errors.New("GPU is lost") }, true},
		"of another driver":     {answer(func(f *device.Facts) { f.Driver = "1.2" }), true},
		"a GPU is missing":      {answer(func(f *device.Facts) { f.GPUs = f.GPUs[:3] }), false},
		"another GPU is listed": {answer(func(f *device.Facts) { f.GPUs[3].BusID = "0000:ff:00.0" }), false},
		"a GPU fails":           {answer(func(f *device.Facts) { f.GPUs[3].Error = "GPU 3 is lost" }), false},
		"a MIG device of a GPU fails": {answer(func(f *device.Facts) {
			f.GPUs[3].Instances = []device.InstanceFacts{{Error: "MIG device 3:0 is lost"}}
		}), false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProbed(t)
			p.answer = func() (device.Facts, error) { return tc.answer(p) }
			if _, err := p.facts(); tc.fails != (err != nil) {
				t.Errorf("error %v", err)
			}
			p.answer = nil
			if f, err := p.facts(); err != nil || len(f.GPUs) != 4 || p.asked.Load() != 2 {
				t.Errorf("asked %d times, %+v, %v", p.asked.Load(), f, err)
			}
		})
	}
}

// flock(2) needs no write access: root in a container that sees the host's /run can hold the lock.
func TestALockThatAnotherProgramHoldsStopsNoContainer(t *testing.T) {
	defer func(d time.Duration) { factsWait = d }(factsWait)
	factsWait = 50 * time.Millisecond
	p := newProbed(t)
	p.answer = func() (device.Facts, error) { return complete(p), nil }
	name := filepath.Join(p.cfg.StateDir, factsLock)
	if err := errors.Join(os.MkdirAll(p.cfg.StateDir, 0o700), os.WriteFile(name, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Open(name)
	if err == nil {
		defer lock.Close()
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.facts(); err != nil {
		t.Error(err)
	}
}
