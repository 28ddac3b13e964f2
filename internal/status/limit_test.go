package status

import (
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/memlimit"
)

func TestLimitsAreShownBesideUse(t *testing.T) {
	f, inventory, live := statusFixture(t)
	limited := granted("limited", "default", "", 0)
	limited.Memory = []memlimit.Limit{{UUID: "GPU-0", Limit: 8 << 30, Request: 4 << 30}, {UUID: "GPU-9", Limit: 1}}
	f.bundle("state", "default", "limited", 50, limited)
	s := Join(f.Proc, inventory, live, nil, f.Read())
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
