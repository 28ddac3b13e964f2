package status

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/nvml"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
)

// Docker's users know a container by its name, which only dockerd keeps.
func TestAContainerOfDockerHasItsName(t *testing.T) {
	f := testtree.NewRoot(t)
	root, config := dockerRoot, dockerConfig
	t.Cleanup(func() { dockerRoot, dockerConfig = root, config })
	dockerRoot, dockerConfig = filepath.Join(f.Dir, "docker"), filepath.Join(f.Dir, "daemon.json")
	const id = "c0ffee00112233"
	named := func(name string) string { return `{"ID": "` + id + `", "Name": "/` + name + `"}` }
	f.Write("docker/containers/"+id+"/config.v2.json", named("web"))
	for _, c := range []struct{ namespace, id, want string }{
		{"moby", id, "web"}, {"k8s.io", id, ""}, {"moby", "other", ""}, {"moby", "../" + id, ""},
	} {
		if got := DockerName(c.namespace, c.id); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}

	all := []Bundle{{Dir: f.Dir, Namespace: "moby", ID: id}, {Dir: f.Dir, Namespace: "moby", ID: "webserver"}}
	if b, err := Find(all, "", "", "web"); err != nil || b.ID != id {
		t.Errorf("by the name: %+v, %v", b, err)
	}
	if _, err := Find(all[:1], "", "", "none"); err == nil || strings.Contains(err.Error(), `"web"`) { // it has no record of a GPU
		t.Errorf("error %v", err)
	}
	record := Record{PlanContainer: gpuinject.PlanContainer{Namespace: "moby", ID: id}}
	s := Join(procfs.FS(f.Dir), device.Inventory{}, nvml.Snapshot{}, errors.New("none"), []Record{record})
	if len(s.Containers) != 1 || s.Containers[0].Name != "web" || s.Containers[0].Label() != "web" {
		t.Errorf("status: %+v", s.Containers)
	}

	f.Write("data/containers/"+id+"/config.v2.json", named("moved"))
	f.Write("daemon.json", `{"data-root": "`+f.Dir+`/data"}`)
	if got := DockerName("moby", id); got != "moved" {
		t.Errorf("with a data-root: %q", got)
	}
}
