// Package bundle reads and edits the OCI configuration of a container,
// config.json in its bundle, without losing a field.
//
// In: the bundle directory that containerd made. Out: a read-only view of the
// parts that decide about GPUs, and an edited file that differs from the original
// only where an edit was asked for. The file is kept as raw JSON and only the
// arrays that grow are spliced, so a field that a newer containerd wrote and this
// build has never heard of reaches runc unchanged (invariant I9).
//
// It must never re-serialise the whole configuration through a struct, never
// follow a link, and never write in place: a reader sees the old file or the new.
package bundle
