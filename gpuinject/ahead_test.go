package gpuinject

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

// rewrite gives a bundle another configuration.
func rewrite(t *testing.T, dir string, spec *specs.Spec) {
	t.Helper()
	raw, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, bundle.ConfigName), string(raw), 0o600)
}

func TestWhatWasSeenAheadCountsOnlyAsLongAsItIsThere(t *testing.T) {
	for _, tc := range []struct {
		name, seen, asked string
		decoded           bool // ahead
	}{
		{"the same", "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=0", true},
		{"another GPU", "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=1", false},
		{"nothing any more", "NVIDIA_VISIBLE_DEVICES=0", "A=B", false},
		{"a GPU after all", "A=B", "NVIDIA_VISIBLE_DEVICES=1", false},
		{"nothing", "A=B", "A=B", false},
		{"a word that means nothing", "NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=void", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := hostConfig(t)
			dir := newBundle(t, newSpec(tc.seen))
			ahead := LookAhead(dir, loading(cfg))
			seen := ahead.bundle
			rewrite(t, dir, newSpec(tc.asked))

			want, wantRaw, err := Examine(dir, loading(cfg))
			if err != nil {
				t.Fatal(err)
			}
			got, raw, err := ahead.Examine(dir, loading(cfg))
			if err != nil || (got == nil) != (want == nil) || string(raw) != string(wantRaw) {
				t.Fatalf("job %v, want %v (%v)", got, want, err)
			}
			if got == nil {
				return
			}
			if !reflect.DeepEqual(got.Request, want.Request) || !reflect.DeepEqual(got.bundle, want.bundle) {
				t.Errorf("got %+v of %+v, want %+v of %+v", got.Request, got.bundle, want.Request, want.bundle)
			}
			if (got.bundle == seen) != tc.decoded {
				t.Errorf("decoded ahead: %v, want %v", got.bundle == seen, tc.decoded)
			}
			if again, _, err := ahead.Examine(dir, loading(cfg)); err != nil || again.bundle == got.bundle {
				t.Errorf("two jobs have one bundle (%v)", err)
			}
		})
	}
}

// containerd names the bundle by another path than the shim does.
func TestWhatWasSeenAheadIsEditedWhereItWasAskedFor(t *testing.T) {
	cfg := hostConfig(t)
	dir := newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=0"))
	t.Chdir(dir)
	job, _, err := LookAhead(".", loading(cfg)).Examine(dir, loading(cfg))
	if err != nil || job.bundle.Dir != dir {
		t.Fatalf("bundle %+v, want it in %s (%v)", job, dir, err)
	}
}

