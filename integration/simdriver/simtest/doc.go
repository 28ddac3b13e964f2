// Package simtest makes simulated hosts for one test: with a driver of package sim
// that is gone when the test ends, and with its driver in a container.
package simtest
