// Package layout says where the driver's files are in a container: in the view, which is mounted at
// ViewDir, and beside it, at the few places where programs look whatever the loader would find.
//
//	spec := layout.View(files)
//	entries, dirs := layout.LoaderEntries(files)
//
// It is pure: it takes lists of files and returns names and places.
package layout
