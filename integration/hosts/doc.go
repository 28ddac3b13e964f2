// Package hosts tests hosts of other kinds: Talos, NixOS, WSL2, Tegra, driver containers,
// containers that are hosts themselves, a host without device nodes, nodes of k3s, RKE2 and Docker.
package hosts
