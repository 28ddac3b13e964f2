package systemd

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// The form of the cgroup path is enough for systemd to manage the container, and its unit has rules
// for exactly the granted nodes, so that systemd keeps them.
func TestTheScopeOfAContainerAllowsExactlyItsNodes(t *testing.T) {
	m := startMachine(t)
	plain := m.sleep(t, noGPU, containerOptions{runtime: testenv.StockRuntime, flags: []string{"--runc-systemd-cgroup"}})
	base := plain.property(t, "DeviceAllow")
	for _, tc := range []struct {
		name, slice string
		gpu         int
	}{
		{"in the form of Docker and nerdctl", "system.slice", 0},
		{"in the form of a pod's", "testpods-burstable-pod4b6f.slice", 1},
		{"without a GPU", "system.slice", noGPU},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := m.sleep(t, tc.gpu, containerOptions{slice: tc.slice})
			defer c.remove(t)
			if got, want := c.property(t, "DevicePolicy"), []string{"strict"}; !slices.Equal(got, want) {
				t.Errorf("DevicePolicy: got %q, want %q", got, want)
			}
			if got, want := c.property(t, "Slice"), []string{tc.slice}; !slices.Equal(got, want) {
				t.Errorf("Slice: got %q, want %q", got, want)
			}
			want := slices.Clone(base)
			for _, line := range c.expect().Mknod {
				if number, granted := strings.CutSuffix(line, " ENXIO"); granted {
					want = append(want, "/dev/char/"+number+" rw")
				}
			}
			slices.Sort(want)
			if got := c.property(t, "DeviceAllow"); !slices.Equal(got, want) {
				t.Errorf("DeviceAllow: got %q, want %q", got, want)
			}
			procs := m.run(t, "cat", "/sys/fs/cgroup"+c.property(t, "ControlGroup")[0]+"/cgroup.procs")
			if !strings.HasSuffix(c.property(t, "ControlGroup")[0], tc.slice+"/"+c.scope()) || len(strings.Fields(procs)) == 0 {
				t.Errorf("the container's process is not in its scope %s: %q", c.property(t, "ControlGroup"), procs)
			}
			c.check(t)
		})
	}
}

