// Package sockets gives containers the sockets of the driver's daemons: nvidia-persistenced,
// nvidia-fabricmanager and MPS.
//
// In: the configuration of the host and what the container asks for. Out: the mounts of the
// directories of the sockets, of daemons that run. A socket that root does not guard is an error.
// It must never connect to a daemon.
package sockets
