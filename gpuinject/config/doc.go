// Package config reads the configuration of the shim: where the driver is, what containers may ask
// for, and who may have it.
//
// In: /etc/nvidia-shim/config.toml, or the file that NVIDIA_SHIM_CONFIG names in containerd's own
// environment (never a container's). Out: a Config with every default filled in. A missing default
// file means defaults. An unknown key or a bad value is an error that names file, key and value,
// because a silently ignored setting is hard to find; a file that users other than root can write
// is refused (invariant I11).
//
// The package must never read an environment variable of a container or a file of an image.
package config
