package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/kubelet"
)

func checkKubelet(ctx context.Context, n *node) []finding {
	name := n.cfg.Policy.KubeletSocket
	socket := filepath.Join(n.root, name)
	const ofRootDir = "let policy.kubelet-socket name pod-resources/kubelet.sock in its --root-dir"
	if _, err := os.Stat(socket); err != nil {
		if _, err := os.Stat(filepath.Join(n.root, n.kubeletDir)); errors.Is(err, fs.ErrNotExist) {
			return []finding{fine("there is no %s: not a Kubernetes node", n.kubeletDir)}
		}
		// Without a socket the shim takes the node for one outside Kubernetes.
		return []finding{warning("start the kubelet, or "+ofRootDir,
			"there is a kubelet's %s, but no socket %s: containers are not held to what the kubelet allocated", n.kubeletDir, name)}
	}
	// The shim's probe waits no longer.
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	pods, err := kubelet.Ping(ctx, socket)
	if err != nil {
		return []finding{problem("see whether the kubelet runs (systemctl status kubelet) and what its log says, or "+ofRootDir,
			"the kubelet does not answer at %s: %s", name, oneLine(err))}
	}
	return []finding{fine("the kubelet answers at %s, with %d pods", name, pods)}
}
