package docker

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/place"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

// object is a part of a CDI specification.
type object map[string]any

const refusal = "this hook refuses"

// writeSpecs writes specifications as people write them, each of a kind of its own, and waits until
// dockerd has read them.
func (e *engine) writeSpecs(t *testing.T) {
	t.Helper()
	var all struct{ Devices, Files []place.Bind }
	testtree.Check(t, json.Unmarshal([]byte(e.Ctl(t, "--json", "run-args", "--for", "docker")), &all))
	var nodes, places, homes []object
	for _, d := range all.Devices {
		if _, err := fmt.Sscanf(d.Destination, "/dev/nvidia%d", new(int)); err != nil {
			nodes = append(nodes, object{"path": d.Destination, "hostPath": d.Source, "permissions": "rw"})
		}
	}
	mount := func(from, to string) object {
		return object{"hostPath": from, "containerPath": to, "options": []string{"ro", "nosuid", "nodev", "rbind", "rprivate"}}
	}
	for _, f := range all.Files {
		places = append(places, mount(f.Source, f.Destination))
		if name, ok := strings.CutPrefix(f.Destination, view.Dir+"/lib64/"); ok {
			dir := "/" + e.Driver.Layout.LibDir()
			f.Destination = path.Join(dir, name)
			if own := path.Join(dir, path.Base(f.Source)); own != f.Destination {
				homes = append(homes, mount(f.Source, own))
			}
		}
		homes = append(homes, mount(f.Source, f.Destination))
	}
	hook := func(text string) []object {
		program := simhost.Script(t, filepath.Join(t.TempDir(), "nvidia-cdi-hook"), text)
		return []object{{"hookName": "createContainer", "path": program, "args": []string{"nvidia-cdi-hook", "update-ldcache"}}}
	}
	refuses, works := hook("echo "+refusal+" >&2; exit 1\n"), hook("exit 0\n")
	void := []string{"NVIDIA_VISIBLE_DEVICES=void"}
	paths := append(void, "LD_LIBRARY_PATH="+view.Dir+"/lib64")
	for name, edits := range map[string]object{
		"env": {}, "mount": {}, "nodes": {"deviceNodes": nodes}, "hook": {"deviceNodes": nodes, "hooks": refuses}, "hookmount": {"hooks": refuses},
		"full": {"deviceNodes": nodes, "mounts": places, "env": paths}, "fullhook": {"deviceNodes": nodes, "mounts": places, "env": paths, "hooks": works},
		"full2": {"deviceNodes": nodes, "mounts": homes, "env": void, "hooks": works},
	} {
		var devices []object
		for _, i := range []int{0, 2} {
			node := fmt.Sprintf("/dev/nvidia%d", e.Minors[i])
			own := object{"deviceNodes": []object{{"path": node, "hostPath": e.Driver.DevRoot + node, "permissions": "rw"}}}
			switch name {
			case "env":
				own = object{"env": []string{fmt.Sprint("NVIDIA_VISIBLE_DEVICES=", i)}}
			case "mount", "hookmount":
				own = object{"mounts": []object{mount("/dev/null", fmt.Sprint("/var/run/nvidia-container-devices/", i))}}
			}
			devices = append(devices, object{"name": fmt.Sprint(i), "containerEdits": own})
		}
		text, err := json.Marshal(object{"cdiVersion": "0.5.0", "kind": "example.com/" + name, "devices": devices, "containerEdits": edits})
		testtree.Check(t, err)
		file := simhost.WriteFile(t, filepath.Join(e.specs, name+".json"), string(text))
		t.Cleanup(func() { testtree.Check(t, os.Remove(file)) })
		testenv.Await(t, "dockerd knows "+name, func() bool {
			return strings.Contains(e.docker(t, "info", "--format", "{{json .DiscoveredDevices}}"), `"example.com/`+name+`=2"`)
		})
	}
}

// Two devices of another program's specification, for an image that asks for all: never more than
// these devices.
func TestCDISpecificationsOfOthers(t *testing.T) {
	unchanged(t)
	shared.writeSpecs(t)
	const cuda = "cuda:latest"
	id := strings.TrimSpace(shared.docker(t, "create", shared.image(), "true"))
	shared.docker(t, "commit", "--change", "ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility", id, cuda)
	shared.docker(t, "rm", id)
	t.Cleanup(func() { shared.docker(t, "rmi", cuda) })
	both, last, none, nodes, refused := "GPUs 0 and 2", "GPU 2", "nothing", "nodes without a driver", "refused by the hook"
	for _, tc := range []struct{ spec, image, nvidia, runc string }{
		{"env", cuda, last, none},
		{"mount", cuda, both, none},
		{"nodes", cuda, both, nodes},
		{"nodes", shared.image(), nodes, nodes},
		{"hook", cuda, both, refused},
		{"hookmount", cuda, both, refused},
		{"full", cuda, both, both},
		{"fullhook", cuda, both, both},
		{"full2", cuda, both, both},
	} {
		for runtime, outcome := range map[string]string{"nvidia": tc.nvidia, "runc": tc.runc} {
			t.Run(tc.spec+" "+tc.image+" "+runtime, func(t *testing.T) {
				args := shared.run("--rm", "--runtime", runtime, "--device", "example.com/"+tc.spec+"=0", "--device", "example.com/"+tc.spec+"=2", tc.image)
				r := shared.try(t, nil, append(args, shared.ProbeArgs()...)...)
				if want := outcome == refused; want != (r.ExitCode != 0) || want != strings.Contains(r.Error, refusal) {
					t.Fatalf("exit status %d, %s", r.ExitCode, r.Error)
				}
				got, want := simhost.Parse(r.Output), shared.Expect([]int{0, 2})
				switch outcome {
				case refused:
					return
				case last:
					want = shared.Expect([]int{2})
				case none:
					want = shared.ExpectNothing()
				case nodes:
					want.SMI, want.CUDA = nil, nil
				}
				if runtime == "runc" {
					want.ProcGPUs = got.ProcGPUs // the mask is the shim's
				}
				simhost.Compare(t, got, want)
			})
		}
	}
}

// Before the specification is made again after an upgrade, it still names the devices to the shim.
func TestAStaleCDISpecification(t *testing.T) {
	unchanged(t, shared.Driver.StateDir+"/view/") // the other driver has its own view
	t.Cleanup(func() {
		testtree.Check(t, shared.Driver.Upgrade(sim.DefaultVersion))
		check(t, shared.probe(t, visible("1"), shared.image()), 1)
	})
	testtree.Check(t, shared.Driver.Upgrade("999.1.2"))
	check(t, shared.probe(t, []string{"--runtime", "nvidia", "--gpus", "device=1"}, shared.image()), 1)
	r := shared.try(t, nil, append(shared.run("--rm", "--gpus", "device=1"), shared.image(), "true")...)
	if r.ExitCode == 0 {
		t.Error("the container started under runc")
	}
	simhost.Want(t, r.Error, ".so."+sim.DefaultVersion+": no such file")
}
