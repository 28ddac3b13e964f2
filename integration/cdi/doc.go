// Package cdi tests containers whose GPUs come from CDI, and the sockets of the driver's
// daemons.
package cdi
