package kubernetes

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

// startPluginFor starts a plugin until the test ends.
func (c *cluster) startPluginFor(t *testing.T, p *plugin) {
	t.Helper()
	if err := c.servePlugin(p); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.stopPlugin(p); err != nil {
			t.Error(err)
		}
	})
}

// mig partitions GPUs for the rest of the test and has a device plugin hand the MIG devices out as
// resource. NVIDIA's plugin uses "nvidia.com/gpu" with the strategy single, and other names with
// mixed.
func (c *cluster) mig(t *testing.T, resource string, layout []sim.MIGDevice) *plugin {
	t.Helper()
	if err := c.Driver.Reconfigure(t.Context(), layout); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Driver.Reconfigure(context.Background(), nil); err != nil {
			t.Error(err)
		}
	})
	var ids []string
	for _, m := range c.Driver.MIG {
		ids = append(ids, m.UUID)
	}
	if resource != c.Plugin.resource {
		p := newPlugin(c.Driver, resource, ids)
		c.startPluginFor(t, p)
		return p
	}
	before, _ := c.Plugin.offered()
	offer := func(ids []string) {
		c.Plugin.offer(ids)
		if err := c.awaitDevices(c.Plugin); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() {
		c.Plugin.use(strategy{list: envvar})
		offer(before)
	})
	offer(ids)
	return c.Plugin
}

// checkMIG finds in a container exactly the MIG devices that the kubelet allocated to
// it, which must be count: in nvidia-smi -L, in /dev, and by what the device cgroup
// says to nodes of the container's own making.
func (c *cluster) checkMIG(t *testing.T, pod *corev1.Pod, count int) {
	t.Helper()
	allocated := c.allocated(t, pod, "main")
	if len(allocated) != count {
		t.Errorf("%s: the kubelet allocated %q, want %d", pod.Name, allocated, count)
	}
	var given []int
	for i, m := range c.Driver.MIG {
		if slices.Contains(allocated, m.UUID) {
			given = append(given, i)
		}
	}
	c.compare(t, c.mustExec(t, pod, "main", c.probe()...), true, nil, given)
}

func TestPodsGetTheMIGDevicesThatTheKubeletAllocated(t *testing.T) {
	c := shared
	mixed := []sim.MIGDevice{{GPU: 1, GI: 9, CI: 0}, {GPU: 1, GI: 5, CI: 0}, {GPU: 1, GI: 5, CI: 1}}
	var single []sim.MIGDevice
	for i := range c.Driver.GPUs {
		single = append(single, sim.MIGDevice{GPU: i, GI: 2, CI: 0}, sim.MIGDevice{GPU: i, GI: 1, CI: 0})
	}
	for _, tc := range []struct {
		name, resource string
		layout         []sim.MIGDevice
	}{{"mixed", "nvidia.com/mig-1g.18gb", mixed}, {"single", "nvidia.com/gpu", single}} {
		t.Run(tc.name, func(t *testing.T) {
			p, resource := c.mig(t, tc.resource, tc.layout), corev1.ResourceName(tc.resource)
			for _, s := range []strategy{{list: envvar}, {list: envvar, devices: true}, {list: volumeMounts}, {list: silent}} {
				t.Run(s.String(), func(t *testing.T) {
					p.use(s)
					// The greedy image asks for all.
					image := plainImage
					if s.list == silent {
						image = greedyImage
					}
					one, two := newPod("mig-one", limited(wait("main", image), resource, 1)), newPod("mig-two", limited(wait("main", image), resource, 2))
					none := newPod("mig-none", wait("main", greedyImage))
					for _, pod := range []*corev1.Pod{one, two, none} {
						c.create(t, pod)
					}
					for count, pod := range []*corev1.Pod{none, one, two} {
						c.awaitRunning(t, pod)
						c.checkMIG(t, pod, count)
					}
				})
			}
			t.Run("another pod's by its UUID", func(t *testing.T) {
				p.use(strategy{list: silent})
				one := newPod("mig-one", limited(wait("main", greedyImage), resource, 1))
				c.create(t, one)
				c.awaitRunning(t, one)
				theirs := c.allocated(t, one, "main")[0]
				thief := newPod("mig-thief", env(limited(wait("main", plainImage), resource, 1), "NVIDIA_VISIBLE_DEVICES", theirs))
				c.create(t, thief)
				c.awaitRefused(t, thief, "main", "is not this container's")
			})
		})
	}
}
