package attacks

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// creates is how many containers are made against each racing flipper; `make test-long` sets 500.
var creates = flag.Int("creates", 15, "containers against each racing flipper (T15, T16)")

// flip exchanges two names, like another container with the same volume (CVE-2026-24260), until
// stop is called, which returns the number of exchanges.
func flip(t testing.TB, a, b string) (stop func() int) {
	t.Helper()
	var done atomic.Bool
	var wg sync.WaitGroup
	flips := 0
	wg.Go(func() {
		for n := 0; !done.Load(); n++ {
			err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
			if err == nil {
				flips++
			} else if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EBUSY) {
				t.Errorf("exchange: %v", err)
				return
			}
			if n%64 == 0 { // leave processor time to the containers
				time.Sleep(100 * time.Microsecond)
			}
		}
	})
	return func() int { done.Store(true); wg.Wait(); return flips }
}

func TestNamesThatAreExchangedWhileContainersAreMadeNeverLeadOut(t *testing.T) {
	h := newHost(t, simhost.Options{})
	lib := simhost.Multiarch
	for _, test := range []struct {
		name, mount, flip string // flip is below the volume, or the root without one
		target            string
	}{
		{"T15 gbm in a volume at the library directory", lib, "gbm", "../../../../../../CANARY"},
		{"T15 a directory of the driver's data in a volume", "/usr/share", "glvnd", "/proc/1/root/CANARY"},
		{"T15 a directory below etc in a volume", "/etc/vulkan", "icd.d", "/CANARY"},
		{"T16 the compatibility directory in a volume", "/usr/local/cuda", "compat", "../../../../../../CANARY"},
		{"T15 etc in a shared root", "", "etc", "../../../../../../CANARY"},
		{"T15 the driver's place in a shared root", "", "usr/local/nvidia", "/CANARY"},
		{"T15 the library directory in a shared root", "", lib[1:], "../../../../../../CANARY"},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := h.Tree(t, "glibc-hwcaps")
			o := testenv.RunOptions{RootfsDir: root, Env: []string{one, everything}, Args: []string{"/bin/busybox", "sh", "-c", look}}
			top := root
			var volumes []string
			if test.mount != "" {
				top = filepath.Join(h.Dir, h.NewID())
				if err := os.Mkdir(top, 0o755); err != nil {
					t.Fatal(err)
				}
				o.Mounts = []string{"type=bind,src=" + top + ",dst=" + test.mount + ",options=rbind:rw"}
				volumes = append(volumes, top)
			}
			files := []images.File{images.Symlink(test.flip+".link", test.target)}
			if _, err := os.Stat(filepath.Join(top, test.flip)); err != nil {
				files = append(files, images.Dir(test.flip, 0o755))
			}
			if err := images.Populate(top, h.aim(files)); err != nil {
				t.Fatal(err)
			}
			h.unharmed(t, func() {
				stop := flip(t, filepath.Join(top, test.flip), filepath.Join(top, test.flip+".link"))
				started := 0
				for range *creates {
					if r := h.Run(t, o); clean(t, r) {
						started++
						h.noHostDirectory(t, r.Output, slices.Clone(volumes)...)
					}
				}
				flips := stop()
				t.Logf("%d of %d started, %d exchanges", started, *creates, flips)
				if started == 0 || flips < 100*(*creates) {
					t.Error("too few: nothing raced")
				}
			})
		})
	}
}

func TestT64AnUpgradeDuringCreatesGivesOneVersionOrARefusal(t *testing.T) {
	h := newHost(t, simhost.Options{})
	image := h.Load(t, "glibc-hwcaps")
	// Like unharmed, except for the driver's files.
	machine, state, canary := h.Snapshot(t, h.State, filepath.Join(h.Root, "io.containerd.runtime.v2.task")), h.state(t), simhost.Files(t, h.canary)
	was, other := h.Driver.Version, "590.44.01"
	values := map[string]string{"13000": was, "13010": other}
	var done atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 5 {
			for _, version := range []string{other, was} {
				if err := h.Driver.Upgrade(version); err != nil {
					t.Error(err)
				}
			}
		}
		done.Store(true)
	})
	names := regexp.MustCompile(`\.so\.(\d{3}\.\d+\.\d+)`)
	value := regexp.MustCompile(`cuDriverGetVersion=(\d+)`)
	var started, refused int
	for last := false; !last; {
		last = done.Load() // one more when it is over
		r := h.Run(t, testenv.RunOptions{Image: image, Env: []string{one}, Args: []string{"/bin/sh", "-c", "/test/dlopen -s cuDriverGetVersion libcuda.so.1; ls " + simhost.Lib + "; ls -l " + simhost.Lib + " >/dev/null"}})
		if !clean(t, r) {
			if refused++; last {
				t.Errorf("after the upgrades: %s", r.Error)
			}
			t.Logf("refused: %s", strings.TrimSpace(r.Error))
			continue
		}
		started++
		versions := map[string]bool{}
		for _, m := range names.FindAllStringSubmatch(r.Output, -1) {
			versions[m[1]] = true
		}
		m := value.FindStringSubmatch(r.Output)
		if len(versions) != 1 || m == nil || !versions[values[m[1]]] {
			t.Errorf("not of one version: %v:\n%s", versions, r.Output)
		}
	}
	wg.Wait()
	t.Logf("%d started, %d refused", started, refused)
	machine.AssertUnchanged(t, h.Driver.StateDir)
	simhost.Same(t, "the state directory", state, h.state(t))
	simhost.Same(t, "the canary", canary, simhost.Files(t, h.canary))
}
