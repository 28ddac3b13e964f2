package runtimeclass

import (
	"errors"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// process adds a process to a fixture of procfs.
func process(t *testing.T, proc procfs.FS, pid int, command, uid, namespace string) {
	t.Helper()
	args := strings.Fields(command)
	write(t, proc.Path(pid, "environ"), "")
	write(t, proc.Path(pid, "cmdline"), strings.Join(args, "\x00"))
	write(t, proc.Path(pid, "status"), "Uid: "+strings.Repeat(" "+uid, 4)+"\nCapEff: 000001ffffffffff\n")
	check(t, errors.Join(os.Symlink(args[0], proc.Path(pid, "exe")), os.Mkdir(proc.Path(pid, "ns"), 0o755),
		os.Symlink(namespace, proc.Path(pid, "ns/pid")), os.Symlink("user:[1]", proc.Path(pid, "ns/user"))))
}

func TestFind(t *testing.T) {
	k3s, docker, containerd := rancherDir+"/k3s/agent/x", "/usr/bin/dockerd", "/usr/bin/containerd"
	for _, c := range []struct {
		name   string
		files  map[string]string
		target string
		// runs are commands of daemons; others are commands of a user and of a container.
		runs, others []string
		want         []string
	}{
		{name: "nothing"},
		{name: "containerd", files: map[string]string{containerd: ""}, want: []string{"containerd (/usr/bin/containerd)"}},
		{name: "a kind node", files: map[string]string{"/kind/version": "", containerd: ""}, want: []string{"containerd (/kind/version)"}},
		{name: "a k3s server", files: map[string]string{rancherDir + "/k3s/server/tls/x": "", k3s: ""}, want: []string{"k3s (/var/lib/rancher/k3s/server/tls)"}},
		{name: "a k3s agent", files: map[string]string{k3s: ""}, want: []string{"k3s (/var/lib/rancher/k3s/agent)"}},
		{name: "an RKE2 server", files: map[string]string{rancherDir + "/rke2/server/tls/x": "", rancherDir + "/rke2/agent/x": ""}, want: []string{"rke2 (/var/lib/rancher/rke2/server/tls)"}},
		{name: "an RKE2 server runs", files: map[string]string{rancherDir + "/rke2/server/tls/x": ""}, runs: []string{"/usr/local/bin/rke2 server", rancherDir + "/rke2/data/v1/bin/containerd"},
			want: []string{"rke2 (/usr/local/bin/rke2 runs)"}},
		{name: "an RKE2 agent", files: map[string]string{rancherDir + "/rke2/agent/x": ""}, want: []string{"rke2 (/var/lib/rancher/rke2/agent)"}},
		{name: "Docker with its containerd", files: map[string]string{docker: "", containerd: "", DefaultContainerdConfig: "disabled_plugins = [\"cri\"]\n"},
			want: []string{"docker (/usr/bin/dockerd)"}},
		{name: "that containerd, if it is named", files: map[string]string{docker: "", containerd: "", DefaultContainerdConfig: "disabled_plugins = [\"cri\"]\n"},
			target: Containerd, want: []string{"containerd (/usr/bin/containerd)"}},
		{name: "Docker and Kubernetes", files: map[string]string{docker: "", containerd: "", DefaultContainerdConfig: "version = 2\n"},
			want: []string{"docker (/usr/bin/dockerd)", "containerd (/usr/bin/containerd)"}},
		{name: "k3s runs, Docker is there", files: map[string]string{docker: "", k3s: ""},
			runs: []string{"/usr/local/bin/k3s", rancherDir + "/k3s/data/current/bin/containerd"}, want: []string{"k3s (/usr/local/bin/k3s runs)"}},
		{name: "dockerd runs its containerd", runs: []string{docker, containerd + " --config /var/run/docker/containerd/containerd.toml"},
			want: []string{"docker (/usr/bin/dockerd runs)"}},
		{name: "those of users and in containers do not count", files: map[string]string{containerd: ""}, others: []string{docker, "/usr/local/bin/k3s"},
			want: []string{"containerd (/usr/bin/containerd)"}},
		{name: "dockerd with a configuration elsewhere", runs: []string{docker + " --config-file=/srv/daemon.json"},
			want: []string{"docker (/usr/bin/dockerd runs with /srv/daemon.json)"}},
		{name: "with a configuration elsewhere", runs: []string{containerd + " -c /etc/k0s/containerd.toml", containerd + " -c /etc/k0s/containerd.toml"},
			want: []string{"containerd (/usr/bin/containerd runs with /etc/k0s/containerd.toml)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			proc := procfs.FS(t.TempDir())
			process(t, proc, 1, "/sbin/init", "0", "pid:[1]")
			check(t, os.Symlink("1", string(proc)+"/self"))
			for i, command := range c.runs {
				process(t, proc, 10+i, command, "0", "pid:[1]")
			}
			for i, command := range c.others {
				process(t, proc, 20+i, command, "1000", "pid:[1]")
				process(t, proc, 30+i, command, "0", "pid:["+strconv.Itoa(30+i)+"]")
			}
			var got []string
			for _, f := range Find(Host{Tree: hosttree.Tree{Root: tree(t, c.files)}}, proc, c.target) {
				got = append(got, f.String())
				if f.Program != "" && f.Program != containerd && f.Program != docker || (f.Program == "") != (len(c.runs) == 0 || Distributions[f.Target].Name != "") {
					t.Errorf("program %q", f.Program)
				}
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
}

func TestTheKubeletsSocketIsFound(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		// runs is the kubelet's command; other is the command of a kubelet of a user and in a
		// container.
		runs, other, want string
	}{
		{name: "no kubelet"},
		{name: "without the flag", runs: "/usr/bin/kubelet --v=2", want: defaultKubeletDir},
		{name: "with the flag", runs: "/usr/bin/kubelet --v=2 --root-dir=/srv/k", want: "/srv/k"},
		{name: "with the flag twice", runs: "/usr/bin/kubelet --root-dir /srv/k --root-dir /srv/l", want: "/srv/l"},
		{name: "another flag", runs: "/usr/bin/kubelet --root-directory=/srv/k", want: defaultKubeletDir},
		{name: "that of a user and in a container", other: "/usr/bin/kubelet --root-dir=/srv/k"},
		{name: "the one that runs counts", files: map[string]string{"/etc/default/kubelet": "A=--root-dir=/srv/k\n"}, runs: "/usr/bin/kubelet", want: defaultKubeletDir},
		{name: "kubeadm", files: map[string]string{"/etc/default/kubelet": "# --root-dir=/x\nKUBELET_EXTRA_ARGS=\"--v=2 --root-dir=/srv/k\"\n"}, want: "/srv/k"},
		{name: "a drop-in", files: map[string]string{"/etc/systemd/system/kubelet.service.d/9.conf": "ExecStart=/usr/bin/kubelet --root-dir /srv/k --v=2\n"}, want: "/srv/k"},
		{name: "k3s", files: map[string]string{"/etc/rancher/k3s/config.yaml": "kubelet-arg: [\"v=2\", \"root-dir=/srv/k\"]\n"}, want: "/srv/k"},
		{name: "k0s", files: map[string]string{k0sKubeletDir + "/x": ""}, want: k0sKubeletDir},
		{name: "k0s elsewhere", files: map[string]string{"/etc/systemd/system/k0sworker.service": "ExecStart=/usr/bin/k0s worker --kubelet-root-dir=/srv/k\n"}, want: "/srv/k"},
	} {
		t.Run(c.name, func(t *testing.T) {
			proc := procfs.FS(t.TempDir())
			process(t, proc, 1, "/sbin/init", "0", "pid:[1]")
			check(t, os.Symlink("1", string(proc)+"/self"))
			if c.runs != "" {
				process(t, proc, 10, c.runs, "0", "pid:[1]")
			}
			if c.other != "" {
				process(t, proc, 20, c.other, "1000", "pid:[1]")
				process(t, proc, 30, c.other, "0", "pid:[30]")
			}
			want := ""
			if c.want != "" {
				want = c.want + "/pod-resources/kubelet.sock"
			}
			if got := KubeletSocket(Host{Tree: hosttree.Tree{Root: tree(t, c.files)}}, proc); got != want {
				t.Errorf("found %q, want %q", got, want)
			}
		})
	}
	root := tree(t, map[string]string{"/etc/default/kubelet": "A=--root-dir=/srv/k\n", "/srv/k/x": "", "/var/lib/x": ""})
	check(t, os.Symlink("/srv/k", root+defaultKubeletDir))
	if got := KubeletSocket(Host{Tree: hosttree.Tree{Root: root}}, ""); got != defaultKubeletDir+"/pod-resources/kubelet.sock" {
		t.Errorf("behind a link: %q", got)
	}
}
