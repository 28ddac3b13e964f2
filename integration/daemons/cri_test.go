package daemons

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// CRI's names of the images; it completes every name to one of a registry.
const (
	criImage   = "docker.io/test/" + simhost.DefaultImage + ":latest"
	pauseImage = "docker.io/test/pause:latest"
)

// criNamespace is where CRI's containers are.
const criNamespace = "k8s.io"

// handler is one way to register the shim with CRI.
type handler struct {
	name string
	// text is the handler's TOML. SHIM is the path of the shim, FILE that of a file
	// with options, TABLE the name of the handler's own table.
	text string
	// path is true if the text names the shim by runtime_path.
	path bool
	// video is true if the text, or FILE, sets a capability that is not a default.
	video bool
}

var handlers = []handler{
	{name: "default", text: "runtime_type = 'io.containerd.nvidia.v2'\n"},
	{name: "nvidia", text: "runtime_type = 'io.containerd.nvidia.v2'\n"},
	{name: "nvidia-options", video: true, text: `runtime_type = 'io.containerd.nvidia.v2'
[TABLE.options]
BinaryName = 'runc'
SystemdCgroup = false
[TABLE.options.container]
default-capabilities = ['compute', 'utility', 'video']
`},
	// As Docker and nerdctl send them.
	{name: "nvidia-file", video: true, text: `runtime_type = 'io.containerd.nvidia.v2'
[TABLE.options]
TypeUrl = 'runtimeoptions.v1.Options'
ConfigPath = 'FILE'
`},
	{name: "nvidia-path", path: true, text: `runtime_type = 'io.containerd.runc.v2'
runtime_path = 'SHIM'
`},
	{name: "nvidia-path-options", path: true, text: `runtime_type = 'io.containerd.runc.v2'
runtime_path = 'SHIM'
[TABLE.options]
BinaryName = 'runc'
SystemdCgroup = false
`},
	// Wrong on purpose: the pod's cgroup is a path, whatever the option says.
	{name: "nvidia-systemd", path: true, text: `runtime_type = 'io.containerd.runc.v2'
runtime_path = 'SHIM'
[TABLE.options]
SystemdCgroup = true
`},
}

// criPlugin is the plugin that has the handlers in the configuration of a release.
func (r release) criPlugin() string {
	if r.config == 2 {
		return "io.containerd.grpc.v1.cri"
	}
	return "io.containerd.cri.v1.runtime"
}

// plainConfig is containerd's configuration of CRI without a handler; dir is a
// directory for what it would look for elsewhere on the host.
func plainConfig(r release, dir string) string {
	runtime, image := r.criPlugin(), fmt.Sprintf("[plugins.'io.containerd.cri.v1.images'.pinned_images]\nsandbox = %q\n", pauseImage)
	var extra string
	if r.config == 2 {
		image = ""
		extra = fmt.Sprintf("sandbox_image = %q\n", pauseImage)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "[plugins.'io.containerd.nri.v1.nri']\ndisable = true\n%s", image)
	fmt.Fprintf(&b, "[plugins.'%s']\nrestrict_oom_score_adj = true\ndisable_apparmor = true\n%s", runtime, extra)
	fmt.Fprintf(&b, "[plugins.'%s'.cni]\nconf_dir = %q\n", runtime, filepath.Join(dir, "net.d"))
	return b.String()
}

