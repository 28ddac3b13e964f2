package systemd

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/api"
)

// container is a running container of a machine.
type container struct {
	m  *machine
	id string
	// gpu is the index of its GPU, or -1.
	gpu int
	// slice is the systemd slice that its scope is in.
	slice string
}

// noGPU is the index of no GPU.
const noGPU = -1

// containerOptions say how a container is run; the zero value is one of Docker's and
// nerdctl's form of cgroup path, with our shim.
type containerOptions struct {
	runtime string
	slice   string
	flags   []string
}

// sleep starts a container that waits, with one GPU or with none. The form of its
// cgroup path is all that says that systemd manages it.
func (m *machine) sleep(t testing.TB, gpu int, o containerOptions) *container {
	t.Helper()
	if o.runtime == "" {
		o.runtime = testenv.DefaultRuntime
	}
	if o.slice == "" {
		o.slice = "system.slice"
	}
	m.nextID++
	c := &container{m: m, id: fmt.Sprintf("c%d", m.nextID), gpu: gpu, slice: o.slice}
	// A cgroup2 tree beside hierarchies of version 1 has no cpu controller, and ctr's
	// default of 1024 shares could not be set.
	argv := []string{"ctr", "run", "--detach", "--null-io", "--cpu-shares", "0", "--runtime", o.runtime, "--cgroup", o.slice + ":nvidia:" + c.id}
	if gpu != noGPU {
		argv = append(argv, "--env", "NVIDIA_VISIBLE_DEVICES="+strconv.Itoa(gpu))
	}
	m.run(t, append(append(argv, o.flags...), m.image, c.id, "/bin/sleep", "3600")...)
	return c
}

// scope is the container's unit.
func (c *container) scope() string { return "nvidia-" + c.id + ".scope" }

// remove ends the container.
func (c *container) remove(t testing.TB) {
	t.Helper()
	c.m.run(t, "ctr", "tasks", "rm", "--force", c.id)
	c.m.run(t, "ctr", "containers", "rm", c.id)
}

// exec runs a command in the container.
func (c *container) exec(t testing.TB, argv ...string) string {
	t.Helper()
	c.m.nextID++
	// By way of a file: ctr loses what it has not read when the command has ended.
	file := fmt.Sprintf("/run/e%d", c.m.nextID)
	c.m.run(t, append([]string{"ctr", "tasks", "exec", "--log-uri", "file://" + file, "--exec-id", filepath.Base(file), c.id}, argv...)...)
	return c.m.run(t, "cat", file)
}

// property is one property of the container's unit, its values sorted.
func (c *container) property(t testing.TB, name string) []string {
	t.Helper()
	var values []string
	for line := range strings.Lines(c.m.run(t, "systemctl", "show", "--property", name, c.scope())) {
		if value := strings.TrimPrefix(strings.TrimSpace(line), name+"="); value != "" {
			values = append(values, value)
		}
	}
	slices.Sort(values)
	return values
}

// cgroupDir is the container's cgroup as the host sees it.
func (c *container) cgroupDir(t testing.TB) string {
	t.Helper()
	group := c.property(t, "ControlGroup")
	if len(group) != 1 {
		t.Fatalf("%s has no cgroup", c.scope())
	}
	return filepath.Join(c.m.cgroup, group[0])
}

// expect is what the container must see: its GPU, or nothing of the driver.
func (c *container) expect() simhost.Seen {
	if c.gpu != noGPU {
		return c.m.Expect([]int{c.gpu})
	}
	return c.m.ExpectNothing()
}

// check makes sure that the container opens the nodes of its GPU and no others.
func (c *container) check(t testing.TB) {
	t.Helper()
	simhost.Compare(t, simhost.Parse(c.exec(t, c.m.ProbeArgs()...)), c.expect())
}

// settle returns when systemd has written its own rules for a container that had
// every device. It does so a moment after it has answered systemctl.
func (c *container) settle(t testing.TB) {
	t.Helper()
	testenv.Await(t, "systemd writes the device rules of "+c.scope()+" again", func() bool {
		return strings.Contains(c.exec(t, c.m.ProbeArgs()...), " EPERM\n")
	})
}

// denyAll is what CRI sends with every update of a container's resources: the device
// rules that it knows, which are not those that the shim added
// (internal/cri/server/container_update_resources.go).
func denyAll() *specs.LinuxResources {
	return &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}}
}

// update sends an update of the container's resources to its shim.
func (c *container) update(t testing.TB, resources *specs.LinuxResources) {
	t.Helper()
	value, err := json.Marshal(resources)
	if err != nil {
		t.Fatal(err)
	}
	bootstrap := c.m.run(t, "cat", "/run/containerd/io.containerd.runtime.v2.task/"+namespace+"/"+c.id+"/bootstrap.json")
	service, ctx := api.TaskService(t, []byte(bootstrap), fmt.Sprintf("/proc/%d/root", c.m.systemd.PID()), namespace)
	if _, err := service.Update(ctx, &taskapi.UpdateTaskRequest{
		ID: c.id, Resources: &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources", Value: value},
	}); err != nil {
		t.Fatal(err)
	}
}
