package systemd

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// crunHost is a containerd of the host with a simulated driver and crun.
type crunHost struct {
	*testenv.Env
	Driver *sim.Driver
	crun   string // a directory, see writeCrun
}

// hybrid is where hosts with cgroup version 1 have cgroup2 as well.
const hybrid = "/sys/fs/cgroup/unified"

func startCrunHost(t *testing.T, cgroup int) *crunHost {
	t.Helper()
	before := testenv.Snapshot(t)
	t.Cleanup(func() { testenv.AssertUnchanged(t, before) })
	dir := machineDir(t)
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	driver, err := sim.Create(context.Background(), sim.Options{Dir: filepath.Join(dir, "driver"), GPUs: gpuCount})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := driver.Remove(); err != nil {
			t.Error(err)
		}
	})
	h := &crunHost{Driver: driver, crun: filepath.Join(dir, "crun")}
	hostCrun(t, h.crun)
	o := testenv.Options{Cgroup: cgroup, ShimConfig: driver.ConfigPath, ShimDir: testenv.ShimDir()}
	if _, err := os.Stat(hybrid); err == nil && cgroup == 1 {
		// crun refuses to run where cgroup2 has controllers beside version 1.
		unshare, err := lookTool("unshare")
		if err != nil {
			t.Fatal(err)
		}
		o.Wrapper = []string{unshare, "--mount", "--propagation", "private", "/bin/sh", "-c", "umount " + hybrid + ` && exec "$@"`, "sh"}
	}
	h.Env = testenv.Start(t, o)
	tar, err := images.Build(imageName)
	if err != nil {
		t.Fatal(err)
	}
	h.Import(t, tar)
	return h
}

// sleep starts a container under crun that waits, with one GPU or with none.
func (h *crunHost) sleep(t *testing.T, gpu int) string {
	t.Helper()
	o := testenv.RunOptions{
		Image: images.Ref(imageName), Args: []string{"/bin/sleep", "3600"}, Detach: true,
		Extra: []string{"--runtime-config-path", filepath.Join(h.crun, "crun.toml")},
	}
	if gpu != noGPU {
		o.Env = []string{"NVIDIA_VISIBLE_DEVICES=" + strconv.Itoa(gpu)}
	}
	id := h.Run(t, o).ID
	t.Cleanup(func() { h.Remove(t, id) })
	return id
}

// opens is what the container can open.
func (h *crunHost) opens(t *testing.T, id string, gpu int) []string {
	t.Helper()
	r := h.Exec(t, id, script(h.Driver, gpu)...)
	if r.ExitCode != 0 {
		t.Fatalf("exec: exit status %d: %s", r.ExitCode, r.Stderr)
	}
	return sorted(r.Stdout)
}

func (h *crunHost) check(t *testing.T, id string, gpu int) {
	t.Helper()
	if got, want := h.opens(t, id, gpu), want(h.Driver, gpu); !slices.Equal(got, want) {
		t.Errorf("container %s with GPU %d:\ngot  %q\nwant %q", id, gpu, got, want)
	}
}

// crunUpdate gives the container new resources behind the shim's back, in
// containerd's mount namespace, where its cgroups are.
func (h *crunHost) crunUpdate(t *testing.T, id, resources string) {
	t.Helper()
	nsenter, err := lookTool("nsenter")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(nsenter, "--target", strconv.Itoa(h.PID()), "--mount", "--",
		filepath.Join(h.crun, "crun"), "--root", filepath.Join("/run/containerd/runc", h.ID), "update", "--resources", "/dev/stdin", id)
	cmd.Stdin = strings.NewReader(resources)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("crun update: %v\n%s", err, out)
	}
}

// task is the Task service of the container's shim.
func (h *crunHost) task(t *testing.T, id string) (taskapi.TTRPCTaskService, context.Context) {
	t.Helper()
	bootstrap, err := os.ReadFile(filepath.Join(h.BundleDir(id), "bootstrap.json"))
	if err != nil {
		t.Fatal(err)
	}
	return taskService(t, string(bootstrap), "/", h.ID)
}

