// Package cdispec reads what CDI specifications of this host say of other vendors'
// devices, for containers that name such devices beside NVIDIA's, or alone.
//
// In: the directories of specifications, CDI names, and what of the container's
// configuration the result depends on. Out: the nodes, rules, mounts, variables and
// hooks to add, as plain data, by the library of the CDI project, which container
// engines use.
//
// The library reads YAML and watches directories, which is much for a shim that has to
// do with such a device once in a while: it runs in `nvidia-shimctl probe cdi`, and the
// shim gets JSON.
//
// Specifications name host files and programs to run, so one that others than root can
// write is refused. NVIDIA's own kinds never get here: package request resolves their
// names, and the shim injects those devices itself. This package must never change
// anything, open a device node or look into an image.
package cdispec
