// Package kubeapi reads and writes the labels of a node through the Kubernetes API, with the
// service account of a pod.
//
//	node, err := kubeapi.InCluster("node-1", kubeapi.ServiceAccount)
//	labels, err := node.Labels(ctx)
//	err = node.SetLabels(ctx, map[string]any{"example.com/ready": "true", "example.com/old": nil})
package kubeapi
