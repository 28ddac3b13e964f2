// Package devnode has the names and numbers of NVIDIA's device nodes in a container, and the one
// table of device classes. It reads nothing.
package devnode
