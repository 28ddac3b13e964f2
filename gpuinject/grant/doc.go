// Package grant decides which devices of this host a container gets: it asks the kubelet and NVML
// what only they know, applies package policy, selects among what may be had, and checks the
// requirements of the image. It knows nothing of where things go in an image.
//
//	g, err := grant.Decide(container, host, ask)
//	nodes, err := g.Nodes(container, host, driverFiles)
//
// With an error the Grant and its Log explain the decisions that led to it.
package grant