// Operations that rewrite a running container's device rules on such hosts. They cost a container
// its GPU if only the kernel knows its rules.
func TestT36AContainerKeepsItsGPUWhateverRewritesDeviceRules(t *testing.T) {
	m := startMachine(t)
	writeCrun(t, m.dir+inCrun, inCrun, "/usr/bin/crun")
	crun := containerOptions{flags: []string{"--runtime-config-path", inCrun + "/crun.toml"}}
	containers := []*container{
		m.sleep(t, 0, containerOptions{}),
		m.sleep(t, 1, containerOptions{}),
		m.sleep(t, 2, containerOptions{slice: "testpods-besteffort-pod77.slice"}),
		m.sleep(t, noGPU, containerOptions{}),
		m.sleep(t, 0, crun),
		m.sleep(t, noGPU, crun),
	}
	first, underCrun := containers[0], containers[4]
	w := newWitness(t, m)
	check := func(t *testing.T) {
		t.Helper()
		for _, c := range containers {
			c.check(t)
		}
	}
	runcUpdate := func(t *testing.T, argv ...string) {
		t.Helper()
		m.run(t, append([]string{"runc", "--root", "/run/containerd/runc/" + namespace, "--systemd-cgroup", "update"}, argv...)...)
	}
	setProperty := func(t *testing.T, assignment, property, want string) {
		t.Helper()
		m.run(t, "systemctl", "set-property", "--runtime", first.scope(), assignment)
		if got := first.property(t, property); !slices.Contains(got, want) {
			t.Errorf("%s: got %q, want %q in it", property, got, want)
		}
	}
	check(t)
	for _, step := range []struct {
		name string
		do   func(t *testing.T)
	}{
		{"systemctl daemon-reload", func(t *testing.T) { w.rewrite(t, "systemctl", "daemon-reload") }},
		{"systemctl daemon-reload three times more", func(t *testing.T) {
			for range 3 {
				w.rewrite(t, "systemctl", "daemon-reload")
			}
		}},
		{"systemctl daemon-reexec", func(t *testing.T) { w.rewrite(t, "systemctl", "daemon-reexec") }},
		{"another program took the device programs off and systemctl daemon-reload", func(t *testing.T) {
			// What is left is systemd's own: its DeviceAllow alone is exact.
			if n, err := allowEveryDevice(first.cgroupDir(t)); err != nil || n == 0 {
				t.Fatalf("took %d device programs off: %v", n, err)
			}
			w.rewrite(t, "systemctl", "daemon-reload")
			first.settle(t)
		}},
		{"an update through the Task API that denies every device", func(t *testing.T) {
			first.update(t, denyAll())
			underCrun.update(t, denyAll())
		}},
		{"systemctl daemon-reload after the update", func(t *testing.T) { w.rewrite(t, "systemctl", "daemon-reload") }},
		{"runc update", func(t *testing.T) { runcUpdate(t, first.id) }},
		{"runc update with resources that deny every device", func(t *testing.T) {
			m.run(t, "sh", "-c", `echo '{"devices":[{"allow":false,"access":"rwm"}]}' > /run/deny.json`)
			runcUpdate(t, "--resources", "/run/deny.json", first.id)
		}},
		{"systemctl set-property", func(t *testing.T) { setProperty(t, "TasksMax=200", "TasksMax", "200") }},
		{"systemctl set-property that allows a device more", func(t *testing.T) {
			setProperty(t, "DeviceAllow=/dev/char/10:229 rw", "DeviceAllow", "/dev/char/10:229 rw")
		}},
		{"systemctl daemon-reload after set-property", func(t *testing.T) { w.rewrite(t, "systemctl", "daemon-reload") }},
		{"a restart of containerd", func(t *testing.T) { m.run(t, "systemctl", "restart", "containerd") }},
		{"the end of another container", func(t *testing.T) {
			containers[1].remove(t)
			containers = slices.Delete(containers, 1, 2)
		}},
		{"the start of another container", func(t *testing.T) { containers = append(containers, m.sleep(t, 1, containerOptions{})) }},
		{"systemctl daemon-reload with both", func(t *testing.T) { w.rewrite(t, "systemctl", "daemon-reload") }},
	} {
		t.Run("after "+step.name, func(t *testing.T) {
			step.do(t)
			check(t)
		})
	}
}

// witness is a container of containerd's own shim, without a GPU, whose device rules
// are changed behind systemd's back: it has the device of a GPU from then on until
// systemd writes its own rules again. It shows that this has happened, and that a
// device can be lost by it.
type witness struct {
	*container
	number string // of a GPU's node
}

func newWitness(t *testing.T, m *machine) witness {
	t.Helper()
	c := m.sleep(t, noGPU, containerOptions{runtime: testenv.StockRuntime, flags: []string{"--runc-systemd-cgroup"}})
	return witness{c, fmt.Sprintf("%d:%d", m.Driver.Majors.GPU, m.Driver.GPUs[0].Minor)}
}

// opens returns the result of opening the GPU's node.
func (w witness) opens(t *testing.T) string {
	t.Helper()
	_, answer, _ := strings.Cut(strings.TrimSpace(w.exec(t, "/test/mkdev", w.number)), " ")
	return answer
}

// rewrite gives the witness the device, runs a command and returns when systemd has
// taken the device away.
func (w witness) rewrite(t *testing.T, argv ...string) {
	t.Helper()
	if n, err := allowEveryDevice(w.cgroupDir(t)); err != nil || n == 0 {
		t.Fatalf("took %d device programs off: %v", n, err)
	}
	if got := w.opens(t); got != "ENXIO" {
		t.Fatalf("without device programs the node answers %q", got)
	}
	w.m.run(t, argv...)
	w.settle(t)
}

// The bug itself, to show that the tests above can fail: rules that systemd does not know are gone
// after a reload.
func TestRulesMadeBehindSystemdsBackAreGoneAfterAReload(t *testing.T) {
	w := newWitness(t, startMachine(t))
	if got := w.opens(t); got != "EPERM" {
		t.Fatalf("a container without a GPU opens its node: %q", got)
	}
	w.rewrite(t, "systemctl", "daemon-reload")
	w.rewrite(t, "systemctl", "daemon-reexec")
}