func TestADriverThatChangesAfterTheLookAheadIsFoundAnew(t *testing.T) {
	cfg := hostConfig(t)
	dir := newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=0"))
	mustInject(t, cfg, dir)
	time.Sleep(50 * time.Millisecond) // driver.Files.Settled
	mustInject(t, cfg, dir)
	ahead := LookAhead(dir, loading(cfg))
	if ahead.manifest == nil {
		t.Fatal("the manifest was not read")
	}
	resolved := func() *Job {
		job, _, err := ahead.Examine(dir, loading(cfg))
		if err == nil {
			err = job.Resolve()
		}
		if err != nil {
			t.Fatal(err)
		}
		return job
	}
	if resolved().manifest != ahead.manifest {
		t.Error("the manifest was decoded again, and nothing had changed")
	}
	libs := resolved().files.Libraries
	now := time.Now()
	if err := os.Chtimes(libs[0].Path, now, now); err != nil {
		t.Fatal(err)
	}
	if job := resolved(); !job.looked || job.manifest == ahead.manifest {
		t.Error("a library has changed, and the manifest of before it counts")
	}
	// Another shim has looked meanwhile.
	state, err := view.OpenState(cfg.Host.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	other := *ahead.manifest
	other.Version = "1.2.3"
	if err := state.Store(manifestName, &other); err != nil {
		t.Fatal(err)
	}
	if m, ok := ahead.load(state, manifestName); !ok || m.Version != "1.2.3" {
		t.Errorf("the manifest is %+v, want the one that is kept now", m)
	}
}

func TestALookAheadLeavesNoTraceAndReportsNothing(t *testing.T) {
	cfg := hostConfig(t)
	broken := func() (*config.Config, error) { return nil, errors.New("broken") }
	for name, look := range map[string]func() *Ahead{
		"no state directory":     func() *Ahead { return LookAhead(newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=0")), loading(cfg)) },
		"a broken configuration": func() *Ahead { return LookAhead(newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=0")), broken) },
		"no bundle":              func() *Ahead { return LookAhead(t.TempDir(), broken) },
		"a bundle of nonsense": func() *Ahead {
			dir := t.TempDir()
			writeFile(t, filepath.Join(dir, bundle.ConfigName), "NVIDIA_VISIBLE_DEVICES", 0o600)
			return LookAhead(dir, broken)
		},
	} {
		t.Run(name, func(t *testing.T) {
			look()
			if _, err := os.Lstat(cfg.Host.StateDir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("there is a state directory (%v)", err)
			}
		})
	}
}

func TestTheGPUsThatWereSeenAheadCountForAMomentAndAreConfirmed(t *testing.T) {
	d, cfg := newHost(t, sim.Options{GPUs: 2})
	dir := newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=0"))
	ahead := func(before func(*Ahead)) (job *Job, seen *device.Inventory) {
		t.Helper()
		a := LookAhead(dir, loading(cfg))
		<-a.listed
		seen = a.inventory
		before(a)
		job, _, err := a.Examine(dir, loading(cfg))
		if err == nil {
			err = job.Resolve()
		}
		if err != nil || seen == nil {
			t.Fatal(seen, err)
		}
		return job, seen
	}
	information := func(minor int) string {
		for _, g := range d.GPUs {
			if g.Minor == minor {
				return filepath.Join(cfg.Host.ProcRoot, "driver/nvidia/gpus", g.BusID, "information")
			}
		}
		t.Fatal("no such GPU")
		return ""
	}
	t.Run("they count", func(t *testing.T) {
		job, seen := ahead(func(*Ahead) {})
		if job.inv != seen || !job.confirm {
			t.Error("the GPUs were listed again")
		}
		if inv, confirm, err := job.ahead.gpus(Roots(cfg.Host)); err != nil || inv == seen || confirm {
			t.Errorf("two jobs have one list of GPUs (%v)", err)
		}
	})
	t.Run("not a moment later", func(t *testing.T) {
		if job, seen := ahead(func(a *Ahead) { a.at = a.at.Add(-aheadFor) }); job.inv == seen || job.confirm {
			t.Error("the GPUs were not listed again")
		}
	})
	t.Run("not of another procfs", func(t *testing.T) {
		if job, seen := ahead(func(a *Ahead) { a.roots.Proc += "/." }); job.inv == seen {
			t.Error("the GPUs were not listed again")
		}
	})
	t.Run("one that changes is refused before the container starts", func(t *testing.T) {
		job, _ := ahead(func(*Ahead) {})
		inj, err := job.Inject(filepath.Join(dir, "rootfs"))
		if err != nil {
			t.Fatal(err)
		}
		defer inj.Close()
		name := information(job.gpus[0].Minor)
		old, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		changed := strings.Replace(string(old), job.gpus[0].UUID, "GPU-00000000-0000-0000-0000-000000000000", 1)
		if err := os.WriteFile(name, []byte(changed), 0o444); err != nil {
			t.Fatal(err)
		}
		refused(t, inj.Attach(os.Getpid()), Precondition, "has changed")
	})
}

func TestMIGDevicesThatWereSeenAheadCountForAMomentAndAreConfirmed(t *testing.T) {
	// ahead looks, lets before happen, and resolves.
	ahead := func(t *testing.T, h *migHost, asked string, before func(dir string)) (job *Job, dir string, counted bool) {
		t.Helper()
		dir = newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES="+asked))
		a := LookAhead(dir, loading(h.cfg))
		<-a.listed
		seen := a.inventory
		before(dir)
		job, _, err := a.Examine(dir, loading(h.cfg))
		if err == nil {
			err = job.Resolve()
		}
		if err != nil || seen == nil {
			t.Fatal(seen, err)
		}
		return job, dir, job.inv == seen
	}
	reconfigure := func(t *testing.T, h *migHost, mig ...sim.MIGDevice) {
		t.Helper()
		if err := h.Reconfigure(t.Context(), mig); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("they are not read again", func(t *testing.T) {
		h := newMIGHost(t)
		hidden := filepath.Join(h.cfg.Host.ProcRoot, fmt.Sprintf("driver/nvidia/capabilities/gpu%d/mig/gi9", h.GPUs[1].Minor))
		job, _, counted := ahead(t, h, "all", func(string) {
			if err := os.Rename(filepath.Join(hidden, "access"), filepath.Join(hidden, "hidden")); err != nil {
				t.Fatal(err)
			}
		})
		if !counted || len(job.set.MIG) != 3 {
			t.Errorf("the MIG devices were listed again: %v", job.set.Names())
		}
	})
	t.Run("another layout before the request", func(t *testing.T) {
		h := newMIGHost(t)
		job, _, counted := ahead(t, h, "all", func(string) { reconfigure(t, h, sim.MIGDevice{GPU: 0, GI: 2}) })
		if counted || len(job.set.MIG) != 1 || job.set.MIG[0].GI != 2 || len(job.set.GPUs) != 2 {
			t.Errorf("the container gets %v", job.set.Names())
		}
	})
	t.Run("one that is gone before the start", func(t *testing.T) {
		for name, mutate := range map[string]func(*specs.Spec){
			"masked": func(*specs.Spec) {},
			"unmasked": func(s *specs.Spec) {
				s.Process.Capabilities.Bounding, s.Linux.MaskedPaths = []string{"CAP_SYS_ADMIN"}, nil
			},
		} {
			t.Run(name, func(t *testing.T) {
				h := newMIGHost(t)
				job, dir, _ := ahead(t, h, "all", func(dir string) {
					spec := newSpec("NVIDIA_VISIBLE_DEVICES=all")
					mutate(spec)
					rewrite(t, dir, spec)
				})
				inj, err := job.Inject(filepath.Join(dir, "rootfs"))
				if err != nil {
					t.Fatal(err)
				}
				defer inj.Close()
				if job.Plan.Proc.Masked != (name == "masked") {
					t.Fatal("masked:", job.Plan.Proc.Masked)
				}
				reconfigure(t, h, sim.MIGDevice{GPU: 1, GI: 5}, sim.MIGDevice{GPU: 1, GI: 5, CI: 1})
				refused(t, inj.Attach(os.Getpid()), Precondition, "read MIG capability", "gi9")
			})
		}
	})
}
