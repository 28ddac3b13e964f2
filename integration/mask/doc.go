// Package mask tests the private /proc/driver and the record and log line of a container.
package mask