// criConfig is plainConfig with all handlers.
func criConfig(t *testing.T, r release, dir string) string {
	t.Helper()
	file := filepath.Join(dir, "options.toml")
	if err := os.WriteFile(file, []byte("[container]\ndefault-capabilities = ['compute', 'utility', 'video']\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	runtime := r.criPlugin()
	var b strings.Builder
	b.WriteString(plainConfig(r, dir))
	fmt.Fprintf(&b, "[plugins.'%s'.containerd]\ndefault_runtime_name = 'default'\n", runtime)
	shim := filepath.Join(testenv.ShimDir(), "containerd-shim-nvidia-v2")
	for _, h := range handlers {
		name := fmt.Sprintf("plugins.'%s'.containerd.runtimes.%s", runtime, h.name)
		text := strings.NewReplacer("SHIM", shim, "FILE", file, "TABLE", name).Replace(h.text)
		fmt.Fprintf(&b, "[%s]\n%s", name, text)
	}
	return b.String()
}

// pause is an image that does what a pod's first container does: nothing.
func pause(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "pause.tar")
	image := images.Image{
		Name: pauseImage,
		Config: images.Config{
			// As an image that asks for everything: a sandbox gets nothing.
			Env:        []string{"PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"},
			Entrypoint: []string{"/bin/busybox", "sleep", "86400"}, WorkingDir: "/",
		},
		Layers: []images.Layer{{Files: []images.File{
			images.Dir("bin", 0o755), images.FromHost("bin/busybox", 0o755, "/bin/busybox"),
			images.Dir("dev", 0o755), images.Dir("etc", 0o755), images.Dir("proc", 0o755), images.Dir("sys", 0o755),
		}}},
	}
	if err := image.Write(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// node is a containerd with CRI, and a client of it.
type node struct {
	*host
	runtime cri.RuntimeServiceClient
	ctx     context.Context
}

func newNode(t *testing.T, r release) *node {
	t.Helper()
	dir := tempDir(t)
	return newNodeOf(t, r, dir, testenv.Options{Config: criConfig(t, r, dir)})
}

// newNodeOf starts containerd with a configuration of CRI; dir is for files.
func newNodeOf(t *testing.T, r release, dir string, o testenv.Options) *node {
	t.Helper()
	o.CRI = true
	h := newHost(t, r, o)
	h.Ctr(t, "--namespace", criNamespace, "images", "import", pause(t, dir))
	tar, err := images.Build(simhost.DefaultImage)
	if err != nil {
		t.Fatal(err)
	}
	h.Ctr(t, "--namespace", criNamespace, "images", "import", tar)
	h.Ctr(t, "--namespace", criNamespace, "images", "tag", h.Image, criImage)
	// Grants are tested elsewhere; there is no kubelet here.
	simhost.Append(t, h.Driver.ConfigPath, "\n[policy]\nkubernetes = \"trust-env\"\n")
	conn, err := grpc.NewClient("unix://"+h.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	t.Cleanup(cancel)
	return &node{host: h, runtime: cri.NewRuntimeServiceClient(conn), ctx: ctx}
}

// sandbox is a pod's configuration, with the host's network: no CNI is needed.
func (n *node) sandbox(name string) *cri.PodSandboxConfig {
	return &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent: "/" + n.ID,
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE},
			},
		},
	}
}

// run starts a pod's sandbox.
func (n *node) run(t *testing.T, handler string, pod *cri.PodSandboxConfig) string {
	t.Helper()
	r, err := n.runtime.RunPodSandbox(n.ctx, &cri.RunPodSandboxRequest{Config: pod, RuntimeHandler: handler})
	if err != nil {
		t.Fatalf("run the sandbox: %v", err)
	}
	return r.PodSandboxId
}

// start starts a container that waits, with the environment given.
func (n *node) start(pod string, config *cri.PodSandboxConfig, name, devices string, env ...string) (string, error) {
	c := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name},
		Image:    &cri.ImageSpec{Image: criImage},
		Command:  []string{"/bin/sleep", "600"},
		Linux:    &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: config.Linux.SecurityContext.NamespaceOptions}},
	}
	if devices != "" {
		env = append(env, "NVIDIA_VISIBLE_DEVICES="+devices)
	}
	for _, variable := range env {
		key, value, _ := strings.Cut(variable, "=")
		c.Envs = append(c.Envs, &cri.KeyValue{Key: key, Value: []byte(value)})
	}
	r, err := n.runtime.CreateContainer(n.ctx, &cri.CreateContainerRequest{PodSandboxId: pod, Config: c, SandboxConfig: config})
	if err != nil {
		return "", err
	}
	_, err = n.runtime.StartContainer(n.ctx, &cri.StartContainerRequest{ContainerId: r.ContainerId})
	return r.ContainerId, err
}

