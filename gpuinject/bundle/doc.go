// Package bundle reads and edits the OCI configuration of a container, config.json in its bundle,
// without losing a field.
//
// In: the bundle directory that containerd made. Out: the parts of the configuration that decide
// about GPUs, read-only, and an edited file that differs from the original only where an edit was
// asked for. The file is kept as raw JSON and only the arrays that change are spliced, so a field
// that this build does not know reaches runc unchanged (invariant I9).
//
// A caller that does not know yet whether the container asks for a GPU takes the bytes from Read
// and gives them to Parse if it does.
//
// The package must never re-serialise the whole configuration through a struct, never follow a
// link, and never write in place: a reader sees the old file or the new one.
package bundle
