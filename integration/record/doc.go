// Package record reads what the shim notes beside a container's configuration. Its keys are
// written down here again: other programs read them too.
package record
