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
	h := &testHost{Driver: simulated, cfg: hostConfig(t)}
	run, mps := daemonsOf(t, h.cfg)
	configured := func(names ...string) func(*config.Config) {
		return func(c *config.Config) { c.Container.Sockets = names }
	}
	everything := configured(config.Persistenced, config.FabricManager, config.MPS)
	// Mounts of sockets, and notes.
	show := func(p Plan) string {
		var list []string
		for _, m := range p.Mounts {
			if !strings.HasPrefix(m.Source, run) && m.Source != mps {
				continue
			}
			for _, o := range []string{"bind", "nosuid", "nodev", "noexec", "rprivate"} {
				if !slices.Contains(m.Options, o) {
					t.Errorf("%s is mounted without %s", m.Destination, o)
				}
			}
			list = append(list, m.Destination+" "+m.Options[1])
		}
		for _, n := range p.Notes {
			if !strings.Contains(n, "no C library") {
				list = append(list, n)
			}
		}
		return strings.Join(list, "; ")
	}
	linked := func(root string) { mkdir(t, root+"/run"); symlink(t, "../run", mkdir(t, root+"/var")+"/run") }
	const persistenced, fabric, pipe = "/run/nvidia-persistenced ro", "/run/nvidia-fabricmanager ro", "/tmp/nvidia-mps rw"
	table{host: h, env: devices("0"), show: show, rows: []row{
		{name: "off by default", image: linked},
		{name: "all", config: everything, image: linked, want: persistenced + "; " + fabric + "; " + pipe},
		{name: "one", config: configured(config.FabricManager), image: linked, want: fabric},
		{name: "with utility alone no MPS", env: caps("utility"), config: everything, image: linked, want: persistenced + "; " + fabric},
		{name: "with compute alone only MPS", env: caps("compute"), config: everything, image: linked, want: pipe},
		{name: "MPS of the container's own", env: []string{"CUDA_MPS_PIPE_DIRECTORY=/mps/pipe"}, config: configured(config.MPS),
			want: "no socket of mps: the container has an MPS daemon of its own by CUDA_MPS_PIPE_DIRECTORY"},
		{name: "a mount of the container's there", spec: mounting("/srv", "/tmp"), config: configured(config.MPS),
			want: "not mounted at /tmp/nvidia-mps: the container mounts \"/tmp\" there"},
		{name: "a tmpfs of the container's above", config: configured(config.MPS), want: pipe, spec: func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Source: "tmpfs", Destination: "/tmp", Type: "tmpfs"})
		}},
		{name: "an image whose /var/run is not /run", config: configured(config.Persistenced), image: func(root string) { mkdir(t, root+"/var/run") },
			want: persistenced + "; /var" + persistenced},
	}}.run(t)
	if err := os.Remove(run + "/nvidia-persistenced/socket"); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(mps, 0o777); err != nil {
		t.Fatal(err)
	}
	table{host: h, env: devices("0"), show: show, rows: []row{
		{name: "of a daemon that does not run or is not root's", config: everything, image: linked,
			want: fabric + "; no socket of persistenced: it does not run on this host; no socket of mps: " + mps + " is not given to containers: it can be written by others than its owner"},
	}}.run(t)
}

func mkdir(t *testing.T, dir string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func symlink(t *testing.T, target, name string) {
	t.Helper()
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
}
