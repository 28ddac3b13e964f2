package check

import (
	"context"
	"strings"

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
	list, err := n.host().Runtimes(runtimeclass.Docker, n.Configs[runtimeclass.Docker])
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
	elsewhere := map[string]string{"containerd": n.elsewhere}
	for _, name := range []string{"dockerd", "kubelet", "k3s"} { // k3s contains its kubelet
		d := n.daemon(name)
		programs[name] = d.program
		if d.program == "" && d.Program != "" {
			elsewhere[name] = d.Program
		}
	}
	for _, name := range append(n.runtimes(), "runc") {
		if p, known, err := n.lookPath(name); err == nil && known {
			programs[name] = n.real(p)
		} else if err == nil {
			elsewhere[name] = p
		}
	}
	for name, program := range programs {
		versions[name] = notFound
		if program == "" && elsewhere[name] != "" {
			versions[name] = notExecuted(name, elsewhere[name])
		}
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
