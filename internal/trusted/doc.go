// Package trusted holds the one check that only root can change a file that steers the shim: its
// owner is root, and neither its group nor others can write it (invariant I11).
//
// The effective user counts as root, so that nvidia-shimctl works for an ordinary user with files
// of their own. Files of the driver must be root's own: RootFile and RootDirectory.
package trusted
