package check

import (
	"context"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// Versions returns the versions of the driver and of the programs that start containers, and
// Docker's runtimes that start this shim.
func Versions(ctx context.Context, o Options) map[string]any {
	n := inspect(ctx, o)
	const notFound = "not found"
	versions := map[string]any{"driver": notFound, "docker_runtimes": notFound}
	if n.gpus != nil {
		versions["driver"] = n.gpus.Driver()
	}
	list, err := runtimeclass.Host{Tree: hosttree.Tree{Root: n.Root}}.DockerRuntimes(n.DockerConfig)
	types := map[string]string{}
	for name, r := range list {
		types[name] = r.Type
	}
	if err != nil {
		versions["docker_runtimes"] = err.Error()
	} else if len(types) > 0 {
		versions["docker_runtimes"] = types
	}
	programs := map[string]string{"containerd": n.Containerd, "runc": ""}
	for _, name := range []string{"dockerd", "kubelet", "k3s"} { // k3s contains its kubelet
		programs[name] = n.daemon(name).Program
	}
	for _, name := range append(n.runtimes(), "runc") {
		if p, err := n.lookPath(name); err == nil {
			programs[name] = n.real(p)
		}
	}
	for name, program := range programs {
		versions[name] = notFound
		if program == "" {
			continue
		}
		text, err := run(ctx, program, "--version")
		first, _, _ := strings.Cut(string(text), "\n")
		versions[name] = program + ": " + first
		if err != nil {
			versions[name] = err.Error()
		}
	}
	return versions
}
