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
	const elsewhere = "view at /opt/nvidia-driver"
	table{
		host: h, env: devices("0"),
		show: func(p Plan) string {
			for _, m := range p.Mounts {
				if m.Source == p.Changes.View.Root {
					return "view at " + m.Destination
				}
			}
			return "no view"
		},
		rows: []row{
			{name: "read-only", spec: mount(dir, view.Dir, "ro"), want: "view at " + view.Dir},
			{name: "by another name", spec: mount(dir+"/lib64/..", view.Dir+"/", "ro"), want: "view at " + view.Dir},
			{name: "with Vulkan's files", spec: all(mount(dir, view.Dir, "ro"), mount(dir+"/vulkan/icd.d", "/etc/vulkan/icd.d", "ro")), want: "view at " + view.Dir},
			{name: "writable", spec: mount(dir, view.Dir, "rw"), want: elsewhere},
			{name: "another directory", spec: mount(t.TempDir(), view.Dir, "ro"), want: elsewhere},
			{name: "the libraries alone", spec: mount(dir+"/lib64", view.Dir, "ro"), want: elsewhere},
			{name: "elsewhere below", spec: mount(dir, view.Dir+"/lib64", "ro"), want: elsewhere},
		},
	}.run(t)
}
