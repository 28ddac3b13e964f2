package policy

import (
	"slices"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

// MayManageMIG tells whether the container may have the rights to configure MIG or to
// watch all MIG devices. They reach every container of the host that has a GPU, so the
// environment alone is no grant in any mode (security.md 4): in Kubernetes a container
// is privileged or its namespace trusted, elsewhere it has CAP_SYS_ADMIN, which is what
// NVIDIA's documentation asks for. reason says what is missing.
func MayManageMIG(p config.Policy, c Container) (may bool, reason string) {
	if !c.Kubernetes {
		return c.Admin, "the container needs CAP_SYS_ADMIN (--cap-add SYS_ADMIN) and no user namespace"
	}
	return c.Privileged || c.Namespace != "" && slices.Contains(p.TrustedNamespaces, c.Namespace),
		"the container must be privileged, or its namespace one of policy.trusted-namespaces"
}
