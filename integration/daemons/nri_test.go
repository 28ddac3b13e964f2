package daemons

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

// adjuster is an NRI plugin that changes containers by their names.
type adjuster map[string]func(*api.ContainerAdjustment)

// CreateContainer is called by containerd.
func (p adjuster) CreateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	a := &api.ContainerAdjustment{}
	if adjust := p[c.Name]; adjust != nil {
		adjust(a)
	}
	return a, nil, nil
}

// NRI changes a container's specification before the shim reads it: what is there then is what was
// asked for. A variable or node that a plugin only removes stays (NRI 0.12.3 in containerd 2.4.2).
func TestAPluginOfNRIChangesContainers(t *testing.T) {
	r, dir := releases[len(releases)-1], tempDir(t)
	socket := filepath.Join(dir, "nri.sock")
	config := strings.Replace(criConfig(t, r, dir), "disable = true\n", "socket_path = '"+socket+"'\nplugin_path = '"+dir+"/p'\nplugin_config_path = '"+dir+"/c'\n", 1)
	n := newNodeOf(t, r, dir, testenv.Options{Config: config})
	const variable = "NVIDIA_VISIBLE_DEVICES"
	gpu := n.Driver.GPUs[1]
	node := fmt.Sprintf("/dev/nvidia%d", gpu.Minor)
	var st unix.Stat_t
	testtree.Check(t, unix.Stat(filepath.Join(n.Driver.DevRoot, node), &st))
	plugin, err := stub.New(adjuster{
		"variable-added":   func(a *api.ContainerAdjustment) { a.AddEnv(variable, "1") },
		"variable-changed": func(a *api.ContainerAdjustment) { a.RemoveEnv(variable); a.AddEnv(variable, "2") },
		"variable-removed": func(a *api.ContainerAdjustment) { a.RemoveEnv(variable) },
		"node-removed":     func(a *api.ContainerAdjustment) { a.RemoveDevice(node) },
		"node-added": func(a *api.ContainerAdjustment) {
			a.AddDevice(&api.LinuxDevice{Path: node, Type: "c", Major: int64(unix.Major(st.Rdev)), Minor: int64(unix.Minor(st.Rdev))})
		},
	}, stub.WithPluginName("adjuster"), stub.WithPluginIdx("00"), stub.WithSocketPath(socket))
	testtree.Check(t, err)
	testtree.Check(t, plugin.Start(n.ctx))
	t.Cleanup(plugin.Stop)

	pod := n.sandbox("nri")
	id := n.run(t, "nvidia", pod)
	for _, tc := range []struct {
		name, devices string
		gpu           int
	}{
		{"untouched", "0", 0}, {"variable-added", "", 1}, {"variable-changed", "0", 2},
		{"variable-removed", "0", 0}, {"node-removed", "1", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n.check(t, n.exec(t, n.mustStart(t, id, pod, tc.name, tc.devices), n.ProbeArgs()), tc.gpu)
		})
	}
	// A node that no variable asks for is not the driver; the mask shows its GPU and no other.
	added := n.mustStart(t, id, pod, "node-added", "")
	got := strings.Fields(n.exec(t, added, []string{"/bin/sh", "-c", "ls -d /dev/nvidia* /proc/driver/nvidia/gpus/* /usr/local/nvidia"}))
	if want := node + " /proc/driver/nvidia/gpus/" + gpu.BusID; !strings.HasPrefix(strings.Join(got, " "), want) {
		t.Errorf("%q, want %q", got, want)
	}
	n.remove(t, id)
	testtree.Check(t, os.RemoveAll(socket))
}
