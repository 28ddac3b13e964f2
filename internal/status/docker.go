package status

import (
	"encoding/json"
	"path/filepath"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// dockerNamespace is the namespace of Docker's containers in containerd.
const dockerNamespace = "moby"

// dockerRoot is where dockerd keeps its containers, unless the data-root of dockerConfig says
// another place.
var dockerRoot, dockerConfig = "/var/lib/docker", runtimeclass.DefaultDockerConfig

// DockerName returns the name by which Docker's users know a container; "" for containers of others,
// and if this host's dockerd does not have it. containerd knows the id only.
func DockerName(namespace, id string) string {
	if namespace != dockerNamespace || filepath.Base(id) != id {
		return ""
	}
	root := dockerRoot
	var daemon struct {
		DataRoot string `json:"data-root"`
	}
	if text, _, err := trusted.Read(dockerConfig, maxRecord); err == nil && json.Unmarshal(text, &daemon) == nil && filepath.IsAbs(daemon.DataRoot) {
		root = daemon.DataRoot
	}
	var container struct{ Name string }
	text, _, err := trusted.Read(filepath.Join(root, "containers", id, "config.v2.json"), maxRecord)
	if err != nil || json.Unmarshal(text, &container) != nil {
		return ""
	}
	return strings.TrimPrefix(container.Name, "/")
}
