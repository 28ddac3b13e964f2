package runtimeclass

import (
	"fmt"
	"path"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

// kind is a cluster whose nodes are containers, each with a containerd of its own. Nothing is
// installed on the host: install prints the configuration of a cluster.
type kind struct{ containerd }

func (kind) daemon() Daemon {
	return Daemon{Name: "kind", Title: "kind", IsContainerd: true, Print: kindCluster}
}

func (kind) byHand(*Plan, Options) []string { return nil }

const kindConfig = `kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
nodes:
- role: control-plane
  extraMounts:
%s  # All GPUs for the node, if the runtime that starts it accepts volume mounts.
  - hostPath: /dev/null
    containerPath: /var/run/nvidia-container-devices/all
containerdConfigPatches:
# kind leaves a patch out whose version is not that of the node's configuration.
- |-
%s- |-
%s`

// kindCluster returns a cluster configuration for kind. Its nodes have the shim of this host and,
// if the host's Docker runs the shim or NVIDIA's runtime by default, the GPUs. The registration
// must be valid.
func kindCluster(r Registration) string {
	patch := func(format int, plugin string) string {
		text := fmt.Sprintf("version = %d\n", format)
		if r.Default {
			text += defaultTable(plugin, r.Handler)
		}
		text += Runtime{Type: stockType, Path: path.Join(DefaultBinDir, version.Shim)}.tables(plugin, r.Handler)
		return "  " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n  ") + "\n"
	}
	mounts := ""
	for _, name := range Programs {
		mounts += fmt.Sprintf("  - hostPath: %q\n    containerPath: %q\n    readOnly: true\n", path.Join(r.BinDir, name), path.Join(DefaultBinDir, name))
	}
	return fmt.Sprintf(kindConfig, mounts, patch(2, criV2), patch(3, criV3))
}
