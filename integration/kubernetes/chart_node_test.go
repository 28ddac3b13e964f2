package kubernetes

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

// chartHandler is a handler that containerd does not have yet.
const chartHandler = "nvidia-chart"

// fakeHost is an overlay of this host's root with the node's daemons in their usual places. Its
// systemctl is the test's.
type fakeHost struct {
	root, upper        string
	requests, finished *os.File
}

func newFakeHost(t *testing.T) *fakeHost {
	t.Helper()
	dir := t.TempDir()
	h := &fakeHost{root: filepath.Join(dir, "root"), upper: filepath.Join(dir, "upper")}
	mount := func(source, target, kind string, flags uintptr, data string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(target, 0o755), unix.Mount(source, target, kind, flags, data)); err != nil {
			t.Fatalf("mount %s on %s: %v", source, target, err)
		}
	}
	mount("tmpfs", dir, "tmpfs", 0, "mode=0755")
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	for _, name := range []string{h.upper, dir + "/work"} {
		testtree.Check(t, os.Mkdir(name, 0o755))
	}
	mount("overlay", h.root, "overlay", 0, "lowerdir=/,upperdir="+h.upper+",workdir="+dir+"/work")
	mount("tmpfs", h.root+"/run", "tmpfs", 0, "mode=0755")
	for _, dir := range []string{"/proc", "/dev", os.TempDir(), testenv.ShimDir(), "/var/lib/kubelet"} {
		mount(dir, h.root+dir, "", unix.MS_BIND|unix.MS_REC, "")
	}
	// The first process of a machine that is a sandbox may be hidden.
	mount(fmt.Sprintf("/proc/%d", os.Getpid()), h.root+"/proc/1", "", unix.MS_BIND, "")
	// containerd passes only such mounts on.
	mount("", h.root, "", unix.MS_SHARED, "")

	pipe := func(name string) *os.File {
		name = filepath.Join(shared.dir, name)
		testtree.Check(t, unix.Mkfifo(name, 0o600))
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		testtree.Check(t, err)
		t.Cleanup(func() { testtree.Check(t, errors.Join(f.Close(), os.Remove(name))) })
		return f
	}
	h.requests, h.finished = pipe("systemctl"), pipe("systemctl.finished")
	testtree.Check(t, os.WriteFile(h.root+"/usr/bin/systemctl", fmt.Appendf(nil,
		"#!/bin/sh\n[ \"$1\" != is-active ] || exit 0\necho \"$@\" >%s\nread finished <%s\n", h.requests.Name(), h.finished.Name()), 0o755))
	return h
}

// restart restarts containerd when the host's systemctl is asked to.
func (h *fakeHost) restart(t *testing.T) {
	t.Helper()
	testtree.Check(t, h.requests.SetReadDeadline(time.Now().Add(2*time.Minute)))
	request, err := bufio.NewReader(h.requests).ReadString('\n')
	if err != nil || request != "restart containerd\n" {
		t.Fatalf("systemctl was asked to %q: %v", request, err)
	}
	shared.Restart(t)
	if _, err := h.finished.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
}

