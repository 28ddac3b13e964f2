package kubernetes

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/simtest"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// chartHandler is a handler that containerd does not have yet.
const chartHandler = "nvidia-chart"

// fakeHost is an overlay of this host's root, in which the node's daemons are at their places. Its
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
		simtest.Check(t, os.Mkdir(name, 0o755))
	}
	mount("overlay", h.root, "overlay", 0, "lowerdir=/,upperdir="+h.upper+",workdir="+dir+"/work")
	mount("tmpfs", h.root+"/run", "tmpfs", 0, "mode=0755")
	config, err := os.ReadFile(shared.Driver.ConfigPath)
	simtest.Check(t, errors.Join(err, os.MkdirAll(h.root+"/etc/nvidia-shim", 0o755), os.WriteFile(h.root+"/etc/nvidia-shim/config.toml", config, 0o644)))
	for _, dir := range []string{"/proc", "/dev", os.TempDir(), testenv.ShimDir(), "/var/lib/kubelet"} {
		mount(dir, h.root+dir, "", unix.MS_BIND|unix.MS_REC, "")
	}
	// The first process of a machine that is a sandbox may be hidden.
	mount(fmt.Sprintf("/proc/%d", os.Getpid()), h.root+"/proc/1", "", unix.MS_BIND, "")
	// containerd passes only such mounts on.
	mount("", h.root, "", unix.MS_SHARED, "")

	pipe := func(name string) *os.File {
		name = filepath.Join(shared.dir, name)
		simtest.Check(t, unix.Mkfifo(name, 0o600))
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		simtest.Check(t, err)
		t.Cleanup(func() { simtest.Check(t, errors.Join(f.Close(), os.Remove(name))) })
		return f
	}
	h.requests, h.finished = pipe("systemctl"), pipe("systemctl.finished")
	simtest.Check(t, os.WriteFile(h.root+"/usr/bin/systemctl", fmt.Appendf(nil,
		"#!/bin/sh\n[ \"$1\" != is-active ] || exit 0\necho \"$@\" >%s\nread finished <%s\n", h.requests.Name(), h.finished.Name()), 0o755))
	return h
}

// restart restarts containerd when the host's systemctl is asked to.
func (h *fakeHost) restart(t *testing.T) {
	t.Helper()
	simtest.Check(t, h.requests.SetReadDeadline(time.Now().Add(podLimit)))
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
	config, err := os.ReadFile(shared.config())
	simtest.Check(t, err)
	files := simtest.Contents(t, h.upper)
	for name, text := range files {
		files[name] = fmt.Sprintf("%x", sha256.Sum256([]byte(text)))
	}
	programs, _ := os.ReadDir(shared.binDir())
	return fmt.Sprintf("%s\n%q\n%q", config, files, programs)
}

// config is containerd's configuration.
func (c *cluster) config() string { return filepath.Join(c.Dir, "config.toml") }

// binDir is where the chart's pod puts the shim: containerd, too, has this directory.
func (c *cluster) binDir() string { return filepath.Join(c.Dir, "bin") }

// startDaemonSetPod starts the pod that the controller of DaemonSets would make on the node, with a
// root of the host. The controller manager and the admission of service accounts are not here.
func (c *cluster) startDaemonSetPod(t *testing.T, root string) *corev1.Pod {
	t.Helper()
	var set appsv1.DaemonSet
	if err := c.do("GET", "/apis/apps/v1/namespaces/"+releaseNamespace+"/daemonsets/"+release, nil, &set); err != nil {
		t.Fatal(err)
	}
	pod := newPod(release)
	pod.Namespace, pod.Labels, pod.Spec = releaseNamespace, set.Spec.Template.Labels, set.Spec.Template.Spec
	pod.Spec.HostNetwork = true // the API server is at a loopback address
	pod.Spec.Volumes[0].HostPath.Path = root
	container := &pod.Spec.Containers[0]
	container.Env = append(container.Env,
		corev1.EnvVar{Name: "KUBERNETES_SERVICE_HOST", Value: "127.0.0.1"}, corev1.EnvVar{Name: "KUBERNETES_SERVICE_PORT", Value: "6443"})
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: "account", ReadOnly: true, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"})
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "account", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
		{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}}},
	}}}})
	t.Cleanup(func() {
		if t.Failed() {
			out, err := c.raw("GET", podPath(pod)+"/log", "", nil)
			t.Logf("%s: %v\n%s", pod.Name, err, out)
		}
	})
	c.startPod(t, pod)
	return pod
}

