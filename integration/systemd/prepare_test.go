package systemd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cdispec"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// Install's unit, run by systemd itself, makes the nodes that were not made at boot, and the CDI
// specification again once the driver's module has changed.
func TestTheUnitOfPrepareMakesTheNodes(t *testing.T) {
	m := startMachine(t)
	dev := filepath.Join(m.Driver.DevRoot, "dev")
	for _, name := range []string{"nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1", "nvidia2", "nvidia-caps"} {
		if err := os.RemoveAll(filepath.Join(dev, name)); err != nil {
			t.Fatal(err)
		}
	}
	const modules = "/lib/modules/$(uname -r)"
	m.run(t, "sh", "-c", "mkdir -p "+modules)
	install := []string{"--bin-dir", inBin, "--containerd-config", "/etc/containerd/config.toml"}
	m.run(t, append([]string{"nvidia-shimctl", "install", "--containerd", inBin + "/tools/containerd", "--prepare-unit", "--restart"}, install...)...)
	show := m.run(t, "systemctl", "show", runtimeclass.UnitName, "--property", "ActiveState,Result,UnitFileState,Before,After")
	simhost.Want(t, show, "ActiveState=active\n", "Result=success\n", "UnitFileState=enabled\n")
	for line := range strings.Lines(show) {
		if before, ok := strings.CutPrefix(line, "Before="); ok && !strings.Contains(before, "containerd.service") {
			t.Errorf("not ordered before containerd: %s", show)
		}
	}
	c := m.sleep(t, 1, containerOptions{})
	c.check(t)
	c.remove(t)

	m.run(t, append([]string{"nvidia-shimctl", "install", "--containerd", inBin + "/tools/containerd", "--cdi"}, install...)...)
	made := m.run(t, "cat", cdispec.Path)
	testtree.Check(t, m.Driver.Upgrade("999.1.2"))
	want := m.run(t, "nvidia-shimctl", "cdi")
	if want == made {
		t.Fatalf("the upgrade changed nothing in\n%s", made)
	}
	// depmod does this for the new kernel module.
	m.run(t, "sh", "-c", "cd "+modules+" && echo >modules.dep.new && mv modules.dep.new modules.dep")
	testenv.Await(t, cdispec.Path+" of the new driver", func() bool { return m.run(t, "cat", cdispec.Path) == want })

	m.run(t, append([]string{"nvidia-shimctl", "uninstall", "--keep-programs"}, install...)...)
	m.run(t, "systemctl", "daemon-reload")
	if r := m.try(t, nil, "systemctl", "cat", runtimeclass.UnitName); r.ExitCode == 0 {
		t.Errorf("uninstall left the unit: %s", r.Output)
	}
	if r := m.try(t, nil, "cat", cdispec.Path); r.ExitCode == 0 {
		t.Errorf("uninstall left %s", cdispec.Path)
	}
}

// The CDI specification follows changes of MIG, also many of them at once and in a row.
func TestTheCDIFileFollowsChangesOfMIG(t *testing.T) {
	m := startMachine(t)
	m.run(t, "ln", "-s", inDriver+"/devroot/dev/nvidia-caps", "/dev/")
	before := m.etc(t)
	args := []string{"--bin-dir", inBin, "--containerd-config", "/etc/containerd/config.toml", "--restart"}
	m.run(t, append([]string{"nvidia-shimctl", "install", "--containerd", inBin + "/tools/containerd", "--prepare-unit", "--cdi"}, args...)...)
	m.run(t, "systemd-analyze", "verify", "--man=no", runtimeclass.UnitName, "nvidia-shim-cdi.path")
	var all []sim.MIGDevice
	for gi := range 7 {
		all = append(all, sim.MIGDevice{GPU: 1, GI: gi})
	}
	follows := func(t *testing.T, n int) {
		want := m.run(t, "nvidia-shimctl", "cdi")
		testenv.Await(t, fmt.Sprintf("%s with %d MIG devices", cdispec.Path, n), func() bool {
			return m.run(t, "cat", cdispec.Path) == want
		})
		if count := strings.Count(want, "name: MIG-"); count != n {
			t.Fatalf("%d MIG devices, want %d, in\n%s", count, n, want)
		}
	}
	for n := len(all); n >= 0; n-- {
		testtree.Check(t, m.Driver.Reconfigure(t.Context(), all[:n]))
		follows(t, n)
	}
	// A change during the update for an earlier one is not lost.
	slow := "/run/systemd/system/" + runtimeclass.UnitName + ".d"
	m.run(t, "sh", "-c", "mkdir -p "+slow+" && printf '[Service]\\nExecStartPost=sleep 2\\n' >"+slow+"/slow.conf && systemctl daemon-reload")
	testtree.Check(t, m.Driver.Reconfigure(t.Context(), all[:3]))
	testenv.Await(t, "start of prepare", func() bool {
		return m.run(t, "systemctl", "show", "--property=SubState", "--value", runtimeclass.UnitName) == "start-post\n"
	})
	testtree.Check(t, m.Driver.Reconfigure(t.Context(), all[:2]))
	follows(t, 2)
	m.run(t, append([]string{"nvidia-shimctl", "uninstall", "--keep-programs"}, args...)...)
	if after := m.etc(t); after != before {
		t.Errorf("/etc is not as before: %s", changed(before, after))
	}
}