// Everything that a container has under runc it has under crun.
func TestAContainerUnderCrunHasItsGPUAndKeepsIt(t *testing.T) {
	testenv.EachCgroup(t, func(t *testing.T, version int) {
		h := startCrunHost(t, version)
		ids := map[int]string{}
		for _, gpu := range []int{0, 1, noGPU} {
			ids[gpu] = h.sleep(t, gpu)
		}
		check := func(t *testing.T) {
			t.Helper()
			for gpu, id := range ids {
				h.check(t, id, gpu)
			}
		}
		id := ids[0]
		check(t)
		t.Run("it is crun that runs it", func(t *testing.T) {
			if _, err := os.Stat(filepath.Join("/run/containerd/runc", h.ID, id, "status")); err != nil {
				t.Errorf("crun knows nothing of the container: %v", err)
			}
		})
		t.Run("nvidia-smi lists the GPU", func(t *testing.T) {
			if got, want := h.Exec(t, id, "nvidia-smi", "-L").Stdout, smi(h.Driver, 0); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
		t.Run("the mask shows that GPU alone and cannot be written", func(t *testing.T) {
			got := h.Exec(t, id, "/bin/sh", "-c", "cd /proc/driver && ls gpus && grep ModifyDeviceFiles params; touch gpus/x 2>/dev/null || echo read-only").Stdout
			if want := h.Driver.GPUs[0].BusID + "\nModifyDeviceFiles: 0\nread-only\n"; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
		service, ctx := h.task(t, id)
		t.Run("after an update of its resources", func(t *testing.T) {
			update(t, service, ctx, id, &specs.LinuxResources{})
			check(t)
		})
		t.Run("after an update that denies every device, as the kubelet's CPU manager has CRI send it", func(t *testing.T) {
			resources := denyAll()
			if version == 1 { // a cgroup2 tree beside version 1 has no memory controller
				limit := int64(512 << 20)
				resources.Memory = &specs.LinuxMemory{Limit: &limit}
			}
			update(t, service, ctx, id, resources)
			check(t)
		})
		t.Run("after containerd was restarted", func(t *testing.T) {
			h.Restart(t)
			check(t)
		})
		// What Update keeps from crun, and so that the test above can fail.
		t.Run("the same update straight to crun takes the GPU away", func(t *testing.T) {
			h.crunUpdate(t, id, `{"devices":[{"allow":false,"access":"rwm"}]}`)
			for _, line := range h.opens(t, id, 0) {
				if !strings.HasSuffix(line, " EPERM") {
					t.Errorf("got %q, want EPERM", line)
				}
			}
		})
	})
}

// crun of Debian 12 refuses what containerd 2.4 writes, with our shim as with
// containerd's own and in the same words. This is why crunScript changes it.
func TestAnOldCrunRefusesTheVersionOfTheSpecification(t *testing.T) {
	h := startCrunHost(t, 0)
	tree := debianTree(t)
	options := filepath.Join(h.crun, "plain.toml")
	plain := filepath.Join(h.crun, "plain")
	for name, content := range map[string]string{
		plain:   fmt.Sprintf("#!/bin/sh\nXDG_RUNTIME_DIR=%[1]s LD_LIBRARY_PATH=%[1]s/lib exec %[2]s/usr/bin/crun \"$@\"\n", h.crun, tree),
		options: fmt.Sprintf("BinaryName = %q\n", plain),
	} {
		if err := os.WriteFile(name, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const want = "OCI runtime create failed: unknown version specified"
	for runtime, flags := range map[string][]string{
		testenv.StockRuntime:   {"--runc-binary", plain},
		testenv.DefaultRuntime: {"--runtime-config-path", options},
	} {
		r := h.Run(t, testenv.RunOptions{
			Runtime: runtime, Image: images.Ref(imageName), Env: []string{"NVIDIA_VISIBLE_DEVICES=0"}, Args: []string{"/bin/true"}, Extra: flags,
		})
		if r.ExitCode == 0 || !strings.Contains(r.Stderr, want) {
			t.Errorf("%s: exit status %d, got %q, want %q in it", runtime, r.ExitCode, r.Stderr, want)
		}
	}
}
