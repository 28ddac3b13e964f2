// Package kubeapi follows and changes the labels of a node through the Kubernetes API, and reports
// events about it, with the service account of a pod. One watch of the node's metadata says what
// changes: no request is made while nothing does.
//
//	node, err := kubeapi.Follow(ctx, "node-1", kubeapi.ServiceAccount)
//	labels, err := node.Labels(ctx)
//	err = node.SetLabels(ctx, map[string]any{"example.com/ready": "true", "example.com/old": nil})
//	err = node.Report(ctx, kubeapi.Warning, "GPUHealth", "GPU 0 is unhealthy")
package kubeapi
