// Command answers plays the kubelet for NVIDIA's device plugin and prints what the plugin answers to
// Allocate. generate.sh keeps the answers of several versions as test data.
package main
