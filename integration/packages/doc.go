// Package packages tests how packages are built. What they do on a host is tested by package
// systemd, in a machine.
package packages
