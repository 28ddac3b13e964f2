// Package wsl holds everything about hosts that are Linux under Windows (WSL2): one device node
// gives a container all GPUs that Windows shares, and the driver's files come from Windows.
//
// A program's libcuda.so.1 is a loader: it asks dxcore for the adapter, dxcore names the package in
// the driver store by the path that the store has on the host, and the loader opens the real
// library there. So the store's NVIDIA packages and the directory of loaders are given at their own
// paths, and the loaders in the view as well, like any driver's.
//
// It is written from NVIDIA's sources and tested with directories laid out like such a host, not on
// one.
package wsl
