// Package sockets gives containers the sockets of the driver's daemons: nvidia-persistenced,
// nvidia-fabricmanager and MPS.
//
// In: the configuration of the host and what the container asks for. Out: the mounts of the socket
// directories of running daemons. A socket that users other than root or the daemon could replace
// is an error. It must never connect to a daemon.
package sockets
