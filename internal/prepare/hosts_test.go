package prepare

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/simtest"
)

// Where the nodes are not the kernel module's, or were given to this host as to a
// container, none is made.
func TestNodesOfOtherHostsAreNotOursToMake(t *testing.T) {
	for _, tt := range []struct {
		name, note string
		become     func(d *sim.Driver) error
	}{
		{"WSL2", "WSL2", func(d *sim.Driver) error { return d.BecomeWSL(t.Context()) }},
		{"a Tegra", "Tegra", func(d *sim.Driver) error { return d.BecomeTegra(t.Context()) }},
		{"a container", "is a container", func(d *sim.Driver) error {
			lib := filepath.Join(d.Root, d.Layout.LibDir(), "libcuda.so."+d.Version)
			if err := unix.Mount(lib, lib, "", unix.MS_BIND, ""); err != nil {
				return err
			}
			t.Cleanup(func() { unix.Unmount(lib, unix.MNT_DETACH) })
			return os.Remove(fmt.Sprintf("%s/dev/nvidia%d", d.DevRoot, d.GPUs[1].Minor))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := simtest.New(t, sim.Options{GPUs: 2})
			if err := tt.become(d); err != nil {
				t.Fatal(err)
			}
			c, err := config.Load(d.ConfigPath)
			if err != nil {
				t.Fatal(err)
			}
			h := host{t, d.DevRoot}
			before := h.nodes()
			r := h.run(Options{Host: c.Host, LoadModules: true})
			if !r.Ready || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], tt.note) {
				t.Errorf("%+v", r)
			}
			if after := h.nodes(); strings.Join(before, "\n") != strings.Join(after, "\n") {
				t.Errorf("nodes %v, before %v", after, before)
			}
		})
	}
}
