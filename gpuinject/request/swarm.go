package request

import (
	"slices"
	"strings"
)

// SwarmPrefix begins the variables in which Docker swarm tells a task which of a
// node's generic resources are its own: DOCKER_RESOURCE_GPU=GPU-…,GPU-….
const SwarmPrefix = "DOCKER_RESOURCE_"

// HasSwarm tells whether env has a variable of a swarm resource, of whatever kind.
func HasSwarm(env []string) bool {
	return slices.ContainsFunc(env, func(entry string) bool { return strings.HasPrefix(entry, SwarmPrefix) })
}

// WithSwarm returns env with the values of the swarm resources names, those that are
// set, in the place of NVIDIA_VISIBLE_DEVICES: swarm has no other way to say which
// GPUs it allocated. Several are concatenated in the order of names. Without any of
// them env is returned as it is.
func WithSwarm(env, names []string) []string {
	vars := map[string]string{}
	for _, entry := range env {
		if name, value, ok := strings.Cut(entry, "="); ok && slices.Contains(names, name) {
			vars[name] = value
		}
	}
	var values []string
	for _, name := range names {
		if value, ok := vars[name]; ok {
			values = append(values, value)
		}
	}
	if len(values) == 0 {
		return env
	}
	return append(slices.Clone(env), EnvVisibleDevices+"="+strings.Join(values, ","))
}
