package gpuinject

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/bundle"
)

// injected takes a container through Inject and no further.
func injected(t *testing.T) (inj *Injection, dir string) {
	t.Helper()
	dir = newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=0"))
	job, _, err := Examine(dir, loading(hostConfig(t)))
	if err == nil {
		err = job.Resolve()
	}
	if err == nil {
		inj, err = job.Inject(filepath.Join(dir, "rootfs"))
	}
	if err != nil {
		t.Fatal(err)
	}
	return inj, dir
}

// The mask is held by a descriptor.
func TestAnInjectionThatIsClosedGivesTheMaskUp(t *testing.T) {
	// Which the collector closes, too.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for name, until := range map[string]func(*Injection){
		"before anything was begun": func(*Injection) {},
		"while it is made":          (*Injection).Begin,
		"when it is made":           func(i *Injection) { _ = i.Wait() },
	} {
		t.Run(name, func(t *testing.T) {
			end := func() {
				inj, _ := injected(t)
				until(inj)
				inj.Close()
				inj.Close()
			}
			end()
			before := descriptors(t)
			for range 8 {
				end()
			}
			time.Sleep(20 * time.Millisecond) // what is still made is open by now
			if after := descriptors(t); after >= before+8 {
				t.Errorf("%d descriptors are open, before it were %d", after, before)
			}
		})
	}
}

func TestNoMaskIsAttachedWithoutARecord(t *testing.T) {
	inj, dir := injected(t)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	inj.Begin()
	refused(t, inj.Attach(os.Getpid()), Internal, "write "+RecordName)
	if inj.mask != nil {
		t.Error("a mask was made")
	}
}

func TestAPanicMeanwhileGoesToWhoWaits(t *testing.T) {
	inj, _ := injected(t)
	inj.job.bundle = (*bundle.Bundle)(nil)
	inj.Begin()
	defer inj.Close()
	defer func() {
		if recover() == nil {
			t.Error("nobody panics")
		}
	}()
	_ = inj.Wait()
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
