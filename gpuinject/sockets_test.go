package gpuinject

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// daemonsOf makes a host whose three daemons run.
func daemonsOf(t *testing.T, cfg *config.Config) (run, mps string) {
	t.Helper()
	run = filepath.Join(simulated.Root, "run")
	mps = filepath.Join(cfg.Host.StateDir+"-mps", "pipe")
	for _, dir := range []string{run + "/nvidia-persistenced", run + "/nvidia-fabricmanager", mps} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { os.RemoveAll(run + "/nvidia-persistenced"); os.RemoveAll(run + "/nvidia-fabricmanager") })
	for _, name := range []string{run + "/nvidia-persistenced/socket", run + "/nvidia-fabricmanager/socket"} {
		l, err := net.Listen("unix", name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	}
	if err := unix.Mkfifo(mps+"/control", 0o600); err != nil {
		t.Fatal(err)
	}
	cfg.Host.MPSPipeDirectory = mps
	return run, mps
}

func TestSockets(t *testing.T) {
	everything := []string{config.Persistenced, config.FabricManager, config.MPS}
	for _, tc := range []struct {
		name    string
		sockets []string
		env     []string
		mounts  []specs.Mount
		want    []string // destinations
		note    string
	}{
		{name: "off by default", want: nil},
		{name: "all", sockets: everything, want: []string{"/run/nvidia-persistenced ro", "/run/nvidia-fabricmanager ro", "/tmp/nvidia-mps rw"}},
		{name: "one", sockets: []string{config.FabricManager}, want: []string{"/run/nvidia-fabricmanager ro"}},
		{name: "with utility alone no MPS", sockets: everything, env: []string{"NVIDIA_DRIVER_CAPABILITIES=utility"}, want: []string{"/run/nvidia-persistenced ro", "/run/nvidia-fabricmanager ro"}},
		{name: "with compute alone only MPS", sockets: everything, env: []string{"NVIDIA_DRIVER_CAPABILITIES=compute"}, want: []string{"/tmp/nvidia-mps rw"}},
		{name: "MPS of the container's own", sockets: []string{config.MPS}, env: []string{"CUDA_MPS_PIPE_DIRECTORY=/mps/pipe"}, note: "no socket of mps: the container has an MPS daemon of its own by CUDA_MPS_PIPE_DIRECTORY"},
		{name: "a mount of the container's there", sockets: []string{config.MPS}, mounts: []specs.Mount{{Source: "/srv", Destination: "/tmp", Type: "bind"}}, note: "not mounted at /tmp/nvidia-mps: the container mounts \"/tmp\" there"},
		{name: "a tmpfs of the container's above", sockets: []string{config.MPS}, mounts: []specs.Mount{{Source: "tmpfs", Destination: "/tmp", Type: "tmpfs"}}, want: []string{"/tmp/nvidia-mps rw"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := hostConfig(t)
			run, mps := daemonsOf(t, cfg)
			cfg.Container.Sockets = tc.sockets
			spec := newSpec(append([]string{"NVIDIA_VISIBLE_DEVICES=0"}, tc.env...)...)
			spec.Mounts = append(spec.Mounts, tc.mounts...)
			dir := newBundle(t, spec)
			if err := os.Symlink("../run", mkdir(t, dir+"/rootfs/var")+"/run"); err != nil {
				t.Fatal(err)
			}
			inj := mustInject(t, cfg, dir)
			var got []string
			for _, m := range readSpec(t, dir).Mounts[len(spec.Mounts):] {
				if !strings.HasPrefix(m.Source, run) && m.Source != mps {
					continue
				}
				for _, o := range []string{"bind", "nosuid", "nodev", "noexec", "rprivate"} {
					if !slices.Contains(m.Options, o) {
						t.Errorf("%s is mounted without %s", m.Destination, o)
					}
				}
				got = append(got, m.Destination+" "+m.Options[1])
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if !strings.Contains(strings.Join(inj.Plan.Notes, "\n"), tc.note) {
				t.Errorf("notes %q do not say %q", inj.Plan.Notes, tc.note)
			}
		})
	}
	t.Run("an image whose /var/run is not /run has both", func(t *testing.T) {
		cfg := hostConfig(t)
		run, _ := daemonsOf(t, cfg)
		cfg.Container.Sockets = []string{config.Persistenced}
		dir := newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=0"))
		mkdir(t, dir+"/rootfs/var/run")
		inj := mustInject(t, cfg, dir)
		var got []string
		for _, m := range inj.Plan.Mounts {
			if strings.HasPrefix(m.Source, run) {
				got = append(got, m.Destination)
			}
		}
		if strings.Join(got, " ") != "/run/nvidia-persistenced /var/run/nvidia-persistenced" || !slices.Equal(inj.Plan.Sockets, []string{"persistenced"}) {
			t.Errorf("%q, sockets %q", got, inj.Plan.Sockets)
		}
	})
	t.Run("a daemon that does not run or is not root's is left out with a note", func(t *testing.T) {
		cfg := hostConfig(t)
		_, mps := daemonsOf(t, cfg)
		cfg.Container.Sockets = everything
		if err := os.Remove(filepath.Join(simulated.Root, "run/nvidia-persistenced/socket")); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(mps, 0o777); err != nil {
			t.Fatal(err)
		}
		inj := mustInject(t, cfg, newBundle(t, newSpec("NVIDIA_VISIBLE_DEVICES=0")))
		notes := strings.Join(inj.Plan.Notes, "\n")
		for _, want := range []string{"no socket of persistenced: it does not run on this host", "no socket of mps: " + mps + " is not given to containers: it can be written by others"} {
			if !strings.Contains(notes, want) {
				t.Errorf("%q is not in %q", want, notes)
			}
		}
		if !slices.Equal(inj.Plan.Sockets, []string{"fabricmanager"}) {
			t.Errorf("sockets %q", inj.Plan.Sockets)
		}
	})
}

func mkdir(t *testing.T, dir string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