// mustStart is start for a container that has to run.
func (n *node) mustStart(t *testing.T, pod string, config *cri.PodSandboxConfig, name, devices string) string {
	t.Helper()
	id, err := n.start(pod, config, name, devices)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// exec runs a command in a container, as `kubectl exec` and probes do.
func (n *node) exec(t *testing.T, id string, command []string) string {
	t.Helper()
	r, err := n.runtime.ExecSync(n.ctx, &cri.ExecSyncRequest{ContainerId: id, Cmd: command, Timeout: 30})
	if err != nil {
		t.Errorf("exec: %v", err)
		return ""
	}
	return string(r.Stdout) + string(r.Stderr)
}

// bundle is the directory of a container's bundle.
func (n *node) bundle(id string) string {
	return filepath.Join(n.State, "io.containerd.runtime.v2.task", criNamespace, id)
}

func (n *node) removeContainer(t *testing.T, id string) {
	t.Helper()
	if _, err := n.runtime.StopContainer(n.ctx, &cri.StopContainerRequest{ContainerId: id}); err != nil {
		t.Error(err)
	}
	if _, err := n.runtime.RemoveContainer(n.ctx, &cri.RemoveContainerRequest{ContainerId: id}); err != nil {
		t.Error(err)
	}
}

// remove removes a pod with its containers.
func (n *node) remove(t *testing.T, pod string) {
	t.Helper()
	if _, err := n.runtime.StopPodSandbox(n.ctx, &cri.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Error(err)
	}
	if _, err := n.runtime.RemovePodSandbox(n.ctx, &cri.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Error(err)
	}
}

func TestPodsOfEveryHandlerGetTheirGPUs(t *testing.T) {
	eachRelease(t, func(t *testing.T, r release) {
		n := newNode(t, r)
		for _, h := range handlers {
			if h.path && !r.runtimePath {
				t.Logf("NOT TESTED: handler %s: containerd %s starts sandboxes by the runtime's name only", h.name, r.name)
				continue
			}
			t.Run(h.name, func(t *testing.T) {
				config := n.sandbox(h.name)
				asked := h.name
				if h.name == "default" {
					asked = ""
				}
				pod := n.run(t, asked, config)
				// The first one makes the driver's view, which stays.
				settle := n.mustStart(t, pod, config, "settle", "0")
				n.removeContainer(t, settle)
				before := n.Snapshot(t)
				first := n.mustStart(t, pod, config, "first", "1")
				second := n.mustStart(t, pod, config, "second", "2")
				plain := n.mustStart(t, pod, config, "plain", "")
				if shims := n.ShimPIDs(pod); len(shims) != 1 {
					t.Errorf("shims of the pod: %v, want one", shims)
				}
				for id, index := range map[string]int{first: 1, second: 2} {
					n.check(t, n.exec(t, id, n.ProbeArgs()), index)
					if shims := n.ShimPIDs(id); len(shims) != 0 {
						t.Errorf("%s has shims of its own: %v", id, shims)
					}
				}
				for _, id := range []string{plain, first} {
					// Below the pod's cgroup, not in one of a literal name.
					if got, want := n.exec(t, id, []string{"/bin/cat", "/proc/self/cgroup"}), "/"+n.ID+"/"+id; !strings.Contains(got, want) && !strings.Contains(got, ":/\n") {
						t.Errorf("cgroups of %s: got %q, want %q", id, got, want)
					}
				}
				if got := n.exec(t, plain, []string{"/bin/sh", "-c", "ls /dev | grep nvidia"}); got != "" {
					t.Errorf("a container that asks for nothing sees %q", got)
				}
				if _, err := os.Stat(filepath.Join(n.bundle(pod), "nvidia.json")); !os.IsNotExist(err) {
					t.Errorf("the sandbox was given something: %v", err)
				}
				record, err := os.ReadFile(filepath.Join(n.bundle(first), "nvidia.json"))
				if err != nil {
					t.Fatal(err)
				}
				want := h.video && (r.table || h.name == "nvidia-file")
				if got := strings.Contains(string(record), `"video"`); got != want {
					t.Errorf("the handler's own settings: in force %v, want %v: %s", got, want, record)
				}
				if _, err := n.start(pod, config, "unknown", "9"); err == nil || !strings.Contains(err.Error(), `unknown GPU "9"`) {
					t.Errorf("an unknown GPU: %v", err)
				}
				for _, id := range []string{first, second, plain} {
					n.removeContainer(t, id)
				}
				before.AssertUnchanged(t)
				n.remove(t, pod)
			})
		}
	})
}

// A kubelet gives up on a container whose creation takes too long, and stops the pod at once:
// containerd then tells the shim to end while the creation still runs, and never again.
func TestAShimDoesNotOutliveAPodWhoseCreationIsCut(t *testing.T) {
	r := releases[len(releases)-1]
	n := newNode(t, r)
	settle := n.sandbox("settle")
	pod := n.run(t, "nvidia", settle)
	n.mustStart(t, pod, settle, "settle", "0")
	n.remove(t, pod)
	before := n.Snapshot(t)
	// The question to NVML ends at its time limit, and the creation with it.
	if err := n.Driver.Hang(true); err != nil {
		t.Fatal(err)
	}
	config := n.sandbox("cut")
	pod = n.run(t, "nvidia", config)
	slow := *n
	var cancel context.CancelFunc
	slow.ctx, cancel = context.WithTimeout(n.ctx, 2*time.Second)
	defer cancel()
	_, err := slow.start(pod, config, "slow", "0", "NVIDIA_REQUIRE_ARCH=arch>=5.0")
	if status.Code(err) != codes.DeadlineExceeded {
		t.Fatalf("the creation was not cut: %v", err)
	}
	if _, err := n.runtime.StopPodSandbox(n.ctx, &cri.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Fatal(err)
	}
	testenv.Await(t, "the end of the pod's shim", func() bool { return len(n.ShimPIDs(pod)) == 0 })
	n.remove(t, pod)
	before.AssertUnchanged(t)
}

// A pod continues when its containerd is restarted, and takes more containers.
func TestAPodOutlivesContainerd(t *testing.T) {
	eachRelease(t, func(t *testing.T, r release) {
		n := newNode(t, r)
		config := n.sandbox("pod")
		pod := n.run(t, "nvidia", config)
		first := n.mustStart(t, pod, config, "first", "0")
		n.Restart(t)
		n.await(t)
		second := n.mustStart(t, pod, config, "second", "3")
		for id, index := range map[string]int{first: 0, second: 3} {
			n.check(t, n.exec(t, id, n.ProbeArgs()), index)
		}
		if shims := n.ShimPIDs(pod); len(shims) != 1 {
			t.Errorf("shims of the pod: %v, want one", shims)
		}
		n.remove(t, pod)
	})
}

// nvidia-shimctl finds the shim that the containers of a pod share.
func TestAPodIsSuspendedAndResumed(t *testing.T) {
	eachRelease(t, func(t *testing.T, r release) {
		n := newNode(t, r)
		simhost.Append(t, n.Driver.ConfigPath, "\n[container]\non-pause = \"suspend-gpu\"\n")
		config := n.sandbox("pod")
		config.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_CONTAINER // the kubelet's default
		pod := n.run(t, "nvidia", config)
		n.mustStart(t, pod, config, "first", "0")
		n.mustStart(t, pod, config, "second", "1")
		for _, step := range []struct {
			command string
			paused  int
		}{{"suspend", 2}, {"resume", 0}, {"suspend", 2}} {
			// This containerd has a /run/containerd of its own.
			n.Ctl(t, step.command, "--root", fmt.Sprintf("/proc/%d/root", n.PID()), "--state", n.State, "--pod", "default/pod")
			if got := strings.Count(n.Ctr(t, "--namespace", criNamespace, "tasks", "ls"), "PAUSED"); got != step.paused {
				t.Errorf("after %s %d containers are paused, want %d", step.command, got, step.paused)
			}
		}
		n.remove(t, pod)
	})
}

func TestT18FiftyCreationsAtOnceUnderCRIDoNotMixUpDevices(t *testing.T) {
	const parallel = 50
	r, dir := releases[len(releases)-1], tempDir(t)
	o := simhost.RaceShim(t)
	o.Config = criConfig(t, r, dir)
	n := newNodeOf(t, r, dir, o)
	// start is that of one container, which has the GPU i%4.
	start := func(t *testing.T, pod string, config *cri.PodSandboxConfig, i int) (id string) {
		id, err := n.start(pod, config, fmt.Sprint("container-", i), fmt.Sprint(i%4))
		if err != nil {
			t.Errorf("container %d: %v", i, err)
		}
		return id
	}
	check := func(t *testing.T, id string, i int) { n.check(t, n.exec(t, id, n.ProbeArgs()), i%4) }
	t.Run("T18 in one pod", func(t *testing.T) {
		config := n.sandbox("pod")
		pod := n.run(t, "nvidia", config)
		var group sync.WaitGroup
		ids := make([]string, parallel)
		for i := range ids {
			group.Go(func() { ids[i] = start(t, pod, config, i) })
		}
		group.Wait()
		// One after the other: containerd's reaper stalls if many processes end at once (its issue 13849).
		for i, id := range ids {
			check(t, id, i)
		}
		n.remove(t, pod)
	})
	t.Run("T18 each in a pod of its own", func(t *testing.T) {
		before := n.Snapshot(t)
		var group sync.WaitGroup
		for i := range parallel {
			group.Go(func() {
				config := n.sandbox(fmt.Sprint("pod-", i))
				pod, err := n.runtime.RunPodSandbox(n.ctx, &cri.RunPodSandboxRequest{Config: config, RuntimeHandler: "nvidia"})
				if err != nil {
					t.Errorf("pod %d: %v", i, err)
					return
				}
				check(t, start(t, pod.PodSandboxId, config, i), i)
				n.remove(t, pod.PodSandboxId)
			})
		}
		group.Wait()
		before.AssertUnchanged(t)
	})
}

// await returns when CRI answers.
func (n *node) await(t *testing.T) {
	t.Helper()
	testenv.Await(t, "CRI answers", func() bool {
		_, err := n.runtime.Version(n.ctx, &cri.VersionRequest{}, grpc.WaitForReady(true))
		return err == nil
	})
}

// What the kubelet needs to know for hostUsers: false and recursive read-only mounts
// comes from `-info` of the shim.
func TestCRIReportsTheFeaturesOfOurHandlers(t *testing.T) {
	eachRelease(t, func(t *testing.T, r release) {
		n := newNode(t, r)
		status, err := n.runtime.Status(n.ctx, &cri.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if !r.features {
			if len(status.RuntimeHandlers) != 0 {
				t.Errorf("containerd %s reports %v", r.name, status.RuntimeHandlers)
			}
			t.Logf("NOT TESTED: containerd %s has no report of features", r.name)
			return
		}
		var reported []string
		for _, h := range status.RuntimeHandlers {
			// containerd adds runc's own handler.
			if h.Name != "runc" && h.Features.GetRecursiveReadOnlyMounts() && h.Features.GetUserNamespaces() {
				reported = append(reported, h.Name)
			}
		}
		want := []string{""} // the default runtime's second entry
		for _, h := range handlers {
			want = append(want, h.name)
		}
		slices.Sort(want)
		slices.Sort(reported)
		if !slices.Equal(reported, want) {
			t.Errorf("handlers with all features: %q, want %q", reported, want)
		}
	})
}
