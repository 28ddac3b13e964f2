package gpuinject

import (
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

// GKE's device plugin mounts the host's driver where the view goes.
func TestAMountOfTheDriverDirectoryIsTheDriver(t *testing.T) {
	h := newHost(t, sim.Options{GPUs: 1, Layout: sim.GKE})
	dir := filepath.Join(h.Root, "usr/local/nvidia")
	mount := func(source, dest string, options ...string) func(*specs.Spec) {
		return func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Source: source, Destination: dest, Type: "bind", Options: append(options, "rbind")})
		}
	}
	const refused = "refused: the container mounts a volume at"
	table{
		host: h, env: devices("0"),
		show: func(p Plan) string {
			for _, m := range p.Mounts {
				if m.Destination == view.Dir && m.Source == p.Changes.View.Root {
					return "view"
				}
			}
			return "no view"
		},
		rows: []row{
			{name: "read-only", spec: mount(dir, view.Dir, "ro"), want: "view"},
			{name: "by another name", spec: mount(dir+"/lib64/..", view.Dir+"/", "ro"), want: "view"},
			{name: "with Vulkan's files", spec: all(mount(dir, view.Dir, "ro"), mount(dir+"/vulkan/icd.d", "/etc/vulkan/icd.d", "ro")), want: "view"},
			{name: "writable", spec: mount(dir, view.Dir, "rw"), want: refused},
			{name: "another directory", spec: mount(t.TempDir(), view.Dir, "ro"), want: refused},
			{name: "the libraries alone", spec: mount(dir+"/lib64", view.Dir, "ro"), want: refused},
			{name: "elsewhere below", spec: mount(dir, view.Dir+"/lib64", "ro"), want: refused},
		},
	}.run(t)
}
