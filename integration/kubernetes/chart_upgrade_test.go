package kubernetes

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// makeNodeImage makes a node image of the chart from the programs of a directory.
func (c *cluster) makeNodeImage(t *testing.T, tag, dir string) {
	t.Helper()
	var files []images.File
	for _, name := range runtimeclass.Programs {
		files = append(files, images.File{Path: "usr/bin/" + name, Mode: 0o755, Host: filepath.Join(dir, name)})
	}
	testtree.Check(t, c.importAll(images.Image{
		Name:   "localhost/nvidia-shim-node:" + tag,
		Config: images.Config{Entrypoint: []string{"/usr/bin/nvidia-shimctl", "node"}},
		Layers: []images.Layer{{Files: files}},
	}))
}

// packagedPrograms unpacks the programs that the node image of `make packages` has, too.
func packagedPrograms(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	file := dist(t, "containerd-shim-nvidia_*_linux_"+runtime.GOARCH+".tar.gz")
	testtree.Check(t, exec.Command("tar", "-xzf", file, "-C", dir, "--strip-components=1").Run())
	return dir
}

// makeNewerPrograms makes programs of another version than those of a directory in another one.
func makeNewerPrograms(t *testing.T, bin string) (dir, old, newer string) {
	t.Helper()
	dir = t.TempDir()
	version, err := exec.Command(filepath.Join(bin, version.Ctl), "version").Output()
	testtree.Check(t, err)
	old, _, _ = strings.Cut(string(version), " ")
	newer = "n" + old[1:]
	for _, name := range runtimeclass.Programs {
		text, err := os.ReadFile(filepath.Join(bin, name))
		testtree.Check(t, err)
		text = append(bytes.ReplaceAll(text, []byte(old), []byte(newer)), newer...)
		testtree.Check(t, os.WriteFile(filepath.Join(dir, name), text, 0o755))
	}
	return dir, old, newer
}

// checkPrograms checks that the node has the programs of a directory, and the label with a version.
func (c *cluster) checkPrograms(t *testing.T, dir, version string) {
	t.Helper()
	c.awaitRollout(t)
	c.awaitLabel(t, "nvidia-shim.io/version", version)
	c.awaitLabel(t, "nvidia-shim.io/ready", "true")
	for _, name := range runtimeclass.Programs {
		want, err1 := os.ReadFile(filepath.Join(dir, name))
		have, err2 := os.ReadFile(filepath.Join(c.binDir(), name))
		if err := errors.Join(err1, err2); err != nil || !bytes.Equal(have, want) {
			t.Errorf("%s is not that of %s: %v", name, dir, err)
		}
	}
}

// checkShim checks that a pod runs under the shim of a directory, with its GPUs, and returns the
// shim's process.
func (c *cluster) checkShim(t *testing.T, pod *corev1.Pod, dir string, given []sim.GPU) int {
	t.Helper()
	pids := c.ShimPIDs(c.sandbox(t, pod))
	if len(pids) != 1 {
		t.Fatalf("pod %s has the shims %v", pod.Name, pids)
	}
	want, err1 := os.ReadFile(filepath.Join(dir, version.Shim))
	have, err2 := os.ReadFile(fmt.Sprintf("/proc/%d/exe", pids[0]))
	if err := errors.Join(err1, err2); err != nil || !bytes.Equal(have, want) {
		t.Errorf("pod %s does not run under the shim of %s: %v", pod.Name, dir, err)
	}
	c.check(t, pod, "main", true, given...)
	return pids[0]
}

// upgradePrograms upgrades the chart to an image with other programs, and rolls it back. A pod
// keeps the shim that it was started with. The old pod is deleted; the one that is returned is of
// the newer shim.
func (c *cluster) upgradePrograms(t *testing.T, upgrade func(values string), oldPod *corev1.Pod, given []sim.GPU) *corev1.Pod {
	t.Helper()
	bin := packagedPrograms(t)
	dir, old, newer := makeNewerPrograms(t, bin)
	c.makeNodeImage(t, "newer", dir)
	shim := c.checkShim(t, oldPod, bin, given)

	upgrade("image.tag=newer")
	c.checkPrograms(t, dir, newer)
	if pid := c.checkShim(t, oldPod, bin, given); pid != shim {
		t.Errorf("pod %s has another shim now", oldPod.Name)
	}
	next := newPod("chart-newer", with(wait("main", plainImage), 1))
	next.Spec.RuntimeClassName = new(chartHandler)
	c.startPod(t, next)
	nextGPUs := c.checkAllocated(t, next, "main", true, 1)
	c.checkShim(t, next, dir, nextGPUs)
	sandbox := c.sandbox(t, oldPod)
	c.delete(t, oldPod)
	if err := c.await("the end of the old shim", func() error {
		if slices.Contains(c.ShimPIDs(sandbox), shim) {
			return errors.New("it lives")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(c.bundle(sandbox)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old pod's bundle is left: %v", err)
	}

	if _, err := helmRelease(t, "rollback"); err != nil {
		t.Fatal(err)
	}
	c.checkPrograms(t, bin, old)
	c.checkShim(t, next, dir, nextGPUs)
	return next
}
