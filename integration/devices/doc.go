// Package devices tests that a container opens exactly the devices that it was granted:
// GPUs, MIG devices, IMEX channels and the other classes, by node and by number.
package devices
