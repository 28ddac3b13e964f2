package hosts

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// nestedScript is what a node that is a container runs: its own containerd, this shim, and a
// container. $1 is the namespace, the rest the inner container's environment.
const nestedScript = `
mount -t cgroup2 none /sys/fs/cgroup || exit 90
%s
export PATH=/shim:/tools:$PATH NVIDIA_SHIM_CONFIG=/in/shim.toml CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1
containerd --config /in/containerd.toml >/in/log 2>&1 &
n=0
until ctr --address /run/in.sock version >/dev/null 2>&1; do
	n=$((n+1)); [ $n -lt 300 ] || { cat /in/log; exit 91; }
	sleep 0.1
done
ctr --address /run/in.sock --namespace %s images import /in/image.tar >/dev/null || exit 92
i=0
for ask in %s; do
	i=$((i+1))
	echo "== ask $ask"
	ctr --address /run/in.sock --namespace %s run --rm --log-uri file:///run/out$i --cpu-shares 0 --runtime io.containerd.nvidia.v2 --env NVIDIA_VISIBLE_DEVICES=$ask %s inner$i /bin/sh -c '%s' 2>&1
	cat /run/out$i
done
exit 0
`

// nestedHosts are containers of ours that are hosts themselves, as a node of kind is:
// privileged (procfs shows all of the machine) or with just the capabilities that runc
// needs (procfs is masked by us).
var nestedHosts = []struct {
	name, prepare string
	options       testenv.RunOptions
}{
	{"privileged, with the host's procfs", "mkdir -p /sim/driver && mount --bind /proc0 /sim || exit 93", testenv.RunOptions{Privileged: true}},
	{
		"unprivileged, with our mask for its procfs",
		"mkdir -p /sim/driver && cp /proc0/devices /sim && mount --bind /proc/driver /sim/driver || exit 93",
		testenv.RunOptions{Extra: []string{"--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_NET_ADMIN", "--cap-add", "CAP_SYS_PTRACE"}},
	},
}

// nested starts a container as a host with the devices in given, and in it a container for each of
// ask; they print the nodes that they see.
func nested(t *testing.T, h *simhost.Host, prepare string, o testenv.RunOptions, given string, asks []string) map[string]string {
	t.Helper()
	tar, err := images.Build(simhost.DefaultImage)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, n := range h.Nodes() {
		paths = append(paths, "/dev/"+n.Name)
	}
	probe := "echo == open; /test/opendev " + strings.Join(paths, " ") + "; echo == smi; nvidia-smi -L; echo == cuda; /test/cucount; echo == proc; ls /proc/driver/nvidia/gpus; true"
	in, err := os.MkdirTemp(h.Dir, "in")
	if err != nil {
		t.Fatal(err)
	}
	simhost.WriteFile(t, filepath.Join(in, "shim.toml"), "[host]\nproc-root = \"/sim\"\nsys-root = \"/sys0\"\n")
	simhost.WriteFile(t, filepath.Join(in, "containerd.toml"), `version = 3
root = "/in/root"
state = "/run/containerd"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.podsandbox.controller.v1.podsandbox", "io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.erofs"]
[grpc]
  address = "/run/in.sock"
`)
	o.Env = []string{"NVIDIA_VISIBLE_DEVICES=" + given}
	for dst, src := range map[string]string{"/in": in, "/in/image.tar": tar, "/tools": h.Options.ToolsDir, "/shim": h.Options.ShimDir, "/proc0": h.Driver.ProcRoot, "/sys0": h.Driver.SysRoot} {
		o.Mounts = append(o.Mounts, "type=bind,src="+src+",dst="+dst+",options=rbind:rw")
	}
	slices.SortFunc(o.Mounts, func(a, b string) int {
		return strings.Compare(a[strings.Index(a, "dst="):], b[strings.Index(b, "dst="):])
	})
	o.Args = []string{"/bin/sh", "-c", fmt.Sprintf(nestedScript, prepare, h.ID, strings.Join(asks, " "), h.ID, h.Image, probe)}
	out := h.MustRun(t, o)
	if strings.Count(out, "== ask") != len(asks) {
		log, _ := os.ReadFile(filepath.Join(in, "log"))
		t.Fatalf("%s\n%s", out, log)
	}
	got := map[string]string{}
	for _, part := range strings.Split(out, "== ask ")[1:] {
		ask, rest, _ := strings.Cut(part, "\n")
		got[ask] = rest
	}
	return got
}

// nestedCompare compares what a nested container sees.
func nestedCompare(t *testing.T, ask, got string, want simhost.Seen) {
	t.Helper()
	p := simhost.Parse(got)
	want.Mknod, want.Dev, p.Mknod, p.Dev = nil, nil, nil, nil
	simhost.Compare(t, p, want)
	if t.Failed() {
		t.Fatalf("asked for %s:\n%s", ask, got)
	}
}

// Containers started by a container get the GPUs that it was given, counted from 0, and no others.
func TestNestedContainersGetTheGPUsOfTheOuterOne(t *testing.T) {
	h := simhost.New(t, simhost.Options{Driver: sim.Options{GPUs: 4}, Env: testenv.Options{Cgroup: 2}})
	uuid := func(i int) string { return h.Driver.GPUs[i].UUID }
	for _, tc := range nestedHosts {
		t.Run(tc.name, func(t *testing.T) {
			got := nested(t, h, tc.prepare, tc.options, "1,3", []string{"all", "0", "1", uuid(3), "2", uuid(0)})
			for ask, want := range map[string][]int{"all": {1, 3}, "0": {1}, "1": {3}, uuid(3): {3}} {
				nestedCompare(t, ask, got[ask], h.Expect(want))
			}
			for _, ask := range []string{"2", uuid(0)} {
				if !strings.Contains(got[ask], "unknown GPU") || strings.Contains(got[ask], "== open") {
					t.Errorf("asked for %s, which the outer container was not given:\n%s", ask, got[ask])
				}
			}
		})
	}
}
