package gpuinject

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
)

// probed is a host whose NVML counts how often it is asked.
type probed struct {
	cfg   *config.Config
	asked atomic.Int32
	// answer is what NVML says; nil for someFacts of the loaded driver.
	answer func() (device.Facts, error)
}

// newProbed has a procfs of its own, for tests that change it.
func newProbed(t *testing.T) *probed {
	t.Helper()
	p := &probed{cfg: hostConfig(t)}
	proc := filepath.Join(t.TempDir(), "proc")
	if err := os.CopyFS(proc, os.DirFS(p.cfg.Host.ProcRoot)); err != nil {
		t.Fatal(err)
	}
	p.cfg.Host.ProcRoot = proc
	return p
}

// facts is what one create does that needs them.
func (p *probed) facts() (*device.Facts, error) {
	inv, err := device.Discover(Roots(p.cfg.Host))
	if err != nil {
		return nil, err
	}
	job := &Job{Config: p.cfg, inv: inv}
	job.AskNVML = func() (device.Facts, error) {
		p.asked.Add(1)
		if p.answer != nil {
			return p.answer()
		}
		facts := someFacts()
		facts.Driver = inv.DriverVersion
		return facts, nil
	}
	return job.facts()
}

func (p *probed) kept() string { return filepath.Join(p.cfg.Host.StateDir, factsName) }

func TestNVMLIsAskedAgainWhereItsAnswerMayBeAnother(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(t *testing.T, p *probed)
		again  bool
	}{
		{"not where nothing changed", func(*testing.T, *probed) {}, false},
		{"after another driver was loaded", func(t *testing.T, p *probed) {
			replaceIn(t, filepath.Join(p.cfg.Host.ProcRoot, "driver/nvidia/version"), simulated.Version, "599.11.22")
		}, true},
		{"after a boot", func(t *testing.T, p *probed) {
			rekey(t, p, func(key string) string { return "8f3b6f0e-0000-0000-0000-000000000000" + key[36:] })
		}, true},
		{"after a MIG instance was made", func(t *testing.T, p *probed) {
			dir := filepath.Join(p.cfg.Host.ProcRoot, "driver/nvidia/capabilities/gpu0/mig/gi1")
			writeFile(t, filepath.Join(dir, "access"), "DeviceFileMinor: 12\n", 0o444)
			writeFile(t, filepath.Join(dir, "ci0/access"), "DeviceFileMinor: 13\n", 0o444)
		}, true},
		{"after a GPU was taken away", func(t *testing.T, p *probed) {
			if err := os.RemoveAll(filepath.Join(p.cfg.Host.ProcRoot, "driver/nvidia/gpus", simulated.GPUs[3].BusID)); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"where the answer was tampered with", func(t *testing.T, p *probed) { replaceIn(t, p.kept(), `"13.0"`, `"99.0"`) }, true},
		{"where a checksum of somebody else is on it", func(t *testing.T, p *probed) {
			replaceIn(t, p.kept(), string(readFile(t, p.cfg.Host.StateDir, factsName)[:8]), "00000000")
		}, true},
		{"where the answer is cut", func(t *testing.T, p *probed) {
			if err := os.Truncate(p.kept(), 100); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"where somebody else owns the answer", func(t *testing.T, p *probed) {
			if err := os.Chown(p.kept(), 1000, 0); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"where others can write the answer", func(t *testing.T, p *probed) {
			if err := os.Chmod(p.kept(), 0o666); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"where a link is in the answer's place", func(t *testing.T, p *probed) {
			if err := errors.Join(os.Rename(p.kept(), p.kept()+".away"), os.Symlink(p.kept()+".away", p.kept())); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"where the answer is gone", func(t *testing.T, p *probed) {
			if err := os.Remove(p.kept()); err != nil {
				t.Fatal(err)
			}
		}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newProbed(t)
			for range 2 {
				if _, err := p.facts(); err != nil {
					t.Fatal(err)
				}
			}
			if n := p.asked.Load(); n != 1 {
				t.Fatalf("NVML was asked %d times by two containers", n)
			}
			tc.change(t, p)
			facts, err := p.facts()
			if err != nil {
				t.Fatal(err)
			}
			if facts.CUDA != "13.0" {
				t.Errorf("CUDA %s was believed", facts.CUDA)
			}
			if again := p.asked.Load() == 2; again != tc.again {
				t.Errorf("asked again: %v, want %v", again, tc.again)
			}
		})
	}
}

// rekey keeps the answer for another key, as the shim itself would have.
func rekey(t *testing.T, p *probed, change func(string) string) {
	t.Helper()
	state, err := view.OpenState(p.cfg.Host.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	var k knownFacts
	if !state.Load(factsName, &k) {
		t.Fatal("nothing was kept")
	}
	k.Key = change(k.Key)
	if err := state.Store(factsName, &k); err != nil {
		t.Fatal(err)
	}
}

func TestContainersThatStartTogetherAskNVMLOnce(t *testing.T) {
	p := newProbed(t)
	p.answer = func() (device.Facts, error) {
		time.Sleep(50 * time.Millisecond)
		return someFacts(), nil
	}
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			if _, err := p.facts(); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if n := p.asked.Load(); n != 1 {
		t.Errorf("NVML was asked %d times", n)
	}
}

func TestNoAnswerIsNotKept(t *testing.T) {
	p := newProbed(t)
	p.answer = func() (device.Facts, error) { return device.Facts{}, errors.New("GPU is lost") }
	if _, err := p.facts(); err == nil || !strings.Contains(err.Error(), "GPU is lost") {
		t.Fatalf("error %v", err)
	}
	p.answer = nil
	if _, err := p.facts(); err != nil {
		t.Errorf("NVML answers again, and the create says: %v", err)
	}
}

func TestAnAnswerWithoutAllGPUsIsNotKept(t *testing.T) {
	p := newProbed(t)
	p.answer = func() (device.Facts, error) {
		facts := someFacts()
		facts.GPUs = facts.GPUs[1:]
		return facts, nil
	}
	if facts, err := p.facts(); err != nil || len(facts.GPUs) != 3 {
		t.Fatalf("%v, %v", facts, err)
	}
	p.answer = nil
	if facts, err := p.facts(); err != nil || len(facts.GPUs) != 4 {
		t.Errorf("the GPU answers again, and the create knows of %v, %v", facts, err)
	}
}

func TestAContainerDoesNotWaitForEverForAnothersAnswer(t *testing.T) {
	defer func(d time.Duration) { factsWait = d }(factsWait)
	factsWait = 50 * time.Millisecond
	p := newProbed(t)
	started, hang := make(chan struct{}), make(chan struct{})
	p.answer = func() (device.Facts, error) {
		close(started)
		<-hang
		return device.Facts{}, errors.New("gave up")
	}
	var group sync.WaitGroup
	group.Go(func() { _, _ = p.facts() })
	<-started
	_, err := p.facts()
	close(hang)
	group.Wait()
	if err == nil || !strings.Contains(err.Error(), "NVML is being asked for another container and has not answered within 50ms") {
		t.Errorf("error %v", err)
	}
}

func replaceIn(t *testing.T, name, from, to string) {
	t.Helper()
	text := string(readFile(t, "", name))
	if !strings.Contains(text, from) {
		t.Fatalf("%s has no %q", name, from)
	}
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, name, strings.Replace(text, from, to, 1), info.Mode())
}