// state is what an installation may change on the host.
func (h *fakeHost) state(t *testing.T) string {
	t.Helper()
	var lines []string
	for _, place := range []string{h.upper, h.root + "/run", shared.config(), shared.binDir()} {
		for name, entry := range testtree.Tree(t, place) {
			if lower, err := testtree.Content(name); place == h.upper && err == nil && entry == lower {
				continue // a copy that the overlay made
			}
			mode, text, _ := strings.Cut(entry, "\n")
			lines = append(lines, fmt.Sprintf("%s%s %s %x", place, name, mode, sha256.Sum256([]byte(text))))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// config is containerd's configuration.
func (c *cluster) config() string { return filepath.Join(c.Dir, "config.toml") }

// binDir is where the chart's pod puts the shim: containerd, too, has this directory.
func (c *cluster) binDir() string { return filepath.Join(c.Dir, "bin") }

// admission changes the pods of the chart for the test: they get a host's root, a way to the API
// server, which is at a loopback address, and the token that the API server's own plugin would
// mount.
const admission = `{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy", "metadata": {"name": "test"}, "spec": {
 "failurePolicy": "Fail", "reinvocationPolicy": "Never",
 "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]},
 "matchConditions": [{"name": "chart", "expression": "object.metadata.?labels['app.kubernetes.io/name'].orValue('') == 'nvidia-shim'"}],
 "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": %q}}]}}`

const admissionBinding = `{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
 "metadata": {"name": "test"}, "spec": {"policyName": "test"}}`

const podPatch = `[
 JSONPatch{op: "replace", path: "/spec/volumes/0/hostPath/path", value: %q},
 JSONPatch{op: "add", path: "/spec/hostNetwork", value: true},
 JSONPatch{op: "add", path: "/spec/containers/0/env/-", value: Object.spec.containers.env{name: "KUBERNETES_SERVICE_HOST", value: "127.0.0.1"}},
 JSONPatch{op: "add", path: "/spec/containers/0/env/-", value: Object.spec.containers.env{name: "KUBERNETES_SERVICE_PORT", value: "6443"}},
 JSONPatch{op: "add", path: "/spec/containers/0/volumeMounts/-", value: Object.spec.containers.volumeMounts{
  name: "account", readOnly: true, mountPath: "/var/run/secrets/kubernetes.io/serviceaccount"}},
 JSONPatch{op: "add", path: "/spec/volumes/-", value: Object.spec.volumes{name: "account", projected: Object.spec.volumes.projected{sources: [
  Object.spec.volumes.projected.sources{serviceAccountToken: Object.spec.volumes.projected.sources.serviceAccountToken{path: "token"}},
  Object.spec.volumes.projected.sources{configMap: Object.spec.volumes.projected.sources.configMap{name: "kube-root-ca.crt"}}]}}}]`

// admit sets the policy for the rest of the test.
func (c *cluster) admit(t *testing.T, root string) {
	t.Helper()
	for kind, body := range map[string]string{
		"policies":       fmt.Sprintf(admission, fmt.Sprintf(podPatch, root)),
		"policybindings": admissionBinding,
	} {
		path := "/apis/admissionregistration.k8s.io/v1/mutatingadmission" + kind
		testtree.Check(t, c.send("POST", path, "application/json", []byte(body), nil))
		t.Cleanup(func() { testtree.Check(t, c.do("DELETE", path+"/test", nil, nil)) })
	}
	// It takes effect after a moment.
	pod := newPod("admission", wait("node", plainImage))
	pod.Labels, pod.Spec.ServiceAccountName, pod.Spec.RuntimeClassName = map[string]string{"app.kubernetes.io/name": release}, "default", nil
	pod.Spec.Volumes = []corev1.Volume{{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/nowhere"}}}}
	pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "b"}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "host", MountPath: "/host"}}
	if err := c.await("the admission policy", func() error {
		var admitted corev1.Pod
		err := c.do("POST", "/api/v1/namespaces/"+pod.Namespace+"/pods?dryRun=All", pod, &admitted)
		if err == nil && admitted.Spec.Volumes[0].HostPath.Path != root {
			err = errors.New("the pod is not changed")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// startControllers runs, for the rest of the test, the controllers that the chart needs.
func (c *cluster) startControllers(t *testing.T) {
	t.Helper()
	p := &testenv.Command{
		Name: "kube-controller-manager", Dir: c.dir, Log: filepath.Join(c.dir, "kube-controller-manager.log"),
		Argv: []string{
			filepath.Join(binDir(), "kube-controller-manager"), "--kubeconfig=" + c.kubeconfig(), "--leader-elect=false", "--secure-port=0",
			// A rollout over many nodes waits for these requests.
			"--kube-api-qps=500", "--kube-api-burst=500",
			"--controllers=daemonset-controller,garbage-collector-controller,root-ca-certificate-publisher-controller",
			"--root-ca-file=" + filepath.Join(c.dir, "apiserver", "apiserver.crt"),
		},
	}
	testtree.Check(t, p.Start())
	c.processes[p.Name] = p
	t.Cleanup(func() {
		delete(c.processes, p.Name)
		p.Stop()
		if t.Failed() {
			t.Log(p.Tail(4 << 10))
		}
	})
}

// awaitRollout waits until the DaemonSet's pod runs as the release wants it.
func (c *cluster) awaitRollout(t *testing.T) {
	t.Helper()
	if err := c.await("the DaemonSet's pod", func() error {
		var set appsv1.DaemonSet
		err := c.do("GET", "/apis/apps/v1/namespaces/"+releaseNamespace+"/daemonsets/"+release, nil, &set)
		if s := set.Status; err == nil && (s.ObservedGeneration != set.Generation || s.UpdatedNumberScheduled != 1 || s.NumberAvailable != 1 || s.NumberUnavailable != 0) {
			err = fmt.Errorf("generation %d: %+v", set.Generation, s)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// awaitNotReady waits until the pod of a generation of the DaemonSet runs, and fails if it is ready.
func (c *cluster) awaitNotReady(t *testing.T, generation string) {
	t.Helper()
	if err := c.await("the DaemonSet's pod", func() error {
		var list corev1.PodList
		err := c.do("GET", "/api/v1/namespaces/"+releaseNamespace+"/pods?labelSelector=pod-template-generation%3D"+generation, nil, &list)
		if err == nil && len(list.Items) != 1 {
			err = fmt.Errorf("there are %d pods", len(list.Items))
		}
		if err != nil {
			return err
		}
		for _, s := range list.Items[0].Status.ContainerStatuses {
			if s.Name != "node" {
				continue
			}
			if s.Ready {
				t.Fatal("the pod is ready before its node is")
			}
			if s.State.Running != nil {
				return nil
			}
		}
		return errors.New("it does not run")
	}); err != nil {
		t.Fatal(err)
	}
}

// logDaemonSet logs what the DaemonSet's pods said, if the test fails.
func (c *cluster) logDaemonSet(t *testing.T) {
	t.Cleanup(func() {
		var list corev1.PodList
		if !t.Failed() || c.do("GET", "/api/v1/namespaces/"+releaseNamespace+"/pods", nil, &list) != nil {
			return
		}
		for _, pod := range list.Items {
			t.Logf("%s: %s\n%s", pod.Name, pod.Status.Phase, c.events(&pod))
			for _, s := range pod.Status.ContainerStatuses {
				for _, query := range []string{"", "&previous=true"} {
					out, err := c.raw("GET", podPath(&pod)+"/log?container="+s.Name+query, "", nil)
					t.Logf("%s %s: %v\n%s", s.Name, query, err, out)
				}
			}
		}
	})
}

// awaitLabel waits until the node has a label with this value, or no such label if the value is "".
func (c *cluster) awaitLabel(t *testing.T, name, value string) {
	t.Helper()
	if err := c.await("the label "+name, func() error {
		node, err := c.node()
		if err == nil && node.Labels[name] != value {
			err = fmt.Errorf("it is %q, want %q", node.Labels[name], value)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// mountsOf is the mount table of a process that executes the file at path in its own file tree. The
// table names mount: the host may have the same programs of other tests.
func mountsOf(t *testing.T, path, mount string) string {
	t.Helper()
	programs, err := filepath.Glob("/proc/[0-9]*/exe")
	testtree.Check(t, err)
	for _, program := range programs {
		if at, err := os.Readlink(program); err != nil || at != path {
			continue
		}
		if table, err := os.ReadFile(filepath.Join(filepath.Dir(program), "mountinfo")); err == nil && strings.Contains(string(table), mount) {
			return string(table)
		}
	}
	t.Fatalf("no process executes %s where %s is mounted", path, mount)
	return ""
}

// uninstallAsNoted upgrades the release with the command in the chart's notes.
func uninstallAsNoted(t *testing.T) {
	t.Helper()
	notes := mustRun(t, "helm", "get", "notes", release, "--namespace", releaseNamespace)
	found := regexp.MustCompile(`(?m)^  helm (upgrade .* --set uninstall=true.*)$`).FindStringSubmatch(notes)
	if found == nil {
		t.Fatalf("the chart's notes do not say how to remove it:\n%s", notes)
	}
	mustRun(t, "helm", strings.Fields(strings.Replace(found[1], "CHART", packagedChart(t), 1))...)
}

// checkHealthEvents has a GPU fail and recover: events of the node say so.
func (c *cluster) checkHealthEvents(t *testing.T) {
	t.Helper()
	await := func(kind, message string) {
		t.Helper()
		if err := c.await("the event "+message, func() error {
			var list corev1.EventList
			err := c.do("GET", "/api/v1/namespaces/default/events?fieldSelector=involvedObject.kind%3DNode%2Creason%3DGPUHealth%2Ctype%3D"+kind, nil, &list)
			if err != nil || slices.ContainsFunc(list.Items, func(e corev1.Event) bool { return strings.Contains(e.Message, message) }) {
				return err
			}
			return fmt.Errorf("there are %+v", list.Items)
		}); err != nil {
			t.Fatal(err)
		}
	}
	await(corev1.EventTypeNormal, "the health of 4 GPUs is watched")
	testtree.Check(t, c.do("DELETE", "/api/v1/namespaces/default/events", nil, nil))
	testtree.Check(t, c.Driver.Xid(c.Driver.GPUs[0].UUID, 79))
	await(corev1.EventTypeWarning, "Xid 79")
	testtree.Check(t, errors.Join(c.Driver.Set(), c.Driver.Raise(sim.Event{UUID: c.Driver.GPUs[0].UUID, Type: sim.RecoveryAction})))
	await(corev1.EventTypeNormal, "the health of 4 GPUs is watched")
}

// checkKubectlPlugin asks about a pod on its node, as from a workstation.
func (c *cluster) checkKubectlPlugin(t *testing.T, pod *corev1.Pod, gpu sim.GPU) {
	t.Helper()
	deploy, err := filepath.Abs("../../deploy")
	testtree.Check(t, err)
	plugin := func(args ...string) (string, error) {
		cmd := exec.Command(filepath.Join(binDir(), "kubectl"), append([]string{"nvidia-shim"}, args...)...)
		cmd.Env = []string{"HOME=" + t.TempDir(), "KUBECONFIG=" + c.kubeconfig(), "PATH=" + deploy + ":" + binDir() + ":/usr/bin:/bin"}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := plugin("plan", "-n", pod.Namespace, pod.Name, "--container", "main"); err != nil || !strings.Contains(out, gpu.UUID) {
		t.Errorf("kubectl nvidia-shim plan: %v: %s", err, out)
	}
	if out, err := plugin("status", pod.Name, "--bin-dir", c.binDir()); err != nil || !strings.Contains(out, pod.Namespace+"/"+pod.Name) {
		t.Errorf("kubectl nvidia-shim status: %v: %s", err, out)
	}
	// It keeps its GPUs when it is paused.
	if out, err := plugin("suspend", pod.Name); err == nil || !strings.Contains(out, "has no container to suspend") {
		t.Errorf("kubectl nvidia-shim suspend: %v: %s", err, out)
	}
	for _, args := range [][]string{{"plan", "no-pod"}, {"plan"}, {"install", pod.Name}} {
		if out, err := plugin(args...); err == nil {
			t.Errorf("kubectl nvidia-shim %q: %s", args, out)
		}
	}
}

// The DaemonSet of the packaged chart and node image installs the node, a GPU pod runs, upgrades and rollbacks change nothing of
// it, and the removal leaves the host as it was, byte for byte.
func TestChartInstallsTheNode(t *testing.T) {
	c := shared
	c.use(t, strategy{list: envvar})
	c.Ctr(t, "--namespace", criNamespace, "images", "import", dist(t, "nvidia-shim-node_*.tar"))
	c.startControllers(t)
	host := newFakeHost(t)
	c.admit(t, host.root)
	testtree.Check(t, os.MkdirAll(c.binDir(), 0o755))
	before := host.state(t)
	config, err := os.ReadFile(c.config())
	testtree.Check(t, err)
	label := func(value string) {
		testtree.Check(t, c.send("PATCH", "/api/v1/nodes/"+nodeName, "application/merge-patch+json", []byte(`{"metadata":{"labels":{"nvidia.com/gpu.present":`+value+`}}}`), nil))
	}
	label(`"true"`)
	t.Cleanup(func() { label("null") })
	args := "--target=containerd,--containerd-config=" + c.config() + ",--bin-dir=" + c.binDir() + ",--interval=1s"
	install(t, "--set", "metrics.port=3476,runtimeClass.name="+chartHandler+",runtimeClass.handler="+chartHandler, "--set", "args={"+args+"},metrics.args={--bin-dir="+c.binDir()+"}",
		"--set-file", "config="+c.Driver.ConfigPath)

	c.logDaemonSet(t)
	c.awaitNotReady(t, "1") // it waits for host.restart
	host.restart(t)
	c.awaitLabel(t, "nvidia-shim.io/ready", "true")
	c.awaitRollout(t)
	gpu := newPod("chart", with(wait("main", plainImage), 1))
	gpu.Spec.RuntimeClassName = new(chartHandler)
	c.startPod(t, gpu)
	given := c.checkAllocated(t, gpu, "main", true, 1)
	mountsOf(t, filepath.Join(c.binDir(), "containerd-shim-nvidia-v2"), "")

	testenv.Await(t, "metrics of the GPU", func() bool { // the state from before the installation is kept for a second
		metrics, err := newAPI("http://"+nodeIP+":3476", "").raw("GET", "/metrics", "", nil)
		return err == nil && strings.Contains(string(metrics), given[0].UUID)
	})

	c.checkHealthEvents(t)
	c.checkKubectlPlugin(t, gpu, given[0])

	// NVIDIA's toolkit writes the file that it found when it ends.
	testtree.Check(t, os.WriteFile(c.config(), config, 0o600))
	host.restart(t)

	upgrade := func(values string) {
		t.Helper()
		if _, err := helmRelease(t, "upgrade", packagedChart(t), "--reuse-values", "--set", values); err != nil {
			t.Fatal(err)
		}
	}
	upgrade("resources.limits.memory=256Mi")
	c.awaitRollout(t)
	c.awaitLabel(t, "nvidia-shim.io/ready", "true")
	c.check(t, gpu, "main", true, given...)
	testtree.Check(t, unix.Unmount(host.root+"/var/lib/kubelet", unix.MNT_DETACH))
	if table := mountsOf(t, "/usr/bin/nvidia-shimctl", host.root); strings.Contains(table, "/var/lib/kubelet ") {
		t.Errorf("the pod keeps what the host has unmounted:\n%s", table)
	}

	// What is refused stops a rolling update.
	upgrade("args={" + args + ",--handler=" + otherHandler + "}")
	c.awaitLabel(t, "nvidia-shim.io/ready", "false")
	c.awaitNotReady(t, "3")
	if _, err := helmRelease(t, "rollback"); err != nil {
		t.Fatal(err)
	}
	c.awaitRollout(t)
	c.awaitLabel(t, "nvidia-shim.io/ready", "true")
	gpu = c.upgradePrograms(t, upgrade, gpu, given)

	uninstallAsNoted(t)
	host.restart(t) // the upgrade asked for none
	c.awaitLabel(t, "nvidia-shim.io/ready", "")
	// The pod with the GPU still needs the programs.
	if node, err := c.node(); err != nil || node.Labels["nvidia-shim.io/version"] == "" {
		t.Errorf("%v: the labels say that nothing is left: %v", err, node.Labels)
	}
	c.awaitNotReady(t, "7")
	c.delete(t, gpu)
	c.awaitLabel(t, "nvidia-shim.io/version", "")
	c.awaitRollout(t)
	if after := host.state(t); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}
