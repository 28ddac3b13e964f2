package runtimeclass

import (
	"os"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// hostWith is a tree with files and processes. Those of others are a user's and a container's.
func hostWith(t *testing.T, files map[string]string, runs, others []string) (Host, procfs.FS) {
	t.Helper()
	r := testtree.Root{TB: t, Dir: tree(t, files)}
	const proc = "processes"
	r.Process(proc, 1, "/sbin/init", nil)
	for i, command := range append(runs[:len(runs):len(runs)], slices.Concat(others, others)...) {
		args := strings.Fields(command)
		if i >= len(runs) {
			args[0] = "/elsewhere" + args[0] // no file of the host is made
		}
		r.Process(proc, 10+i, args[0], nil, args[1:]...)
		dir := path.Join(proc, strconv.Itoa(10+i))
		switch {
		case i >= len(runs)+len(others):
			r.ReplaceLink(dir+"/ns/mnt", "mnt:[2]")
		case i >= len(runs):
			r.Write(dir+"/status", "Uid: 1000 1000 1000 1000\nCapEff: 000001ffffffffff\n")
		}
	}
	return Host{Tree: hosttree.Tree{Root: r.Dir}}, procfs.FS(path.Join(r.Dir, proc))
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
		{name: "not executed", files: map[string]string{containerd: ""}, runs: []string{"/srv/containerd"}, want: []string{"containerd (/srv/containerd runs)"}},
		{name: "with a configuration elsewhere", runs: []string{containerd + " -c /etc/k0s/containerd.toml", containerd + " -c /etc/k0s/containerd.toml"},
			want: []string{"containerd (/usr/bin/containerd runs with /etc/k0s/containerd.toml)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, proc := hostWith(t, c.files, c.runs, c.others)
			var got []string
			for _, f := range Find(h, proc, c.target) {
				got = append(got, f.String())
				if f.Runs != (len(c.runs) > 0) || f.Program != "" && f.Program != containerd && f.Program != docker ||
					(f.Program == "") != (!f.Runs || DaemonOf(f.Target).Generated || strings.HasPrefix(f.Why, "/srv")) {
					t.Errorf("runs: %t, program %q", f.Runs, f.Program)
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
			var runs, others []string
			if c.runs != "" {
				runs = []string{c.runs}
			}
			if c.other != "" {
				others = []string{c.other}
			}
			h, proc := hostWith(t, c.files, runs, others)
			want := ""
			if c.want != "" {
				want = c.want + "/pod-resources/kubelet.sock"
			}
			if got := KubeletSocket(h, proc); got != want {
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
