// Package view keeps, once per driver version and selection of files, a directory
// of driver files that containers get as one mount at /usr/local/nvidia.
//
// In: host paths of driver files with the names that they shall have. Out: a
// directory <state-dir>/view/<key>/root, a read-only tmpfs with one read-only bind
// per file and symbolic links for SONAMEs; and a small store for what was learned
// about the driver. Sixty file mounts cost a container 15 to 25 ms, one directory
// costs next to nothing.
//
// A view is assembled in a mount namespace that only its builder sees and attached
// in one step, so a view is there whole or not at all, also when the builder is
// killed. Views of an older driver are taken off the host once no create can be
// using them; containers keep their own copy of the mounts.
//
// All state is below one directory that root alone may enter; whoever else could
// write there would choose what is mounted into containers, so that is checked at
// every use (invariant I11). Nothing of an image is ever a source (invariant I2).
package view
