package systemd

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

const (
	inDocker = inBin + "/docker/docker"
	// dockerConfig leaves the network alone, which is the host's.
	dockerConfig = `{"bridge":   "none", "iptables": false, "ip6tables": false, "ip-forward": false,
 "data-root": "/srv/docker", "containerd": "/run/containerd/containerd.sock", "containerd-namespace": "` + namespace + `"}
`
	// dockerUnit is Docker's own unit file with this machine's places. It notes what is done with it.
	dockerUnit = `[Unit]
After=containerd.service
Requires=containerd.service
[Service]
Type=notify
ExecStartPre=/bin/sh -c "echo start >>/run/docker.asked"
ExecStart=%[1]s/docker/dockerd
ExecReload=/bin/sh -c "echo reload >>/run/docker.asked; kill -s HUP $MAINPID"
Environment=PATH=%[1]s/docker:%[1]s/tools:%[2]s
Delegate=yes
KillMode=process
`
)

// startDocker adds a Docker Engine to the machine. containerd finds only an installed shim.
func (m *machine) startDocker(t *testing.T) {
	t.Helper()
	for name, text := range map[string]string{
		runtimeclass.DefaultDockerConfig: dockerConfig, "/etc/systemd/system/docker.service": fmt.Sprintf(dockerUnit, inBin, systemPath),
	} {
		m.run(t, "sh", "-c", `mkdir -p "${1%/*}" && printf %s "$2" >"$1"`, "sh", name, text)
	}
	m.unit(t, "[Service]\\nEnvironment=PATH="+inBin+"/tools:"+systemPath+"\\n")
	m.run(t, "systemctl", "restart", "containerd")
	m.run(t, "systemctl", "start", "docker")
	m.run(t, "ctr", "images", "tag", m.image, "docker.io/"+m.image)
}

// dockerAsked checks how often dockerd was started and reloaded.
func (m *machine) dockerAsked(t *testing.T, want ...string) {
	t.Helper()
	if got := strings.Fields(m.run(t, "cat", "/run/docker.asked")); !slices.Equal(got, want) {
		t.Errorf("docker.service was asked to %q, want %q", got, want)
	}
}

// A containerd without CRI is Docker's and is not restarted.
func TestTheNodeImageInstallsForDocker(t *testing.T) {
	n := startNode(t)
	n.startDocker(t)
	run := append([]string{inDocker, "run", "--rm", "--network", "none", "--pull", "never", "--runtime", "nvidia",
		"--env", "NVIDIA_VISIBLE_DEVICES=1", "docker.io/" + n.machine.image}, n.ProbeArgs()...)
	before := n.state(t)
	simhost.Want(t, n.once(t, 0, false), "found docker (", "write "+installedShim)
	n.dockerAsked(t, "start", "reload")
	n.api.Want(t, "true", n.version, 1)
	testenv.Await(t, "dockerd has the runtime", func() bool {
		return strings.Contains(n.run(t, inDocker, "info", "--format", "{{json .Runtimes}}"), `"nvidia":`)
	})
	simhost.Compare(t, simhost.Parse(n.run(t, run...)), n.Expect([]int{1}))

	n.once(t, 0, false)
	n.dockerAsked(t, "start", "reload")
	n.once(t, 0, false, "--uninstall")
	n.dockerAsked(t, "start", "reload", "start")
	if after := n.state(t); after != before {
		t.Errorf("uninstall left: %s", changed(before, after))
	}
	n.stateGone(t)
	n.api.Want(t, "", "", 3)
	simhost.Want(t, n.try(t, nil, run...).Error, "unknown or invalid runtime name: nvidia")
}