// awaitLabel waits until the node has a label, or not, if the value is "".
func (c *cluster) awaitLabel(t *testing.T, name, value string) {
	t.Helper()
	if err := c.await("the label "+name, podLimit, func() error {
		node, err := c.node()
		if err == nil && node.Labels[name] != value {
			err = fmt.Errorf("it is %q, want %q", node.Labels[name], value)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// makeNodeImage makes the node image of the chart from the programs of bin/.
func (c *cluster) makeNodeImage(t *testing.T) {
	t.Helper()
	var files []images.File
	for _, name := range []string{"containerd-shim-nvidia-v2", "nvidia-shimctl", "nvidia-shim-nvml"} {
		files = append(files, images.File{Path: "usr/bin/" + name, Mode: 0o755, Host: filepath.Join(testenv.ShimDir(), name)})
	}
	simtest.Check(t, c.importAll(images.Image{
		Name:   "localhost/nvidia-shim-node:unreleased",
		Config: images.Config{Entrypoint: []string{"/usr/bin/nvidia-shimctl", "node"}},
		Layers: []images.Layer{{Files: files}},
	}))
}

// prepareForServiceAccounts makes what the controller manager would.
func (c *cluster) prepareForServiceAccounts(t *testing.T) {
	t.Helper()
	certificate, err := os.ReadFile(filepath.Join(c.dir, "apiserver", "apiserver.crt"))
	simtest.Check(t, err)
	const path = "/api/v1/namespaces/" + releaseNamespace + "/configmaps"
	simtest.Check(t, c.do("POST", path, corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: "kube-root-ca.crt"},
		Data: map[string]string{"ca.crt": string(certificate)},
	}, nil))
	t.Cleanup(func() { simtest.Check(t, c.do("DELETE", path+"/kube-root-ca.crt", nil, nil)) })
}

// The pod of the chart's DaemonSet installs the node, a GPU pod runs, an upgrade changes nothing of
// it, and the removal leaves the host as it was, byte for byte.
func TestChartInstallsTheNode(t *testing.T) {
	c := shared
	c.use(t, strategy{list: envvar})
	c.makeNodeImage(t)
	c.prepareForServiceAccounts(t)
	host := newFakeHost(t)
	before := host.state(t)
	config, err := os.ReadFile(c.config())
	simtest.Check(t, err)
	label := func(value string) {
		simtest.Check(t, c.send("PATCH", "/api/v1/nodes/"+nodeName, "application/merge-patch+json", []byte(`{"metadata":{"labels":{"nvidia.com/gpu.present":`+value+`}}}`), nil))
	}
	label(`"true"`)
	t.Cleanup(func() { label("null") })
	install(t, "--set", "runtimeClass.name="+chartHandler+",runtimeClass.handler="+chartHandler,
		"--set", "args={--target=containerd,--containerd-config="+c.config()+",--bin-dir="+c.binDir()+",--interval=1s}")

	pod := c.startDaemonSetPod(t, host.root)
	host.restart(t)
	c.awaitLabel(t, "nvidia-shim.io/ready", "true")
	gpu := newPod("chart", with(wait("main", plainImage), 1))
	gpu.Spec.RuntimeClassName = new(chartHandler)
	c.startPod(t, gpu)
	given := c.checkAllocated(t, gpu, "main", true, 1)
	installed := filepath.Join(c.binDir(), "containerd-shim-nvidia-v2")
	if list := procfs.Host.Named(filepath.Base(installed)); !slices.ContainsFunc(list, func(p procfs.Process) bool { return p.Program == installed }) {
		t.Errorf("%s does not run, only %v", installed, list)
	}

	// NVIDIA's toolkit writes the file that it found when it ends.
	simtest.Check(t, os.WriteFile(c.config(), config, 0o600))
	host.restart(t)

	upgrade := func(values string) {
		t.Helper()
		if _, err := helmRelease(t, "upgrade", chart, "--reuse-values", "--set", values); err != nil {
			t.Fatal(err)
		}
		c.delete(t, pod)
		pod = c.startDaemonSetPod(t, host.root)
	}
	upgrade("resources.limits.memory=256Mi")
	c.awaitLabel(t, "nvidia-shim.io/ready", "true")
	c.check(t, gpu, "main", true, given...)
	c.delete(t, gpu)

	upgrade("uninstall=true")
	host.restart(t) // the upgrade asked for none
	c.awaitLabel(t, "nvidia-shim.io/ready", "")
	c.awaitLabel(t, "nvidia-shim.io/version", "")
	if err := c.await("the end of the removal", podLimit, func() error {
		if after := host.state(t); after != before {
			return fmt.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
