// Package cdispec makes a CDI specification of this host's GPUs from the shim's plans.
//
// The specification is complete without hooks, for runtimes that know nothing of this shim. Under
// the shim, its nodes say which devices the container gets, and its mounts are removed.
package cdispec
