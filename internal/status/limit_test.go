package status

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/memlimit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
)

func TestLimitsAreShownBesideUse(t *testing.T) {
	f, inventory, live := statusFixture(t)
	limited := granted("limited", "default", "", 0)
	limited.Memory = []memlimit.Limit{{UUID: "GPU-0", Limit: 8 << 30, Request: 4 << 30}, {UUID: "GPU-9", Limit: 1}}
	f.bundle("state", "default", "limited", 50, limited)
	s := Join(f.Proc, inventory, live, nil, f.Read())
	var b strings.Builder
	if s.Print(term.New(&b)); strings.Count(b.String(), "reserved") != 1 || !strings.Contains(b.String(), "4096 MiB of GPU 0 are reserved for limited\n") {
		t.Error(b.String())
	}
	for _, c := range s.Containers {
		for _, u := range c.Uses {
			if want := c.ID == "limited"; (u.Limit == 8<<30) != want || (u.Request == 4<<30) != want {
				t.Errorf("%s: %+v", c.ID, u)
			}
		}
		if c.ID != "limited" {
			continue
		}
		if rows := s.useRows(c); len(rows) != 1 || rows[0][1] != "0/8192 MiB" {
			t.Errorf("%q", rows)
		}
		c.Suspended = new(time.Time)
		if rows := s.useRows(c); rows[0][1] != "suspended" {
			t.Errorf("%q", rows)
		}
	}
}

// The driver's own count comes before the sum of processes, and the tables say for which GPUs.
func TestTheDriverCountsMemory(t *testing.T) {
	f, inventory, live := statusFixture(t)
	records := f.Read()
	dir := filepath.Join(cgroupRoot, "default/one")
	if got := Cgroups(records); !slices.Contains(got, dir) || len(got) != 4 {
		t.Errorf("cgroups %q", got)
	}
	live.GPUs[1].Cgroups = map[string]uint64{dir: 3 << 30} // of GPU 0
	s := Join(f.Proc, inventory, live, nil, records)
	for _, c := range s.Containers {
		for _, u := range c.Uses {
			if counted := c.ID == "one" && u.Name == "0"; counted != (u.From == FromCgroup) || counted && *u.Memory != 3<<30 {
				t.Errorf("%s: %+v", c.ID, u)
			}
		}
	}
	if got := s.counted(); got != "0" {
		t.Errorf("counted on %q", got)
	}
}

// A cgroup of the container, not one above or below it, and none for which the driver would return the
// use of one above.
func TestTheCgroupOfAContainer(t *testing.T) {
	root := cgroupRoot
	t.Cleanup(func() { cgroupRoot = root })
	cgroupRoot = t.TempDir()
	for _, c := range []struct{ path, want string }{
		{"/pod/id", "/pod/id"}, {"/pod/id/init.scope", "/pod/id"}, {"/kubepods.slice/cri-containerd-id.scope", "/kubepods.slice/cri-containerd-id.scope"},
		{"/pod/other", ""}, {"/", ""}, {"", ""}, {"/../../id", ""},
	} {
		if c.want != "" {
			c.want = cgroupRoot + c.want
		}
		if got := cgroupOf(c.path, "id"); got != c.want {
			t.Errorf("%s: %q, want %q", c.path, got, c.want)
		}
	}
	testtree.Check(t, os.WriteFile(filepath.Join(cgroupRoot, "dmem.capacity"), nil, 0o600))
	if got := cgroupOf("/pod/id", "id"); got != "" {
		t.Errorf("without the controller: %q", got)
	}
	testtree.Check(t, os.MkdirAll(filepath.Join(cgroupRoot, "pod/id"), 0o700))
	testtree.Check(t, os.WriteFile(filepath.Join(cgroupRoot, "pod/id/dmem.max"), nil, 0o600))
	if got := cgroupOf("/pod/id", "id"); got == "" {
		t.Error("with the controller it has none")
	}
}
