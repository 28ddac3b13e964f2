// Package view keeps, once per driver version and selection of files, a directory of driver files
// that containers get as one mount at /usr/local/nvidia: <state-dir>/view/<key>/root, a read-only
// tmpfs with one read-only bind per file and symbolic links for SONAMEs. One mount per file would
// make every container's start slower.
//
// A view is assembled in a mount namespace of its builder and attached in one step, so it is
// complete or absent, even if the builder is killed. Views of an older driver are unmounted when no
// container creation can be using them; containers keep their own copies.
//
// Nothing of an image is ever a source (invariant I2), and only root can change the state directory
// (invariant I11).
package view
