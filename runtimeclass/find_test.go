package runtimeclass

import (
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

func TestFind(t *testing.T) {
	k3s, docker, containerd := rancherDir+"/k3s/agent/x", "/usr/bin/dockerd", "/usr/bin/containerd"
	for _, c := range []struct {
		name  string
		files map[string]string
		runs  []string
		want  []string
	}{
		{name: "nothing"},
		{name: "containerd", files: map[string]string{containerd: ""}, want: []string{"containerd (/usr/bin/containerd)"}},
		{name: "a kind node", files: map[string]string{"/kind/version": "", containerd: ""}, want: []string{"containerd (/kind/version)"}},
		{name: "a k3s server", files: map[string]string{rancherDir + "/k3s/server/tls/x": "", k3s: ""}, want: []string{"k3s (/var/lib/rancher/k3s/server/tls)"}},
		{name: "a k3s agent", files: map[string]string{k3s: ""}, want: []string{"k3s (/var/lib/rancher/k3s/agent)"}},
		{name: "an RKE2 agent", files: map[string]string{rancherDir + "/rke2/agent/x": ""}, want: []string{"rke2 (/var/lib/rancher/rke2/agent)"}},
		{name: "Docker with its containerd", files: map[string]string{docker: "", containerd: "", DefaultContainerdConfig: "disabled_plugins = [\"cri\"]\n"},
			want: []string{"docker (/usr/bin/dockerd)"}},
		{name: "Docker and Kubernetes", files: map[string]string{docker: "", containerd: "", DefaultContainerdConfig: "version = 2\n"},
			want: []string{"docker (/usr/bin/dockerd)", "containerd (/etc/containerd/config.toml)"}},
		{name: "k3s runs, Docker is there", files: map[string]string{docker: "", k3s: ""},
			runs: []string{"/usr/local/bin/k3s", rancherDir + "/k3s/data/current/bin/containerd"}, want: []string{"k3s (/usr/local/bin/k3s runs)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			proc := procfs.FS("")
			if c.runs != nil {
				proc = procfs.FS(t.TempDir())
			}
			for i, program := range c.runs {
				dir := filepath.Join(string(proc), strconv.Itoa(i+1))
				write(t, filepath.Join(dir, "environ"), "")
				write(t, filepath.Join(dir, "cmdline"), "")
				check(t, os.Symlink(program, filepath.Join(dir, "exe")))
			}
			var got []string
			for _, f := range Find(Host{Root: tree(t, c.files)}, proc) {
				got = append(got, f.String())
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
}
