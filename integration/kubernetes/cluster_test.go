package kubernetes

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/record"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

const (
	// nodeName is the node's name in the API.
	nodeName = "node"
	// criNamespace is where CRI's containers are in containerd.
	criNamespace = "k8s.io"
	// handler is the name of the runtime class and of containerd's handler.
	handler = "nvidia"
	// otherHandler is a handler of another shim.
	otherHandler = "other"
	// annotatedHandler passes every annotation of pods on to the specification, as
	// some operators configure it.
	annotatedHandler = "nvidia-annotated"
	// trustingHandler believes the environment of pods that no kubelet knows.
	trustingHandler = "nvidia-trusting"
)

// Images as CRI names them.
const (
	pauseImage = "docker.io/test/pause:latest"
	// plainImage says nothing of GPUs.
	plainImage = "docker.io/test/plain:latest"
	// greedyImage asks for every GPU: ENV NVIDIA_VISIBLE_DEVICES=all.
	greedyImage = "docker.io/test/greedy:latest"
)

// cluster is a node with its control plane.
type cluster struct {
	*testenv.Env
	*api
	simhost.Devices
	Plugin  *plugin // nvidia.com/gpu: the four GPUs
	runtime cri.RuntimeServiceClient

	driver    sim.Options
	cgroup    int    // the version that containerd has; 0 is the host's
	dir       string // of Kubernetes' files
	shimBase  string // the shim's configuration without a policy
	processes map[string]*testenv.Command
}

// start brings the node up, with the simulated driver; life ends it.
func start(life *testenv.Lifetime) (*cluster, error) {
	c := &cluster{processes: map[string]*testenv.Command{}, driver: sim.Options{GPUs: 4}}
	return c, c.bringUp(life, c.simulatedNode()...)
}

// simulatedNode returns the steps of the start of a node with the simulated driver.
func (c *cluster) simulatedNode() []func(*testenv.Lifetime) error {
	return []func(*testenv.Lifetime) error{c.makeDriver, c.startContainerd, c.importImages, c.startControlPlane, c.startKubelet, c.createRuntimeClasses, c.startPlugin}
}

// bringUp takes the steps of a node's start.
func (c *cluster) bringUp(life *testenv.Lifetime, steps ...func(*testenv.Lifetime) error) error {
	began := time.Now()
	for _, step := range steps {
		if err := step(life); err != nil {
			c.logTails(life)
			return err
		}
	}
	life.Cleanup(func() {
		if err := c.drain(); err != nil {
			life.Error(err)
		}
	})
	fmt.Fprintf(os.Stderr, "the node is ready after %.1f s\n", time.Since(began).Seconds())
	return nil
}

func (c *cluster) makeDriver(life *testenv.Lifetime) error {
	c.Devices = simhost.NewDevices(life, sim.New(life, c.driver))
	base, err := os.ReadFile(c.Driver.ConfigPath)
	c.shimBase = string(base)
	return err
}

