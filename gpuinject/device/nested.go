package device

import (
	"os"
	"path/filepath"
	"strconv"
)

// OnlyPresent leaves out the GPUs that have no node here, and counts the others from 0
// as NVML does. It is for a host that is a container itself (kind): procfs shows every
// GPU of the machine there, unless it is masked, and the nodes are those that the
// container was given.
func (inv *Inventory) OnlyPresent() {
	present := inv.GPUs[:0]
	for _, g := range inv.GPUs {
		if _, err := os.Lstat(filepath.Join(inv.Roots.Dev, "dev", "nvidia"+strconv.Itoa(g.Minor))); err == nil || g.Minor < 0 {
			g.Index = len(present)
			present = append(present, g)
		}
	}
	inv.GPUs = present
}
