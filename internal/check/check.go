package check

import (
	"context"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// Node runs all checks.
func Node(ctx context.Context, o Options) []Finding {
	n := inspect(ctx, o)
	list := []Finding{}
	for _, c := range []struct {
		name     string
		findings []Finding
	}{
		{"configuration", checkConfiguration(n)},
		{"advisories", checkAdvisories(time.Now())},
		{"shim", checkShims(ctx, n)},
		{"containerd", checkContainerd(n)},
		{n.owner.Name, checkDaemon(ctx, n)},
		{"handler", checkHandlers(n)},
		{"runc", checkRunc(ctx, n)},
		{"criu", checkCRIU(ctx, n)},
		{"driver", checkDriver(ctx, n)},
		{"nodes", checkNodes(ctx, n)},
		{"prepare", checkPrepareUnit(n)},
		{"libraries", checkLibraries(n)},
		{"probe", checkProbes(ctx, n)},
		{"cdi", checkCDI(n)},
		{"sockets", checkSockets(n)},
		{"state", checkState(n)},
		{"health", checkHealth(n)},
		{"kubelet", checkKubelet(ctx, n)},
	} {
		for _, f := range c.findings {
			f.Check = c.name
			list = append(list, f)
		}
	}
	return list
}

func checkConfiguration(n *node) []Finding {
	if n.configErr != nil {
		return problem("fix that file: no GPU container starts until then", "%v", n.configErr)
	}
	if n.config.Policy.Kubernetes == config.TrustEnv {
		return warning("set policy.kubernetes = \"enforce\": the shim then reads what was allocated",
			"policy.kubernetes is \"trust-env\": the author of an image or a pod chooses its GPUs, whatever was allocated")
	}
	return fine("the shim's configuration is valid; Kubernetes policy: %s", n.config.Policy.Kubernetes)
}