func (c *cluster) startContainerd(life *testenv.Lifetime) error {
	dir, err := os.MkdirTemp("", "nvcri")
	if err != nil {
		return err
	}
	life.Cleanup(func() { os.RemoveAll(dir) })
	c.dir = dir
	if err := os.Mkdir(filepath.Join(dir, "net.d"), 0o755); err != nil {
		return err
	}
	const network = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "pods0", "isGateway": true,
  "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "198.51.100.0/24"}]]}}]}`
	if err := os.WriteFile(filepath.Join(dir, "net.d", "pods.conflist"), fmt.Appendf(nil, network, filepath.Join(dir, "ipam")), 0o600); err != nil {
		return err
	}
	config := fmt.Sprintf(`
[plugins.'io.containerd.nri.v1.nri']
socket_path = '%[9]s/nri.sock'
plugin_path = '%[9]s/nri'
plugin_config_path = '%[9]s/nri'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = %[1]q
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
disable_apparmor = true
cdi_spec_dirs = [%q]
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = [%q]
conf_dir = %q
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = 'runc'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.%s]
runtime_type = 'io.containerd.runc.v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.%s]
runtime_type = 'io.containerd.nvidia.v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.%s]
runtime_type = 'io.containerd.nvidia.v2'
pod_annotations = ['*', '*/*']
container_annotations = ['*', '*/*']
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.%[8]s]
runtime_type = 'io.containerd.nvidia.v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.%[8]s.options.policy]
kubernetes = 'trust-env'
`, pauseImage, cdiDir, filepath.Join(binDir(), "cni"), filepath.Join(dir, "net.d"), otherHandler, handler, annotatedHandler, trustingHandler, dir)
	if c.cgroup == 2 {
		runc, err := c.writeRunc()
		if err != nil {
			return err
		}
		config += fmt.Sprintf("[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.%s.options]\nBinaryName = %q\n", annotatedHandler, runc)
	}
	c.Env = testenv.Start(life, testenv.Options{
		CRI: true, Config: config, ShimConfig: c.Driver.ConfigPath, ShimDir: testenv.ShimDir(), Cgroup: c.cgroup,
	})
	conn, err := grpc.NewClient("unix://"+c.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	life.Cleanup(func() { conn.Close() })
	c.runtime = cri.NewRuntimeServiceClient(conn)
	return writePolicy(c, "")
}

// importImages makes the images and gives them to containerd.
func (c *cluster) importImages(life *testenv.Lifetime) error {
	tar, err := images.Build("glibc-nocache")
	if err != nil {
		return err
	}
	root := filepath.Join(c.dir, "image")
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	if err := images.Unpack(tar, root); err != nil {
		return err
	}
	path := "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	greedy := []string{path, "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"}
	layers := []images.Layer{{Dir: root}}
	return c.importAll(
		images.Image{Name: plainImage, Config: images.Config{Env: []string{path}, WorkingDir: "/"}, Layers: layers},
		images.Image{Name: greedyImage, Config: images.Config{Env: greedy, WorkingDir: "/"}, Layers: layers},
		// The sandbox's image is greedy as well, and must get nothing.
		images.Image{Name: pauseImage, Config: images.Config{Env: greedy, Entrypoint: []string{"/bin/sh", "-c", untilTerm}, WorkingDir: "/"}, Layers: layers},
	)
}

// importAll gives images to containerd.
func (c *cluster) importAll(list ...images.Image) error {
	file := filepath.Join(c.dir, "image.tar")
	for _, image := range list {
		if err := image.Write(file); err != nil {
			return err
		}
		if _, _, err := c.CtrErr("--namespace", criNamespace, "images", "import", file); err != nil {
			return err
		}
	}
	return nil
}

// add starts a command of Kubernetes and stops it when the node ends.
func (c *cluster) add(life *testenv.Lifetime, name string, args ...string) error {
	p := &testenv.Command{
		Name: name, Argv: append([]string{filepath.Join(binDir(), name)}, args...),
		Dir: c.dir, Log: filepath.Join(c.dir, name+".log"),
		Env: []string{"PATH=" + binDir() + ":/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + c.dir, "TMPDIR=" + c.dir},
	}
	if err := p.Start(); err != nil {
		return err
	}
	life.Cleanup(p.Stop)
	c.processes[name] = p
	return nil
}

// await polls until done returns no error. It gives up when the time is up or a process of the
// node has ended; its error then says why.
func (c *cluster) await(what string, done func() error) error {
	var err, ended error
	testenv.Until(func() bool {
		if err = done(); err == nil {
			return true
		}
		for _, p := range c.processes {
			ended = errors.Join(ended, p.Ended())
		}
		return ended != nil
	})
	switch {
	case ended != nil:
		return fmt.Errorf("%s: %w", what, ended)
	case err != nil:
		return fmt.Errorf("%s: not in time: %w", what, err)
	}
	return nil
}

func (c *cluster) startControlPlane(life *testenv.Lifetime) error {
	const token = "secret" // the network is the test's own
	key := filepath.Join(c.dir, "service-account.key")
	if err := writeKey(key); err != nil {
		return err
	}
	tokens := filepath.Join(c.dir, "tokens.csv")
	if err := os.WriteFile(tokens, []byte(token+",admin,admin,system:masters\n"), 0o600); err != nil {
		return err
	}
	c.api = newAPI("https://127.0.0.1:6443", token)
	if err := os.WriteFile(c.kubeconfig(), []byte(c.api.kubeconfig()), 0o600); err != nil {
		return err
	}
	if err := c.add(life, "etcd", "--data-dir="+filepath.Join(c.dir, "etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380", "--initial-cluster=default=http://127.0.0.1:2380"); err != nil {
		return err
	}
	policy := filepath.Join(c.dir, "audit.yaml")
	if err := os.WriteFile(policy, []byte(`apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, resources: [{group: "", resources: [nodes]}]}
- {level: None}
`), 0o600); err != nil {
		return err
	}
	if err := c.add(life, "kube-apiserver", "--audit-policy-file="+policy, "--audit-log-path="+c.auditLog(), "--etcd-servers=http://127.0.0.1:2379", "--secure-port=6443", "--bind-address=127.0.0.1",
		"--advertise-address="+nodeIP, "--endpoint-reconciler-type=none", "--cert-dir="+filepath.Join(c.dir, "apiserver"),
		"--token-auth-file="+tokens, "--authorization-mode=RBAC", "--allow-privileged=true",
		// The controller manager, which would make service accounts and remove the taint of a new
		// node, is not running.
		"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
		"--service-account-issuer=https://test", "--service-account-key-file="+key, "--service-account-signing-key-file="+key,
		"--service-cluster-ip-range=203.0.113.0/24", "--kubelet-preferred-address-types=InternalIP"); err != nil {
		return err
	}
	if err := c.await("the API server", func() error {
		return c.do("GET", "/readyz", nil, nil)
	}); err != nil {
		return err
	}
	config := filepath.Join(c.dir, "scheduler.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
podMaxBackoffSeconds: 1
clientConnection: {kubeconfig: %q}
`, c.kubeconfig()), 0o600); err != nil {
		return err
	}
	return c.add(life, "kube-scheduler", "--config="+config, "--secure-port=0")
}

// auditLog has a line for each stage of a request for nodes.
func (c *cluster) auditLog() string { return filepath.Join(c.dir, "audit.log") }

func (c *cluster) kubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

// kubeletRoot is the kubelet's root directory.
func (c *cluster) kubeletRoot() string { return filepath.Join(c.dir, "kubelet") }

// podResources is the kubelet's socket that says what was allocated.
func (c *cluster) podResources() string {
	return filepath.Join(c.kubeletRoot(), "pod-resources", "kubelet.sock")
}

func (c *cluster) startKubelet(life *testenv.Lifetime) error {
	// The node's pods are below the environment's cgroup, which testenv removes.
	for _, top := range cgroupTops() {
		if err := os.Mkdir(filepath.Join(top, c.ID), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	life.Cleanup(func() {
		// The kubelet mounts its directory on itself.
		for unix.Unmount(c.kubeletRoot(), unix.MNT_DETACH) == nil {
		}
	})
	config := filepath.Join(c.dir, "kubelet.yaml")
	// The static CPU manager moves all other containers when a pod gets a CPU of its
	// own: that is how a kubelet comes to update running containers.
	if err := os.WriteFile(config, fmt.Appendf(nil, `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: %[1]s
healthzPort: 0
readOnlyPort: 0
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix://%[2]s
cgroupDriver: cgroupfs
cgroupRoot: /%[3]s
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
cpuManagerPolicy: static
cpuManagerReconcilePeriod: 1s
nodeStatusUpdateFrequency: 1s
reservedSystemCPUs: "0"
evictionHard: {memory.available: 1Mi, nodefs.available: 1Mi, imagefs.available: 1Mi, nodefs.inodesFree: "10", imagefs.inodesFree: "10"}
imageGCHighThresholdPercent: 100
podLogsDir: %[4]s/pods
volumePluginDir: %[4]s/volume-plugins
serializeImagePulls: false
syncFrequency: 1s
oomScoreAdj: 0
registerNode: true
shutdownGracePeriod: 0s
`, nodeIP, c.Address, c.ID, c.dir), 0o600); err != nil {
		return err
	}
	if err := c.add(life, "kubelet", "--config="+config, "--kubeconfig="+c.kubeconfig(), "--root-dir="+c.kubeletRoot(),
		"--cert-dir="+filepath.Join(c.dir, "kubelet-certificates"), "--hostname-override="+nodeName, "--node-ip="+nodeIP, "--v=3"); err != nil {
		return err
	}
	return c.await("the node", c.ready)
}

// node is the API's node object.
func (c *cluster) node() (node corev1.Node, err error) {
	err = c.do("GET", "/api/v1/nodes/"+nodeName, nil, &node)
	return node, err
}

// ready says why the node is not ready.
func (c *cluster) ready() error {
	node, err := c.node()
	if err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			return nil
		} else if condition.Type == corev1.NodeReady {
			return errors.New(condition.Message)
		}
	}
	return errors.New("no condition Ready")
}

// createRuntimeClasses uses the manifest that users are given.
func (c *cluster) createRuntimeClasses(*testenv.Lifetime) error {
	manifest, err := exec.Command(filepath.Join(testenv.ShimDir(), "nvidia-shimctl"), "manifest").Output()
	if err != nil {
		return fmt.Errorf("nvidia-shimctl manifest: %w", err)
	}
	if err := c.send("POST", "/apis/node.k8s.io/v1/runtimeclasses", "application/yaml", manifest, nil); err != nil {
		return fmt.Errorf("%w\n%s", err, manifest)
	}
	return c.do("POST", "/apis/node.k8s.io/v1/runtimeclasses", map[string]any{
		"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
		"metadata": map[string]string{"name": annotatedHandler}, "handler": annotatedHandler,
	}, nil)
}

func (c *cluster) startPlugin(life *testenv.Lifetime) error {
	var ids []string
	for _, gpu := range c.Driver.GPUs {
		ids = append(ids, gpu.UUID)
	}
	c.Plugin = newPlugin(c.Driver, "nvidia.com/gpu", ids)
	life.Cleanup(func() { c.Plugin.server.Stop() })
	return c.servePlugin(c.Plugin)
}

// servePlugin starts a plugin, and returns when the node offers its devices.
func (c *cluster) servePlugin(p *plugin) error {
	if err := p.serve(); err != nil {
		return err
	}
	return c.awaitDevices(p)
}

// stopPlugin ends a plugin, and returns when the kubelet has noticed it. Until then a kubelet up to
// 1.36 would close the connection to the resource's next plugin.
func (c *cluster) stopPlugin(p *plugin) error {
	if err := p.stop(); err != nil {
		return err
	}
	return c.awaitOffer(p.resource, 0)
}

// awaitDevices returns when the node offers all devices of the plugin.
func (c *cluster) awaitDevices(p *plugin) error {
	ids, _ := p.offered()
	return c.awaitOffer(p.resource, len(ids))
}

// awaitOffer returns when the node offers that many devices of a resource: to the kubelet's own
// knowledge, and in its status, which is older.
func (c *cluster) awaitOffer(resource string, count int) error {
	return c.await("the device plugin's resources", func() error {
		n, err := c.allocatable(resource)
		if err != nil {
			return err
		}
		node, err := c.node()
		if err != nil {
			return err
		}
		if q := node.Status.Allocatable[corev1.ResourceName(resource)]; n != count || int(q.Value()) != count {
			return fmt.Errorf("the node offers %s %s, and the kubelet %d, want %d", q.String(), resource, n, count)
		}
		return nil
	})
}

// restartKubelet ends the kubelet (the pods go on) and starts it again.
func (c *cluster) restartKubelet(t testing.TB) {
	t.Helper()
	p := c.processes["kubelet"]
	p.Stop()
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	if err := c.Plugin.register(); err != nil {
		t.Fatal(err)
	}
	if err := c.awaitDevices(c.Plugin); err != nil {
		t.Fatal(err)
	}
}

// restartPlugin ends the device plugin and starts it again.
func (c *cluster) restartPlugin(t testing.TB) {
	t.Helper()
	if err := c.stopPlugin(c.Plugin); err != nil {
		t.Fatal(err)
	}
	if err := c.servePlugin(c.Plugin); err != nil {
		t.Fatal(err)
	}
}

// bundle is the directory of a container's bundle.
func (c *cluster) bundle(id string) string {
	return filepath.Join(c.State, "io.containerd.runtime.v2.task", criNamespace, id)
}

// record reads what the shim wrote about a container; ok reports whether it wrote
// anything.
func (c *cluster) record(t testing.TB, id string) (r record.Record, ok bool) {
	t.Helper()
	r, err := record.Read(c.bundle(id))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return r, err == nil
}

// policy sets the shim's policy for the rest of the test. The kubelet's socket is
// this node's unless text names another.
func (c *cluster) policy(t testing.TB, text string) {
	t.Helper()
	if err := writePolicy(c, text); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := writePolicy(c, ""); err != nil {
			t.Fatal(err)
		}
	})
}

func writePolicy(c *cluster, text string) error {
	if !strings.Contains(text, "kubelet-socket") {
		text += fmt.Sprintf("\nkubelet-socket = %q\n", c.podResources())
	}
	// The shim reads the file whenever it creates a container.
	next := c.Driver.ConfigPath + ".new"
	if err := os.WriteFile(next, []byte(c.shimBase+"[policy]\n"+text), 0o644); err != nil {
		return err
	}
	return os.Rename(next, c.Driver.ConfigPath)
}

// logTails logs what the commands of the node said last.
func (c *cluster) logTails(t testing.TB) {
	for _, name := range []string{"etcd", "kube-apiserver", "kube-scheduler", "kubelet"} {
		if p := c.processes[name]; p != nil {
			t.Log(p.Tail(6 << 10))
		}
	}
}

// cgroupTops are the roots of the host's cgroup hierarchies.
func cgroupTops() []string {
	if testenv.CgroupVersions()[0] == 2 {
		return []string{"/sys/fs/cgroup"}
	}
	var tops []string
	found, _ := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	for _, f := range found {
		tops = append(tops, filepath.Dir(f))
	}
	return tops
}

// writeKey makes the key that signs service account tokens, which are not used.
func writeKey(path string) error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	return os.WriteFile(path, pem.EncodeToMemory(block), 0o600)
}
