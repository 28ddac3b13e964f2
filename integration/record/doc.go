// Package record reads the record that the shim writes beside a container's configuration. The keys
// are repeated here, because other programs read them too.
package record
