package docker

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
)

// remapped starts a second dockerd, whose containers have user namespaces. It has images and root
// file systems of its own, below a mount that it shares with containerd, and an /etc/subuid. specs
// is where it looks for CDI specifications.
func remapped(t *testing.T, specs string) *engine {
	t.Helper()
	dir, err := os.MkdirTemp(shared.Dir, "")
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(err)
	check(os.Chmod(dir, 0o755))
	check(unix.Mount(dir, dir, "", unix.MS_BIND, ""))
	t.Cleanup(func() { check(unix.Unmount(dir, unix.MNT_DETACH)) })
	check(unix.Mount("", dir, "", unix.MS_SHARED, ""))
	ids := simhost.WriteFile(t, filepath.Join(dir, "ids"), "nobody:100000:65536\n")
	second := &engine{
		Host: shared.Host, life: t, dir: dir, config: filepath.Join(dir, "daemon.json"),
		wrapper: []string{"unshare", "--mount", "--propagation", "unchanged", "sh", "-c",
			"mount --make-private / && mount --bind " + ids + " /etc/subuid && mount --bind " + ids + ` /etc/subgid && exec "$@"`, "sh"},
	}
	second.flags = []string{"--config-file", second.config}
	namespace := shared.ID + "-remapped"
	t.Cleanup(func() { os.Remove(filepath.Join("/run/containerd/runc", namespace)) })
	second.configure(t, map[string]any{
		"containerd-namespace": namespace, "userns-remap": "nobody:nogroup", "storage-driver": "overlay2",
		"features": map[string]bool{"containerd-snapshotter": false}, "cdi-spec-dirs": []string{specs},
		"runtimes": map[string]any{"nvidia": map[string]string{"runtimeType": "io.containerd.nvidia.v2"}},
	})
	t.Cleanup(func() { second.daemon.Stop() })
	second.startDaemon(t)
	t.Cleanup(func() { second.removeContainers(t) })
	tar := filepath.Join(dir, "image.tar")
	shared.docker(t, "save", "--output", tar, shared.image())
	second.docker(t, "load", "--input", tar)
	return second
}

func TestContainersInUserNamespacesOfDocker(t *testing.T) {
	unchanged(t)
	type row struct {
		flags []string
		gpus  []int
	}
	rows := map[string]row{
		"the variable":                 {visible("1"), []int{1}},
		"--gpus":                       {[]string{"--runtime", "nvidia", "--gpus", "2"}, []int{0, 1}},
		"the namespaces of the host":   {visible("3", "--userns", "host"), []int{3}},
		"nothing, of an image for all": {[]string{"--env", "NVIDIA_VISIBLE_DEVICES=all"}, nil},
	}
	see := func(t *testing.T, specs string) {
		e := remapped(t, specs)
		simhost.Want(t, e.docker(t, append(append(e.run("--rm"), visible("1")...), e.image(), "cat", "/proc/self/uid_map")...), " 100000 ")
		for name, tc := range rows {
			t.Run(name, func(t *testing.T) {
				got, want := simhost.Parse(e.probe(t, tc.flags, e.image())), shared.Expect(tc.gpus)
				if tc.gpus == nil {
					want = shared.ExpectNothing()
				}
				want.Mknod = got.Mknod // none may make nodes in a user namespace
				simhost.Compare(t, got, want)
			})
		}
	}
	t.Run("without CDI", func(t *testing.T) { see(t, t.TempDir()) })
	rows["--device"] = row{[]string{"--runtime", "nvidia", "--device", "nvidia.com/gpu=2"}, []int{2}}
	t.Run("with CDI", func(t *testing.T) { see(t, shared.specs) })
}
